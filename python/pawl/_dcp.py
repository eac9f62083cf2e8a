# SPDX-License-Identifier: Apache-2.0
"""Converts between the items of torch.distributed.checkpoint (DCP) and the tree of a state, for
pawl.torch.

DCP names everything by flat keys ("model.w", "lst.0") and remembers the path of each ("model",
"w"). In a state the paths are nested dicts, so that the different items of the ranks can be united:

- Positions in a list are keys of type int.
- Everything else is a leaf: a tensor, or a value that DCP would have pickled.
- A value that is itself a dict is stored under the key None, which marks it as a value.
- If one rank has several pieces of a tensor, they are a dict. Each piece is a tensor under its
  offsets ("4,0"), and the global shape is stored under the key None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ._pawl import CorruptError, MismatchError, UnsupportedError

NOTE = "torch.distributed.checkpoint"  # key in a checkpoint's metadata: it was saved through DCP

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, attribute)
    for name, attribute in {
        "BOOL": "bool",
        "F4": "float4_e2m1fn_x2",
        "U8": "uint8",
        "I8": "int8",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
        "C128": "complex128",
    }.items()
    if hasattr(torch, attribute)
}

Path = tuple[str | int, ...]
Keys = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor of a checkpoint that has not been read, and its pieces."""

    index: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor of torch, or of a program that records no kind."""
        return self.kind == "" or self.kind.startswith("torch")


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tensor that was saved as several pieces, by their offsets.

    Extents count torch's elements.
    """

    shape: tuple[int, ...]
    leaves: dict[tuple[int, ...], Leaf]

    @property
    def dtype(self) -> str:
        return next(iter(self.leaves.values())).dtype


@dataclass(frozen=True, eq=False)
class Place:
    """The place of one of DCP's keys: DCP's path, the keys in the tree, and the value."""

    path: Path
    keys: Keys
    value: Any


def text(keys: Keys) -> str:
    """The text of a path, in pawl's form."""
    return "/".join(str(key).replace("%", "%25").replace("/", "%2F") for key in keys)


