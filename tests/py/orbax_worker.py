# SPDX-License-Identifier: Apache-2.0
"""pawl.orbax next to the real Orbax, in an environment of its own (test_orbax.py): orbax_worker.py FOLDER."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import pawl
import pawl.orbax

TREE: dict[str, Any] = {
    "params": {
        "dense": {"w": np.arange(60000, dtype=np.float32).reshape(200, 300)},
        "scale": np.full(1, 2.5, np.float32),
    },
    "opt": [np.zeros(2, np.int64), np.arange(3, dtype=np.uint8)],
    "step": 7,
    "lr": 0.5,
    "nothing": None,
    "empty": {},
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and sorted(a) == sorted(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if a is None or isinstance(a, str | int | float):
        return type(a) is type(b) and bool(a == b)
    return bool(np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(np.asarray(a), np.asarray(b)))


def refused(kind: type[Exception], what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert what in str(error), error
        return
    raise AssertionError(f"expected {kind.__name__}: {what}")


def a_tree_by_itself(folder: pathlib.Path) -> None:
    tree = TREE | {"note": "a text", "half": jnp.arange(5, dtype=jnp.bfloat16), "flag": True}
    ocp.PyTreeCheckpointer().save(folder / "alone", tree)
    loaded = pawl.orbax.load(folder / "alone")
    assert same(loaded, tree), loaded
    assert isinstance(loaded["half"], np.ndarray) and str(loaded["half"].dtype) == "bfloat16"
    pawl.orbax.convert(folder / "alone", folder / "whole", to="pawl")
    assert same(pawl.load(folder / "whole"), tree)


def a_managers_folder(folder: pathlib.Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    assert len(jax.devices()) == 4
    with ocp.CheckpointManager(folder / "run") as manager:
        for step in (9, 10):
            state = TREE | {"sharded": jax.device_put(np.arange(8.0, dtype=np.float32) + step, cut)}
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    for step, place in ((10, folder / "run"), (9, folder / "run" / "9"), (9, folder / "run" / "9" / "default")):
        loaded = pawl.orbax.load(place)
        assert same(loaded, TREE | {"sharded": np.arange(8.0, dtype=np.float32) + step}), loaded
    assert pawl.orbax.load(folder / "run", step=9)["sharded"][0] == 9
    refused(pawl.NotFoundError, "no step 3; it has: 9, 10", lambda: pawl.orbax.load(folder / "run", step=3))
    shutil.copytree(folder / "run" / "10", folder / "run" / "11.orbax-checkpoint-tmp-5")
    assert pawl.orbax.load(folder / "run")["sharded"][0] == 10
    written = pawl.orbax.convert(
        folder / "run", folder / "m.safetensors", include="params/*", rename="params/*={1}", dtype="bf16", dots=True
    )
    assert (written.n_tensors, written.nbytes) == (2, 2 * 60001)


def several_trees(folder: pathlib.Path) -> None:
    with ocp.CheckpointManager(folder / "many", item_names=("params", "ema", "notes")) as manager:
        args = ocp.args.Composite(
            params=ocp.args.StandardSave({"w": np.ones(3)}),
            ema=ocp.args.StandardSave({"w": np.zeros(3)}),
            notes=ocp.args.JsonSave({"x": 1}),
        )
        manager.save(1, args=args)
        manager.wait_until_finished()
    assert pawl.orbax.load(folder / "many", item="ema")["w"].tolist() == [0, 0, 0]
    refused(pawl.UsageError, "give item=, one of ema, params", lambda: pawl.orbax.load(folder / "many"))
    refused(pawl.NotFoundError, "no tree 'notes'", lambda: pawl.orbax.load(folder / "many", item="notes"))


def steps_with_a_prefix(folder: pathlib.Path) -> None:
    for prefix in ("my_run", "other"):
        options = ocp.CheckpointManagerOptions(step_prefix=prefix, step_format_fixed_length=4)
        with ocp.CheckpointManager(folder / "prefixed", options=options) as manager:
            for step in (9, 10):
                manager.save(step, args=ocp.args.StandardSave({"at": step}))
        if prefix == "my_run":
            assert pawl.orbax.load(folder / "prefixed") == {"at": 10}
            assert pawl.orbax.load(folder / "prefixed", step=9) == {"at": 9}
            refused(pawl.NotFoundError, "it has: 9, 10", lambda: pawl.orbax.load(folder / "prefixed", step=3))
    refused(pawl.UsageError, "several prefixes (my_run, other)", lambda: pawl.orbax.load(folder / "prefixed"))
    assert pawl.orbax.load(folder / "prefixed" / "other_0009") == {"at": 9}
    for name in ("params_1", "params_2"):  # trees are not steps
        ocp.PyTreeCheckpointer().save(folder / "trees" / name, {"name": name})
    assert pawl.orbax.load(folder / "trees", item="params_1") == {"name": "params_1"}


def what_is_none(folder: pathlib.Path) -> None:
    refused(pawl.NotFoundError, "no such folder", lambda: pawl.orbax.load(folder / "nowhere"))
    (folder / "other").mkdir()
    refused(pawl.NotFoundError, "not a checkpoint of Orbax", lambda: pawl.orbax.load(folder / "other"))
    ocp.PyTreeCheckpointer().save(folder / "broken", {"w": np.arange(100000.0)})
    for data in (folder / "broken").glob("**/d/*"):
        data.write_bytes(b"damage")
    refused(pawl.CorruptError, "Orbax cannot read it", lambda: pawl.orbax.load(folder / "broken"))
    (folder / "broken" / "_METADATA").write_text("{")
    refused(pawl.CorruptError, "Orbax cannot read it", lambda: pawl.orbax.load(folder / "broken"))
    refused(pawl.CorruptError, "cannot read", lambda: pawl.orbax.convert(folder / "broken", folder / "none.npz"))
    assert not (folder / "none.npz").exists()


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    a_tree_by_itself(folder)
    a_managers_folder(folder)
    several_trees(folder)
    steps_with_a_prefix(folder)
    what_is_none(folder)
    print(json.dumps({"orbax": ocp.__version__}))


if __name__ == "__main__":
    main()
