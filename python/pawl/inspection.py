# SPDX-License-Identifier: Apache-2.0
"""What the command does with checkpoints, as functions: look into them, compare, verify, copy, clean up, repair.

A place is what ``pawl.load`` takes: a checkpoint's folder or URL, or RUN@SELECTOR ("runs/demo@400", "runs/demo@best").
``progress`` is called with (bytes done, bytes in all) a few times a second and at the end, on the calling thread; an
exception of it, and Ctrl+C, cancel the work. All errors are ``PawlError``.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _checks, _pawl, checkpoint
from ._notebook import Rows
from ._pawl import NotFoundError, PawlError, UsageError
from .records import Finding

Place = str | os.PathLike[str]
Progress = Callable[[int, int], object] | None

_CHANGES: tuple[Literal["same", "added", "removed", "changed"], ...] = ("same", "added", "removed", "changed")
_NUMPY = {
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
}
_NUMPY |= {
    f"{letter}{bits}": f"{word}{bits}" for letter, word in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that was not read. ``dtype`` is as in safetensors ("F32", "BF16"); ``kind`` is "torch", "numpy", …."""

    dtype: str
    shape: tuple[int, ...]
    kind: str
    index: int  # in the checkpoint; for read


@dataclass(frozen=True)
class Difference:
    """A value that differs: of tensors dtype and shape, else the value as text; None where it does not exist.

    ``max_abs`` and ``max_rel`` are those of the elements; None unless both are tensors of one dtype and shape.
    """

    path: str
    change: Literal["same", "added", "removed", "changed"]
    was: str | None
    now: str | None
    max_abs: float | None
    max_rel: float | None


