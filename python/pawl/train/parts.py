# SPDX-License-Identifier: Apache-2.0
"""The part of a common checkpoint that each worker writes.

Rank 0 writes the values, and every rank its pieces and files. The metadata of a checkpoint has its
kind. The kind determines the form of the state:

    dict   the reported dict. Plain values are those of the first worker. Every worker adds its
           pieces of distributed tensors and its values per rank (DTensor, ShardedTensor,
           pawl.Shard, pawl.PerRank, random generators).
    ranks  {"rank": every worker's own dict, "shared": pieces of distributed tensors}
    files  {"files": {name: {rank: the file's bytes}}}
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from .. import _files, _kinds
from .._pawl import ConflictError, NotFoundError, UnsupportedError, UsageError
from ..shard import PerRank, Shard
from . import workers

_NOTHING = object()
NOTES = "pawl.train"  # the key of kind and first number in the metadata
_PIECE_BYTES = 8 << 20  # read and checksummed at once


def _is_shared(value: object) -> bool:
    """Whether every rank has a part of the value."""
    return (
        isinstance(value, Shard | PerRank)
        or type(value).__name__ in ("DTensor", "ShardedTensor")
        or getattr(value, "per_rank", False) is True
    )


def _is_tensor(value: object) -> bool:
    return hasattr(type(value), "__dlpack__")


def _expand(value: Any) -> Any:
    """Replaces an object by its state_dict."""
    if isinstance(value, Mapping | list | tuple) or _is_tensor(value) or not hasattr(value, "state_dict"):
        return value
    return value.state_dict()


def _parts(value: Any) -> tuple[str, Any] | None:
    """The kind and the plain value of an object that has a kind."""
    if value is None or type(value) in (dict, list, tuple, OrderedDict) or _is_tensor(value):
        return None
    return _kinds.parts(value)


def _is_generator(value: Any) -> bool:
    """Whether it is a random generator, of which each rank has its own."""
    found = _parts(value)
    return found is not None and _kinds.per_rank(found[0])


def _taken_apart(value: Any) -> tuple[str, Any] | None:
    """The kind and the values of an object that holds others: a named tuple, a dataclass, a deque."""
    found = _parts(value)
    if found is None or not isinstance(found[1], dict | list) or _kinds.per_rank(found[0]):
        return None
    return found


def _claim(value: Any, writer: Any) -> Any:
    """Marks all plain tensors as written by this rank ("here") or another one ("elsewhere")."""
    value = value if _is_shared(value) else _expand(value)
    if _is_shared(value):
        return value
    if (taken := _taken_apart(value)) is not None:
        return _kinds.rebuild(value, taken[0], _claim(taken[1], writer), taken[0], False)
    if isinstance(value, Mapping):
        found = [(key, _claim(inner, writer)) for key, inner in value.items()]
        return OrderedDict(found) if isinstance(value, OrderedDict) else dict(found)
    if type(value) in (list, tuple):
        return type(value)(_claim(inner, writer) for inner in value)
    if _is_tensor(value):
        shape = tuple(value.shape)
        return Shard(value, shape, (0,) * len(shape), writer)
    return value


def _shared(value: Any, generators: bool) -> Any:
    """The values of which every rank has a part, with the dicts around them.

    generators: each rank's own random generators, too.
    """
    value = value if _is_shared(value) else _expand(value)
    if _is_shared(value) or (generators and _is_generator(value)):
        return value
    if (taken := _taken_apart(value)) is not None:
        return _NOTHING if _shared(taken[1], generators) is _NOTHING else _claim(value, "elsewhere")
    if isinstance(value, Mapping):
        found = [(key, _shared(inner, generators)) for key, inner in value.items()]
        found = [(key, inner) for key, inner in found if inner is not _NOTHING]
        if not found:
            return _NOTHING
        return OrderedDict(found) if isinstance(value, OrderedDict) else dict(found)
    if type(value) in (list, tuple) and any(_shared(inner, generators) is not _NOTHING for inner in value):
        return _claim(value, "elsewhere")
    return _NOTHING


def _own(value: Any) -> Any:
    """The values that ``_shared`` leaves out."""
    value = value if _is_shared(value) else _expand(value)
    if _is_shared(value):
        return _NOTHING
    if (taken := _taken_apart(value)) is not None:
        return value if _shared(taken[1], False) is _NOTHING else _NOTHING
    if isinstance(value, Mapping):
        found = [(key, _own(inner)) for key, inner in value.items()]
        found = [(key, inner) for key, inner in found if inner is not _NOTHING]
        return OrderedDict(found) if isinstance(value, OrderedDict) else dict(found)
    if type(value) in (list, tuple) and _shared(value, False) is not _NOTHING:
        return _NOTHING
    return value


def of_dict(
    data: Mapping[str, Any] | None, rank: int, world_size: int, keep_all_ranks: bool
) -> tuple[str, dict[str, Any]]:
    """The kind and the state of a report. data: None if this worker reported no dict."""
    if keep_all_ranks and world_size > 1:
        shared = _shared(data or {}, False)
        return "ranks", {"rank": PerRank(_own(data or {})), "shared": {} if shared is _NOTHING else shared}
    if data is None:
        return "dict", {}
    if world_size == 1:
        return "dict", dict(data)
    if rank == 0:
        return "dict", dict(_claim(data, "here"))
    shared = _shared(data, True)
    return "dict", {} if shared is _NOTHING else shared


def join_ranks(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The dict of one worker in a state of kind "ranks".

    Ranks beyond the saved number begin again at the first.
    """
    rows = state["rank"]
    rows = rows.value if isinstance(rows, PerRank) else rows
    own = rows[rank % len(rows)] if isinstance(rows, list) else rows
    whole: dict[str, Any] = _merge(own, state["shared"])
    return whole


