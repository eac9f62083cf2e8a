# SPDX-License-Identifier: Apache-2.0
"""Tensors that the processor cannot read, and JAX arrays, by stand-ins for frameworks that tests cannot count on."""

from __future__ import annotations

import pathlib

from common import run_program

FAR = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import far_device as torch
import numpy as np, pawl

def far(*shape, seed=0):
    return torch.Tensor(np.random.default_rng(seed).random(shape).astype("f4"))
"""


def test_tensors_on_a_device_are_fetched_and_put_back(tmp_path: pathlib.Path) -> None:
    run_program(
        FAR
        + f"""
state = {{"a": far(300, 70), "t": torch.Tensor(far(40, 50, seed=1).array.T), "empty": far(0, 3), "one": far(),
         "near": torch.Tensor(np.arange(5), True)}}
state["tied"] = state["a"]
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    for lazy, mode in ((False, 0), (True, 0), (False, 2), (False, 3)):
        manager._run.save(1, state, lazy=lazy, mode=mode).wait()
        live = {{k: torch.Tensor(np.zeros_like(v.array), v.is_cpu) for k, v in state.items()}}
        restored = manager.restore(live)
        for key, tensor in state.items():
            assert np.array_equal(live[key].array, tensor.array), key
            assert restored.state[key] is live[key]
        fresh = manager.restore().state
        assert all(v.is_cpu and np.array_equal(v.array, state[k].array) for k, v in fresh.items())
"""
    )


def test_R160_pieces_on_a_device_are_restored_into_the_device(tmp_path: pathlib.Path) -> None:
    run_program(
        FAR
        + f"""
whole = np.arange(60, dtype="f4").reshape(10, 6)
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(1, {{"w": torch.Tensor(whole.copy()), "t": torch.Tensor(whole.copy())}}, wait=True)
    piece, turned = far(4, 3), torch.Tensor(np.zeros((3, 4), "f4").T)
    live = {{"w": pawl.Shard(piece, (10, 6), (5, 2)), "t": pawl.Shard(turned, (10, 6), (1, 3))}}
    restored = manager.restore(live)
assert np.array_equal(piece.array, whole[5:9, 2:5])
assert np.array_equal(turned.array, whole[1:5, 3:6])
assert live["w"].tensor is piece and restored.state["w"] is live["w"] and restored.state["t"] is live["t"]
"""
    )


def test_an_error_of_the_device_is_the_error_of_the_save(tmp_path: pathlib.Path) -> None:
    run_program(
        FAR
        + f"""
good, bad = far(1000), far(1000)
bad.broken = True
torch.Tensor.detach = lambda self: self
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(0, {{"w": good}}, wait=True)
    try:
        manager.save(1, {{"w": bad, "x": far(10)}})
    except RuntimeError as error:
        assert str(error) == "the device is gone", error
    else:
        raise AssertionError("no error")
    manager.save(2, {{"w": good}}, wait=True)
    assert manager.all_steps() == [0, 2]
"""
    )


def test_arrays_of_jax_go_through_numpy_and_come_back_as_jax(tmp_path: pathlib.Path) -> None:
    run_program(
        f"""
import sys, types
import numpy as np, pawl

class Array:
    def __init__(self, data):
        self.data = np.array(data)
        self.dtype, self.sharding = self.data.dtype, None
    def __array__(self, dtype=None, copy=None):
        return self.data

jax, jnp = types.ModuleType("jax"), types.ModuleType("jax.numpy")
jax.Array, jax.ShapeDtypeStruct, jax.numpy = Array, type("Shape", (), {{}}), jnp
narrow = False
jnp.array = lambda x: Array(x.astype("f4") if narrow and x.dtype == np.float64 else x)
jax.device_put = lambda x, sharding: jnp.array(x)
sys.modules.update({{"jax": jax, "jax.numpy": jnp}})
state = {{"w": Array(np.arange(6.0).reshape(2, 3)), "deep": [Array(np.float32(2))], "n": np.arange(2)}}
pawl.save(state, {str(tmp_path / "one")!r})
back = pawl.load({str(tmp_path / "one")!r})
assert [type(back["w"]), type(back["deep"][0]), type(back["n"])] == [Array, Array, np.ndarray]
assert np.array_equal(back["w"].data, state["w"].data)
live = {{"w": Array(np.zeros((2, 3))), "deep": [Array(np.float32(0))], "n": np.zeros(2, int)}}
pawl.load({str(tmp_path / "one")!r}, state=live)
assert np.array_equal(live["w"].data, state["w"].data) and live["deep"][0].data == 2
narrow = True
try:
    pawl.load({str(tmp_path / "one")!r})
except pawl.MismatchError as error:
    assert "jax_enable_x64" in str(error)
else:
    raise AssertionError("no error")
"""
    )