def pairs(dtype: torch.dtype | str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Converts extents of torch to those of pawl: one torch element holds two four-bit floats."""
    if numbers and dtype in ("F4", DTYPES.get("F4")):
        return (*numbers[:-1], numbers[-1] * 2)
    return numbers


def halves(dtype: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Converts extents of pawl to those of torch: the reverse of ``pairs``."""
    return (*numbers[:-1], numbers[-1] // 2) if numbers and dtype == "F4" else numbers


# ---- saving ----


def put(tree: dict[Any, Any], path: Path, value: object) -> None:
    """Puts a leaf into a tree of dicts."""
    at = tree
    for key in path[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise MismatchError(f"'{text(path)}' is below another value of the same state")
    if path[-1] in at:
        raise MismatchError(f"'{text(path)}' appears twice")
    at[path[-1]] = {None: value} if isinstance(value, dict) else value


def put_piece(
    tree: dict[Any, Any], path: Path, shape: tuple[int, ...], offsets: tuple[int, ...], value: object
) -> None:
    """Puts one of a tensor's pieces into a tree of dicts."""
    put(tree, (*path, ",".join(map(str, offsets))), value)
    at(tree, path)[None] = list(shape)


def _pieces(tree: dict[Any, Any], path: Path) -> Pieces:
    """Reads a dict of pieces. Raises an error if they do not fill the tensor exactly."""
    shape = tree[None]
    found: dict[tuple[int, ...], Leaf] = {}
    for key, leaf in tree.items():
        if key is None:
            continue
        if not isinstance(key, str) or not re.fullmatch(r"\d{1,18}(,\d{1,18})*", key) or not isinstance(leaf, Leaf):
            raise CorruptError(f"'{text(path)}': expected a piece by its offsets, found {key!r}")
        found[tuple(map(int, key.split(",")))] = leaf
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    kinds = {(leaf.dtype, leaf.kind, len(leaf.shape), len(offsets)) for offsets, leaf in found.items()}
    if not whole or len(kinds) != 1 or any(kind[2:] != (len(shape), len(shape)) for kind in kinds):
        raise CorruptError(f"'{text(path)}': its pieces differ in dtype, or do not have the dimensions of {shape!r}")
    pieces = Pieces(tuple(shape), found)
    if not _is_filled(pieces):
        raise CorruptError(f"'{text(path)}': its {len(found)} pieces do not fill {shape} exactly")
    return pieces


def _is_filled(pieces: Pieces) -> bool:
    """Whether the pieces fill the tensor: all inside, without overlap, with as many elements."""
    boxes = []
    for offsets, leaf in sorted(pieces.leaves.items()):
        sizes = halves(leaf.dtype, leaf.shape)
        boxes.append((offsets, tuple(a + n for a, n in zip(offsets, sizes, strict=True)), prod(sizes)))
    if sum(n for *_, n in boxes) != prod(pieces.shape):
        return False
    near: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # pieces that reach this one's rows
    for begin, end, _ in boxes:
        near = [one for one in near if one[1][0] > begin[0]]
        if any(b > size for b, size in zip(end, pieces.shape, strict=True)):
            return False
        if any(all(a < d and c < b for a, b, c, d in zip(begin, end, *one, strict=True)) for one in near):
            return False
        near.append((begin, end))
    return True


def step_of(checkpoint_id: object) -> int | None:
    """The last number in the last component of a checkpoint_id ("runs/a/step_400" is 400)."""
    if isinstance(checkpoint_id, int):
        return checkpoint_id
    if not isinstance(checkpoint_id, str | os.PathLike):
        return None
    digits = re.findall(r"\d+", os.path.basename(os.path.normpath(os.fspath(checkpoint_id))))
    return int(digits[-1]) if digits else None


# ---- reading ----


def needs_reading(value: object) -> bool:
    """Whether a value holds arrays or tensors."""
    if isinstance(value, Leaf | Pieces):
        return True
    if isinstance(value, dict):
        return any(needs_reading(inner) for inner in value.values())
    return isinstance(value, list | tuple) and any(needs_reading(inner) for inner in value)


def _is_value(value: object) -> bool:
    """Whether DCP treats it as one value.

    Dicts are not one value, nor are lists that hold a tensor or a dict.
    """
    if isinstance(value, dict):
        return False
    if not isinstance(value, list):
        return True
    return all(_is_value(entry) and not (isinstance(entry, Leaf) and entry.is_tensor) for entry in value)


def places(tree: object, through_dcp: bool, path: Path = (), keys: Keys = ()) -> Iterator[Place]:
    """Yields the items of a tree as DCP would name them. through_dcp: ``put`` has made the tree."""
    if through_dcp and isinstance(tree, dict) and set(tree) == {None}:
        yield Place(path, (*keys, None), tree[None])
    elif through_dcp and isinstance(tree, dict) and None in tree:
        yield Place(path, keys, _pieces(tree, path))
    elif isinstance(tree, dict):
        for key, value in tree.items():
            name = key if through_dcp and type(key) is int else str(key)
            yield from places(value, through_dcp, (*path, name), (*keys, key))
    elif isinstance(tree, list) and not through_dcp and not _is_value(tree):
        for index, value in enumerate(tree):
            yield from places(value, through_dcp, (*path, index), (*keys, index))
    else:
        yield Place(path, keys, tree)


def named_places(tree: object, through_dcp: bool) -> dict[str, Place]:
    """The items by DCP's flat keys."""
    if not isinstance(tree, dict):
        raise UnsupportedError(f"the saved state is a {type(tree).__name__}; DCP supports only dicts")
    found: dict[str, Place] = {}
    for place in places(tree, through_dcp):
        name = ".".join(map(str, place.path))
        if name in found:
            raise UnsupportedError(
                f"'{text(found[name].keys)}' and '{text(place.keys)}' have the same name in DCP: '{name}'"
            )
        found[name] = place
    return found


def at(tree: Any, keys: Keys) -> Any:
    """The value at a place of a tree."""
    for key in keys:
        tree = tree[key]
    return tree


def note_of(metadata: object) -> Mapping[str, Any] | None:
    """The note that StorageWriter has written into a checkpoint's metadata, or None."""
    note = metadata.get(NOTE) if isinstance(metadata, dict) else None
    return note if isinstance(note, dict) else None
