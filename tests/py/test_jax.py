# SPDX-License-Identifier: Apache-2.0
"""Arrays of the real JAX over several processes and devices (of the processor)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from ports import free_port
from waiting import HANG_SECONDS

import pawl

pytestmark = pytest.mark.framework

WORKER = pathlib.Path(__file__).with_name("jax_worker.py")


def job(root: pathlib.Path, what: str, kind: str, world: int, devices: int) -> None:
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    env.update(PYTHONPATH=os.pathsep.join(sys.path))
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(root), what, kind, address, str(world), str(rank)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)[-4000:]


def test_R160_arrays_of_jax_on_the_devices_of_two_processes(tmp_path: pathlib.Path) -> None:
    job(tmp_path, "save", "one", 2, 2)
    tree = pawl.load(tmp_path / "latest")
    assert (tree["params"]["rows"] == np.arange(24 * 16, dtype=np.float32).reshape(24, 16) + 4).all()
    job(tmp_path, "restore", "one", 2, 2)
    job(tmp_path, "restore", "other", 2, 2)
    job(tmp_path, "restore", "other", 1, 4)
    job(tmp_path, "restore", "one", 1, 8)


def test_shapes_of_jax_become_arrays(tmp_path: pathlib.Path) -> None:
    code = f"""
import jax, jax.numpy as jnp, numpy as np, pawl
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
shape = lambda *extents, dtype=jnp.float32, sharding=None: jax.ShapeDtypeStruct(extents, dtype, sharding=sharding)
with pawl.CheckpointManager({str(tmp_path)!r}) as m:
    m.save(1, {{"w": jnp.arange(32.0).reshape(8, 4), "l": [jnp.ones(2, jnp.bfloat16)], "n": 3}}, wait=True)
    live = {{"w": shape(8, 4, sharding=NamedSharding(mesh, PartitionSpec("x"))), "l": [shape(2, dtype=jnp.bfloat16)],
             "n": shape(dtype=jnp.int32)}}
    m.restore(live)
    assert (live["w"] == jnp.arange(32.0).reshape(8, 4)).all() and len(live["w"].addressable_shards) == 4
    assert live["l"][0].dtype == jnp.bfloat16 and live["n"] == 3
    for other in (shape(8, 5), shape(8, 4, dtype=jnp.float16)):
        try:
            m.restore({{"w": other}}, paths=["w"])
        except pawl.MismatchError as error:
            assert "w: saved" in str(error)
        else:
            raise AssertionError("another shape was taken")
"""
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    subprocess.run([sys.executable, "-c", code], env=dict(env, PYTHONPATH=os.pathsep.join(sys.path)), check=True)


@pytest.mark.parametrize("devices", [1, 4])
def test_arrays_of_jax_on_the_devices_of_one_process(tmp_path: pathlib.Path, devices: int) -> None:
    code = f"""
import jax, jax.numpy as jnp, numpy as np, pawl, pawl.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("x",))
w = jax.device_put(jnp.arange(32.0).reshape(8, 4), NamedSharding(mesh, PartitionSpec("x")))
state = {{"w": w, "n": [1, None, (2.5, w + 1)]}}
with pawl.CheckpointManager({str(tmp_path)!r}) as m:
    m.save(1, pawl.jax.shards(state), wait=True)
    live = pawl.jax.shards(jax.tree.map(lambda x: x * 0, state), empty=True)
    assert m.restore(live).step == 1
    back = pawl.jax.arrays(live, like=state)
assert (back["w"] == w).all() and back["w"].sharding == w.sharding and len(back["w"].addressable_shards) == {devices}
assert (back["n"][2][1] == w + 1).all()
grown = pawl.jax.arrays({{"w": np.zeros((8, 4), np.float32), "n": [], "best": 2.5}}, like={{"w": w, "n": [1], "best": None}})
assert (grown["n"], grown["best"], grown["w"].sharding) == ([], 2.5, w.sharding)
for wrong in ({{"w": np.zeros((9, 4), np.float32)}}, {{"w": np.zeros((8, 4), np.int32)}}, {{"v": 1}}):
    try:
        pawl.jax.arrays(wrong, like={{"w": w}})
    except pawl.MismatchError as error:
        assert "expected" in str(error)
    else:
        raise AssertionError("another tree was taken")
try:
    pawl.jax.shards({{"key": jax.random.key(0)}})
except pawl.UnsupportedError as error:
    assert "key_data" in str(error)
else:
    raise AssertionError("a typed key was taken")
"""
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    subprocess.run([sys.executable, "-c", code], env=dict(env, PYTHONPATH=os.pathsep.join(sys.path)), check=True)