@dataclass(frozen=True)
class Copied:
    """A checkpoint of a run that was copied. ``problem``: why it was not, "" if it was."""

    id: int
    name: str
    nbytes: int
    was_there: bool
    sent_bytes: int
    problem: str


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be."""

    count: int
    nbytes: int


@dataclass(frozen=True)
class Repaired:
    """A checkpoint whose manifest was rebuilt, or could be; ``problem``: why it cannot be, "" if it can."""

    name: str
    problem: str


@contextlib.contextmanager
def _opened(place: str) -> Iterator[tuple[_pawl.Run, int]]:
    """The run of one checkpoint, and its id. It cannot be deleted as long as the block lasts."""
    root, selector = _pawl.split_address(place)
    if selector is None:
        run = _pawl.Run(place, single=True, read_only=True)
    else:
        run = _pawl.Run(root, read_only=True)
    try:
        id = checkpoint.only(run, place)["id"] if selector is None else run.find(selector)
        hold = None
        with contextlib.suppress(PawlError):  # where nothing can be written, nothing is deleted either
            hold = run.hold(id)
        try:
            yield run, id
        finally:
            if hold is not None:
                hold.close()
    finally:
        run.close()


@contextlib.contextmanager
def _edited(place: Place, *, read_only: bool = False) -> Iterator[_pawl.Run]:
    run = _pawl.Run(_checks.path("run", place), read_only=read_only, maintenance=True)
    try:
        yield run
    finally:
        run.close()


def tree(place: Place) -> Any:
    """The state of a checkpoint without its tensors, each of which is a ``TensorInfo``. Reads the manifest only.

    Args:
        place: the checkpoint.

    Returns:
        dicts, lists, tuples and plain values as they were saved.

    Raises:
        NotFoundError: there is no such checkpoint.
        CorruptError: its manifest is damaged.
    """
    with _opened(_checks.path("place", place)) as (run, id):
        found = run.describe(f"id:{id}", lambda index, kind, dtype, shape, _: TensorInfo(dtype, shape, kind, index))
        return found[0]


def _find(found: Any, path: str) -> TensorInfo:
    for part in path.split("/"):
        key = part.replace("%2F", "/").replace("%25", "%")
        if isinstance(found, dict) and (key in found or (key.lstrip("-").isdigit() and int(key) in found)):
            found = found[key if key in found else int(key)]
        elif isinstance(found, list | tuple) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            names = ", ".join(map(str, list(found)[:10])) if isinstance(found, dict) else f"{type(found).__name__}"
            raise NotFoundError(f"'{path}': no '{key}'; there is: {names}")
    if not isinstance(found, TensorInfo):
        raise UsageError(f"'{path}' is no tensor; pawl.tree shows what there is")
    return found


def _box(
    path: str, shape: tuple[int, ...], index: Sequence[slice | int] | slice | int
) -> tuple[list[int], list[int], list[int]]:
    """Offsets and extents in the tensor, and the shape of the result, which lacks the dimensions with a number."""
    given = list(index) if isinstance(index, Sequence) else [index]
    if len(given) > len(shape):
        raise UsageError(f"'{path}' has {len(shape)} dimensions, received {len(given)} indices")
    offsets, extents, result = [], [], []
    for size, one in zip(shape, [*given, *[slice(None)] * (len(shape) - len(given))], strict=True):
        if isinstance(one, slice):
            start, stop, step = one.indices(size)
            if step != 1:
                raise UsageError(f"'{path}': a slice has step 1, received {step}; index the result instead")
            result.append(max(stop - start, 0))
        else:
            if not -size <= one < size:
                raise UsageError(f"'{path}': index {one} is outside of a dimension of {size}")
            start, stop = one % size, one % size + 1
        offsets.append(start)
        extents.append(max(stop - start, 0))
    return offsets, extents, result


def _empty(info: TensorInfo, extents: list[int]) -> Any:
    """Memory of torch for tensors of torch and dtypes that NumPy lacks, else of NumPy."""
    if info.kind.startswith("torch") or info.dtype not in _NUMPY:
        import torch

        from . import _dcp

        return torch.empty(_dcp.halves(info.dtype, tuple(extents)), dtype=_dcp.DTYPES[info.dtype])
    import numpy

    return numpy.empty(extents, dtype=_NUMPY[info.dtype])


def read(place: Place, path: str, index: Sequence[slice | int] | slice | int = ()) -> Any:
    """One tensor of a checkpoint, or a part of it. Memory: the result, and a few blocks.

    Args:
        place: the checkpoint.
        path: of the tensor, as ``tree`` and ``pawl show`` have it: "model/layers.0.weight".
        index: a number or a slice of step 1 for each dimension, from the first; () = all of it.

    Returns:
        an array of torch, or of NumPy for what was saved from NumPy and the like; checked against its checksums.

    Raises:
        NotFoundError: no such checkpoint or tensor.
        UsageError: the index does not fit.
        CorruptError: the bytes are damaged.
    """
    with _opened(_checks.path("place", place)) as (run, id):
        selector = f"id:{id}"
        found, *_ = run.describe(selector, lambda index, kind, dtype, shape, _: TensorInfo(dtype, shape, kind, index))
        info = _find(found, path)
        offsets, extents, shape = _box(path, info.shape, index)
        target = _empty(info, extents)
        if 0 not in extents:
            run.read(selector, [(info.index, tuple(offsets), target)])
        return target.reshape(tuple(shape)) if len(shape) != len(extents) else target


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def diff(a: Place, b: Place, *, progress: Progress = None) -> Rows[Difference]:
    """What changed from checkpoint ``a`` to ``b``, in the order of paths. Tensors are streamed and verified.

    Args:
        a: a checkpoint.
        b: another one, maybe of another run.
        progress: see the module.

    Returns:
        what differs; [] if they are equal bit for bit.

    Raises:
        NotFoundError: one does not exist.
        CorruptError: one is damaged.
    """
    with _opened(_checks.path("a", a)) as (first, id), _opened(_checks.path("b", b)) as (second, other):
        rows = first.diff(id, second, other, progress)
    return Rows(
        Difference(path, _CHANGES[change], was, now, _number(max_abs), _number(max_rel))
        for path, change, was, now, max_abs, max_rel in rows
    )


def verify(place: Place, *, progress: Progress = None) -> Rows[Finding]:
    """Reads every byte of a checkpoint, or of all checkpoints of a run, and compares it with its checksum.

    Args:
        place: a checkpoint or a run.
        progress: see the module.

    Returns:
        the damage; [] if every byte is as it was written.

    Raises:
        NotFoundError: there is neither.
    """
    text = _checks.path("place", place)
    if _pawl.split_address(text)[1] is None and _pawl.kind_of(text) == 1:
        with _edited(text, read_only=True) as run:
            return Rows(Finding(**found) for found in run.verify(0, progress))
    with _opened(text) as (run, id):
        return Rows(Finding(**found) for found in run.verify(id, progress))


def copy(place: Place, to: Place, *, progress: Progress = None) -> list[Copied]:
    """Copies a checkpoint or a complete run to a path or URL. Every byte is verified; a repeated call resumes.

    Args:
        place: a checkpoint, which becomes one of its own; or a run, which is updated if it is there.
        to: a path or URL.
        progress: see the module.

    Returns:
        of a run, what happened to each checkpoint; else [].

    Raises:
        ExistsError: something else is at ``to``.
        CorruptError: the checkpoint is damaged.
        ConflictError: the target has another checkpoint with this id.
    """
    text, target = _checks.path("place", place), _checks.path("to", to)
    if _pawl.split_address(text)[1] is None and _pawl.kind_of(text) == 1:
        with _edited(text, read_only=True) as run:
            return [Copied(*row) for row in run.copy(None, target, progress)]
    with _opened(text) as (run, id):
        run.copy(id, target, progress)
        return []


def gc(run: Place, *, dry_run: bool = False) -> Cleaned:
    """Removes what crashes left behind in a run.

    Args:
        run: its folder or URL; no training may have it open.
        dry_run: change nothing.

    Returns:
        how much.

    Raises:
        BusyError: a training has it open.
    """
    with _edited(run, read_only=True) as opened:
        before = Cleaned(*opened.gc(True))
    if dry_run:
        return before
    with _edited(run) as opened:  # opening it cleans up, too
        opened.gc(False)
        after = Cleaned(*opened.gc(True))
    return Cleaned(max(before.count - after.count, 0), max(before.nbytes - after.nbytes, 0))


def repair(run: Place, *, dry_run: bool = False) -> list[Repaired]:
    """Rebuilds lost and damaged manifests from the files of tensors.

    Args:
        run: its folder or URL; no training may have it open.
        dry_run: only find out what would work.

    Returns:
        the checkpoints whose manifest is damaged, each with what happened.

    Raises:
        BusyError: a training has it open.
    """
    done = []
    with _edited(run, read_only=dry_run) as opened:
        for info in [info for info in opened.list(True) if info["bad"] and not info["denied"]]:
            problem = ""
            try:
                opened.repair(info["name"], dry_run)
            except PawlError as error:
                problem = str(error)
            done.append(Repaired(info["name"], problem))
    return done


def doctor(place: Place) -> dict[str, str]:
    """Tries what saves rely on in a folder or a store.

    Args:
        place: a folder or a URL.

    Returns:
        what was found, by what was tried.

    Raises:
        NotFoundError: there is no such folder.
    """
    return _pawl.doctor(_checks.path("place", place))
