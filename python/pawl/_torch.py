# SPDX-License-Identifier: Apache-2.0
"""The code that needs torch: restoring modules, distributed tensors.

Imported only when it is needed.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import nn

from ._pawl import UnsupportedError
from .shard import Shard


def as_tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a new array as a tensor.

    It is viewed as bytes, since NumPy and torch do not know each other's small floats.
    """
    return torch.from_numpy(array.reshape(-1).view("u1")).view(dtype).reshape(array.shape)


def as_array(tensor: torch.Tensor, dtype: Any) -> Any:
    """The memory of a new tensor as an array."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tensor.shape)


def memory(module: nn.Module) -> set[int]:
    """Addresses of the tensors that the module itself uses.

    Reading into these restores the module.
    """
    found = set()
    for tensor in chain(module.parameters(), module.buffers()):
        with suppress(RuntimeError, ValueError, AttributeError):  # not yet materialised
            found.add(getattr(tensor, "_local_tensor", tensor).data_ptr())
    return found


def must_load(module: nn.Module) -> bool:
    """True if load_state_dict does more for this module than copying tensors."""
    if type(module).load_state_dict is not nn.Module.load_state_dict:
        return True
    return any(
        part.__dict__.get("_load_state_dict_pre_hooks")
        or part.__dict__.get("_load_state_dict_post_hooks")
        or (
            type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
            and not type(part).__module__.startswith("torch.")
        )
        for part in module.modules()
    )


def distributed_parameters(optimizer: object, numbers: list[list[int | None]]) -> dict[int, torch.Tensor]:
    """The DTensors among an optimizer's parameters, by the number that each had when it was saved.

    Groups and parameters correspond by their order, as in load_state_dict. The result is empty if
    optimizer is not an optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    groups = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in groups] != [len(group) for group in numbers]:
        return {}  # load_state_dict reports it
    pairs = zip(chain.from_iterable(numbers), chain.from_iterable(groups), strict=True)
    return {number: p for number, p in pairs if number is not None and type(p).__name__ == "DTensor"}


def laid_out_as(parameter: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """An empty DTensor with the parameter's mesh and placements; None if the shapes differ.

    Its local piece is in host memory, where data can be read into it. load_state_dict moves it to
    the device.
    """
    if tuple(parameter.shape) != shape:
        return None
    return torch.empty_like(parameter, dtype=dtype, device="cpu", requires_grad=False)


def _writes(key: object, coordinates: list[tuple[int, int]]) -> bool:
    """Whether this copy of a tensor is the one to write.

    coordinates: (index, size) in each mesh dimension along which there are copies. Which copy
    writes depends on the tensor, so that the work is spread.
    """
    seed = zlib.crc32(repr(key).encode())
    for index, size in coordinates:
        if index != seed % size:
            return False
        seed //= size
    return True


def _nothing(tensor: Any) -> Shard:
    """The Shard of a rank that holds no part of the tensor."""
    empty = torch.empty([0] * tensor.ndim, dtype=tensor.dtype)
    return Shard(empty, tuple(tensor.shape), (0,) * tensor.ndim, "elsewhere")


def _copies_outside(mesh: Any) -> list[tuple[int, int]]:
    """(index, size) along the dimensions of the root mesh that the tensor's own mesh lacks.

    A tensor that is sharded over one of two dimensions exists once for every index of the other.
    """
    root = mesh._get_root_mesh()
    if root is None or root.ndim == mesh.ndim or not root.mesh_dim_names:
        return []
    coordinate, own = root.get_coordinate(), set(mesh.mesh_dim_names or ())
    if coordinate is None or not own <= set(root.mesh_dim_names):
        return []
    return [(coordinate[d], root.size(d)) for d, name in enumerate(root.mesh_dim_names) if name not in own]


def _box_of_dtensor(tensor: Any) -> object:
    from torch.distributed import get_world_size
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return _nothing(tensor)
    if any(placement.is_partial() for placement in placements):
        raise UnsupportedError(
            f"a DTensor with placements {placements} holds partial sums; call .full_tensor() or "
            ".redistribute() before saving"
        )
    local = tensor._local_tensor.detach()
    copies = [(coordinate[d], mesh.size(d)) for d, placement in enumerate(placements) if placement.is_replicate()]
    copies += _copies_outside(mesh)
    if all(placement.is_replicate() for placement in placements) and mesh.size() == get_world_size():
        return local  # the same on all ranks
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape):
        raise UnsupportedError(
            f"a DTensor with placements {placements} holds a piece of {tuple(local.shape)} here, but by its placements "
            f"it should be one of {tuple(shape)}"
        )
    if local.numel() == 0:
        return _nothing(tensor)
    key = (tuple(tensor.shape), str(tensor.dtype), tensor.stride())
    return Shard(local, tuple(tensor.shape), tuple(offsets), "here" if _writes(key, copies) else "elsewhere")


def _box_of_sharded_tensor(tensor: Any) -> object:
    shards = tensor.local_shards()
    size = tuple(tensor.metadata().size)
    if not shards:
        dtype = tensor.metadata().tensor_properties.dtype
        return Shard(torch.empty([0] * len(size), dtype=dtype), size, (0,) * len(size), "elsewhere")
    if len(shards) > 1:
        raise TypeError(  # becomes an UnsupportedError that names the path
            f"it has {len(shards)} shards on one rank, expected at most one; save with torch.distributed.checkpoint "
            "and pawl.torch.StorageWriter, which take several"
        )
    return Shard(shards[0].tensor.detach(), size, tuple(shards[0].metadata.shard_offsets), "here")


def box(tensor: object) -> object:
    """The part of a distributed tensor on this rank: a Shard, or a plain tensor if all ranks have
    all of it.

    None for a tensor of any other class.
    """
    match type(tensor).__name__:
        case "DTensor":
            return _box_of_dtensor(tensor)
        case "ShardedTensor":
            return _box_of_sharded_tensor(tensor)
    return None
