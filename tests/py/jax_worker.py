# SPDX-License-Identifier: Apache-2.0
"""One process of a job of JAX that test_jax.py starts: saves, or restores into other shardings."""

from __future__ import annotations

import fcntl
import os
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from waiting import HANG_SECONDS, exists

import pawl
import pawl.jax


def source(name: str) -> np.ndarray[Any, Any]:
    numbers = np.arange(24 * 16, dtype=np.float32).reshape(24, 16)
    return numbers.astype(jnp.bfloat16) if name == "half" else numbers + len(name)


def state(kind: str, fill: bool) -> dict[str, Any]:
    devices = np.array(jax.devices())
    line, grid = Mesh(devices, ("x",)), Mesh(devices.reshape(2, -1), ("a", "b"))
    specs = {
        "rows": NamedSharding(line, PartitionSpec("x")),
        "columns": NamedSharding(line, PartitionSpec(None, "x")),
        "grid": NamedSharding(grid, PartitionSpec("a", "b")),
        "copies": NamedSharding(grid, PartitionSpec("b")),  # each half is on devices of every process
        "same": NamedSharding(line, PartitionSpec()),
        "half": NamedSharding(grid, PartitionSpec(None, "a")),
    }
    names = list(specs)
    shardings = dict(zip(names, list(specs.values())[::-1] if kind == "other" else specs.values(), strict=True))
    made = {}
    for name in names:
        values = source(name) if fill else np.zeros_like(source(name))
        made[name] = jax.make_array_from_callback(values.shape, shardings[name], lambda index, v=values: v[index])
    return {"params": made, "step": 7 if fill else 0}


def check(restored: dict[str, Any]) -> None:
    assert restored["step"] == 7
    for name, array in restored["params"].items():
        assert isinstance(array, jax.Array) and array.dtype == source(name).dtype
        for shard in array.addressable_shards:
            assert (np.asarray(shard.data) == source(name)[shard.index]).all(), name


def main() -> None:
    root, what, kind, address, world, rank = sys.argv[1:]
    if int(world) > 1:
        limits = {"initialization_timeout": HANG_SECONDS, "heartbeat_timeout_seconds": HANG_SECONDS}
        jax.distributed.initialize(address, int(world), int(rank), **limits)
    me = pawl.Ranks(rank=jax.process_index(), world_size=jax.process_count())
    with pawl.CheckpointManager(root, timeouts=pawl.Timeouts(commit=HANG_SECONDS), signals=False, ranks=me) as manager:
        if what == "save":
            ticket = manager.save(7, pawl.jax.shards(state(kind, True)))
            assert ticket is not None
            ticket.wait()
        else:
            live = state(kind, False)
            host = pawl.jax.shards(live, empty=True)
            assert manager.restore(host)
            check(pawl.jax.arrays(host, like=live))
    sys.stdout.flush()
    leave(pathlib.Path(f"{root}.left.{address}"), int(rank), int(world))


def leave(mark: pathlib.Path, rank: int, world: int) -> None:
    """The process of rank 0 has the service that lets them meet: it ends when no other needs it. No other waits."""
    own, hidden = (mark.with_name(f"{mark.name}{end}.{rank}") for end in ("", ".new"))
    file = os.open(hidden, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)  # until this process has ended
    hidden.rename(own)
    for other in range(1, world if rank == 0 else 0):
        path = mark.with_name(f"{mark.name}.{other}")
        exists(path)
        with path.open() as theirs:
            fcntl.flock(theirs, fcntl.LOCK_EX)
    os._exit(0)


if __name__ == "__main__":
    main()