def _merge(own: Any, shared: Any) -> Any:
    if not (isinstance(own, dict) and isinstance(shared, dict)):
        return shared
    for key, inner in shared.items():
        own[key] = _merge(own[key], inner) if key in own else inner
    return own


def list_files(folder: str) -> list[str]:
    """Names of all files below a folder, sorted. Anything but a file or a folder is an error.

    So is a folder that cannot be listed.
    """
    found = []
    for top, folders, files in _files.walk(folder, followlinks=True):
        folders.sort()
        for name in files:
            path = os.path.join(top, name)
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise UnsupportedError(f"{path} is not a file, so a checkpoint cannot hold it")
            found.append(os.path.relpath(path, folder).replace(os.sep, "/"))
    return sorted(found)


def _read_file(path: str) -> tuple[Any, int]:
    """The bytes of a file, and their checksum.

    Other workers may change the file meanwhile. So it is read once, into memory of our own. A map
    would raise SIGBUS after a truncation, and its bytes could change after the checksum. The bytes
    stay in memory until the save has copied them, as the pages of a map would.
    """
    import zlib

    import numpy as np

    try:
        file = open(path, "rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: expected a file, found none: it was removed during the report") from error
    with file:
        data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        view = data.data
        at = sum_ = 0
        while at < len(view):
            n = file.readinto(view[at : at + _PIECE_BYTES])
            if not n:
                raise ConflictError(
                    f"{path}: its size changed while it was read: expected {len(view)} bytes, found {at}"
                )
            sum_ = zlib.crc32(view[at : at + n], sum_)
            at += n
    return data, sum_


def of_files(folder: str | None, rank: int) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """The state, and the length and checksum of each file.

    Raises ConflictError if a file is truncated while it is read, and NotFoundError if it is removed.
    """
    files: dict[str, Any] = {}
    facts: dict[str, tuple[int, int]] = {}
    for name in list_files(folder) if folder is not None else ():
        data, sum_ = _read_file(os.path.join(folder or "", name))
        files[name] = {str(rank): Shard(data, data.shape, (0,), "here")}
        facts[name] = (data.size, sum_)
    return {"files": files}, facts


def conflicts(rows: list[dict[str, list[int]]]) -> str | None:
    """Describes the first file that two workers report with different bytes, or None."""
    found = [(name, rank, int(size), int(sum_)) for rank, row in enumerate(rows) for name, (size, sum_) in row.items()]
    return workers.clash(found)


def put_files(state: Mapping[str, Any], target: str) -> None:
    """Writes the files of kind "files" into a folder.

    If the bytes of a file differ between ranks, each version is written below rank_<number>.
    """
    for name, ranks in state["files"].items():
        if name.startswith("/") or ".." in name.split("/"):
            raise UsageError(f"the checkpoint holds a file '{name}', which would be outside its folder")
        for rank in ranks:  # part of a path, too
            if not (isinstance(rank, str) and rank.isascii() and rank.isdecimal()):
                raise UsageError(f"the checkpoint holds a file '{name}' of rank {rank!r}, which is not a number")
        whole = {rank: memoryview(_bytes_of(data)) for rank, data in ranks.items()}
        values = list(whole.values())
        if all(value == values[0] for value in values[1:]):
            _write_file(os.path.join(target, name), values[0])
            continue
        for rank, value in whole.items():
            _write_file(os.path.join(target, f"rank_{rank}", name), value)


def _bytes_of(data: Any) -> Any:
    data = data.numpy() if hasattr(data, "numpy") else data
    return data


def _write_file(path: str, data: memoryview) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
