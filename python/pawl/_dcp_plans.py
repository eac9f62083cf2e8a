# SPDX-License-Identifier: Apache-2.0
"""Reads the items of DCP's plans, and describes places of a checkpoint as DCP's metadata."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from . import _dcp
from ._pawl import MismatchError, UnsupportedError
from .shard import Shard


def in_pieces(plan: SavePlan) -> set[str]:
    """Names of the tensors of which a rank writes several pieces. Empty pieces do not count."""
    seen: set[str] = set()
    found: set[str] = set()
    for item in plan.items:
        if item.tensor_data is not None and torch.Size(item.tensor_data.chunk.sizes).numel():
            (found if item.index.fqn in seen else seen).add(item.index.fqn)
    return found


def nbytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return torch.Size(item.tensor_data.chunk.sizes).numel() * item.tensor_data.properties.dtype.itemsize


def shard(item: WriteItem, tensor: torch.Tensor) -> Shard:
    data = item.tensor_data
    assert data is not None
    size = _dcp.pairs(tensor.dtype, tuple(data.size))
    offsets = _dcp.pairs(tensor.dtype, tuple(data.chunk.offsets))
    if tuple(tensor.shape) != tuple(data.chunk.sizes):
        raise MismatchError(f"'{item.index.fqn}': planned as {tuple(data.chunk.sizes)}, it is {tuple(tensor.shape)}")
    if tensor.numel() == 0:  # it only shows that the tensor exists; its offset may be the end
        return Shard(torch.empty([0] * tensor.ndim, dtype=tensor.dtype), size, (0,) * tensor.ndim, "elsewhere")
    return Shard(tensor, size, offsets, "here")


def value(planner: SavePlanner, item: WriteItem, path: _dcp.Path) -> Any:
    """The value that DCP would pickle.

    The default planner returns the object itself. Other planners return a pickle in memory.
    """
    if (
        isinstance(planner, DefaultSavePlanner)
        and type(planner).resolve_data is DefaultSavePlanner.resolve_data
        and type(planner).transform_object is DefaultSavePlanner.transform_object
    ):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        return data
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise UnsupportedError(f"'{_dcp.text(path)}' cannot be held in a state: {error}") from None


def metadata_of(name: str, value: object) -> TensorStorageMetadata | BytesStorageMetadata:
    if isinstance(value, _dcp.Pieces):
        parts = [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(_dcp.halves(leaf.dtype, leaf.shape)))
            for offsets, leaf in value.leaves.items()
        ]
        return TensorStorageMetadata(TensorProperties(dtype=_dcp.DTYPES[value.dtype]), torch.Size(value.shape), parts)
    if not isinstance(value, _dcp.Leaf) or not value.is_tensor:
        return BytesStorageMetadata()
    if value.dtype not in _dcp.DTYPES:
        raise UnsupportedError(f"tensor '{name}': this torch has no dtype for {value.dtype}")
    chunks = [
        ChunkStorageMetadata(
            torch.Size(_dcp.halves(value.dtype, offsets)), torch.Size(_dcp.halves(value.dtype, lengths))
        )
        for offsets, lengths in value.pieces
    ]
    size = torch.Size(_dcp.halves(value.dtype, value.shape))
    return TensorStorageMetadata(TensorProperties(dtype=_dcp.DTYPES[value.dtype]), size, chunks)
