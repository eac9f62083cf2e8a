# SPDX-License-Identifier: Apache-2.0
"""Arrays of JAX on several devices, of one process or of many.

    state = {"params": params, "step": 0}
    manager = pawl.CheckpointManager(root, ranks=pawl.Ranks(rank=jax.process_index(), world_size=jax.process_count()))
    manager.save(step, pawl.jax.shards(state))          # each process writes what is on its devices
    ...
    host = pawl.jax.shards(state, empty=True)           # whatever the sharding is now
    if manager.restore(host):
        state = pawl.jax.arrays(host, like=state)

An array on one device needs none of this. The part of an array in this process must be a box. That
is so for meshes whose devices are in the order of the processes. If several processes hold the same
part, one of them writes it.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import jax
import numpy as np

from ._pawl import MismatchError, UnsupportedError
from .shard import Shard

Box = tuple[tuple[int, int], ...]  # begin and end in each dimension


def shards(tree: Any, *, empty: bool = False) -> Any:
    """Replaces each array of a tree by the part that this process holds, in host memory.

    Args:
        tree: A tree with arrays of JAX.
        empty: Only allocate the memory, to restore into it. Default: False.

    Returns:
        The tree with a ``pawl.Shard`` of a NumPy array for each array. An array that is complete in
        every process that holds it becomes a plain NumPy array.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    for leaf in () if empty else leaves:
        leaf.copy_to_host_async()
    return jax.tree.map(lambda leaf: _to_host(leaf, empty) if isinstance(leaf, jax.Array) else leaf, tree)


def arrays(tree: Any, like: Any) -> Any:
    """Converts a tree that ``shards`` made (and a restore has filled) to arrays of JAX.

    Args:
        tree: What ``shards`` returned.
        like: A tree with arrays that have the wanted shardings.

    Returns:
        The tree with arrays.

    Raises:
        MismatchError: An array of ``like`` is missing in the tree, or has another shape or dtype.
    """
    leaves = jax.tree_util.tree_flatten_with_path(like)[0]
    wanted = {path: leaf for path, leaf in leaves if isinstance(leaf, jax.Array)}
    made = jax.tree_util.tree_map_with_path(lambda path, new: _to_devices(new, wanted.pop(path, None)), tree)
    if wanted:
        raise MismatchError(f"{jax.tree_util.keystr(next(iter(wanted)))}: expected an array, found none in the tree")
    return made


def _place(values: np.ndarray[Any, Any], like: jax.Array) -> jax.Array:
    """For the extension module: puts values into an array on the devices of another array."""
    if not getattr(like, "committed", True):  # JAX chooses the device
        return jax.numpy.array(values)
    placed: jax.Array = jax.device_put(values, like.sharding)
    return placed


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    return tuple(slice_.indices(length)[:2] for slice_, length in zip(index, shape, strict=True))


def _volume(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _around(boxes: set[Box], shape: tuple[int, ...], process: int) -> Box:
    """The box that these boxes fill."""
    whole = tuple((min(box[d][0] for box in boxes), max(box[d][1] for box in boxes)) for d in range(len(shape)))
    if sum(_volume(box) for box in boxes) != _volume(whole):
        raise UnsupportedError(
            f"an array of shape {shape}: the part that process {process} holds is not a box; "
            "order the devices of the mesh by process"
        )
    return whole


def _boxes(array: jax.Array) -> dict[int, Box]:
    """The box of an array that each process holds."""
    found: dict[int, set[Box]] = {}
    places: dict[Any, Any] = dict(array.sharding.devices_indices_map(array.shape))
    for device, index in places.items():
        found.setdefault(device.process_index, set()).add(_box(index or (), array.shape))
    return {process: _around(boxes, array.shape, process) for process, boxes in found.items()}


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(b - o, e - o) for (b, e), (o, _) in zip(box, outer, strict=True))


def _to_host(array: jax.Array, empty: bool) -> Any:
    if not isinstance(array.dtype, np.dtype):  # keys of random generators
        raise UnsupportedError(f"an array of {array.dtype} cannot be saved; take jax.random.key_data of it")
    boxes = _boxes(array)
    mine = boxes.get(jax.process_index())
    if mine is None:
        raise UnsupportedError(f"an array of shape {array.shape} has nothing on the devices of this process")
    host = np.empty([end - begin for begin, end in mine], array.dtype)
    if not empty:
        for shard in array.addressable_shards:
            host[_inside(_box(shard.index, array.shape), mine)] = shard.data
    if all(box == mine for box in boxes.values()) and _volume(mine) == array.size:
        return host
    holders = sorted(process for process, box in boxes.items() if box == mine)
    place = tuple(begin for begin, _ in mine)
    writer = holders[zlib.crc32(repr((array.shape, place)).encode()) % len(holders)]
    return Shard(host, array.shape, place, "here" if writer == jax.process_index() else "elsewhere")


def _to_devices(host: Any, like: jax.Array | None) -> Any:
    if like is None:
        return host
    values: Any = host.tensor if isinstance(host, Shard) else np.asarray(host)
    begin = host.offsets if isinstance(host, Shard) else [0] * like.ndim
    shape = tuple(host.global_shape) if isinstance(host, Shard) else values.shape
    if shape != like.shape:
        raise MismatchError(f"an array of shape {like.shape}: expected that shape, found {shape}")
    if values.dtype != like.dtype:
        raise MismatchError(f"an array of shape {like.shape}: expected {like.dtype}, found {values.dtype}")
    outer = tuple((b, b + n) for b, n in zip(begin, values.shape, strict=True))

    def piece(index: tuple[slice, ...] | None) -> Any:
        return values[_inside(_box(index or (), like.shape), outer)]

    return jax.make_array_from_callback(like.shape, like.sharding, piece)
