# SPDX-License-Identifier: Apache-2.0
"""The work of the command ``pawl`` as functions: show checkpoints, compare, verify, copy, clean up,
repair.

A place is what ``pawl.load`` takes: a checkpoint's folder or URL, or RUN@SELECTOR ("runs/demo@400",
"runs/demo@best"). ``progress`` is called on the calling thread with the amount done and the total,
a few times a second and at the end. An exception that it raises, or Ctrl+C, cancels the work. The
amount is in bytes if bytes are read or written, else in checkpoints. All errors are ``PawlError``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, Literal

from . import _checks, _files, _options, _pawl, checkpoint
from ._names import explained, listed
from ._notebook import Rows
from ._pawl import AccessError, NotFoundError, PawlError, UsageError
from .options import Retention
from .records import Answer, Cleaned, Copied, Decision, Difference, Finding, Repaired, TensorInfo, place_of

__all__ = [
    "Answer",
    "Cleaned",
    "Copied",
    "Difference",
    "Repaired",
    "TensorInfo",
    "copy",
    "diff",
    "doctor",
    "gc",
    "prune",
    "read",
    "repair",
    "tree",
    "verify",
]

Place = str | os.PathLike[str]
Progress = Callable[[int, int], object]
One = slice | int | EllipsisType
Index = Sequence[One] | One

_READ_BYTES = 1 << 26  # between two reports of progress
_INTEGER = re.compile("-?[0-9]{1,20}")  # a key or a position; Python refuses numbers of any length
_MAX_DEPTH = 32  # levels below a folder of runs
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
_WORKS = {"yes": True, "no": False}  # by the first word of the result


@contextlib.contextmanager
def _opened(place: str) -> Iterator[tuple[_pawl.Run, int]]:
    """The run of one checkpoint, and its id. The checkpoint cannot be deleted within the block."""
    selector = _pawl.split_address(place)[1]
    run = _pawl.Run(place, single=True, read_only=True) if selector is None else checkpoint.run_of(place)
    try:
        id = checkpoint.only(run, place)["id"] if selector is None else run.find(selector)
        hold = None
        while hold is None:
            try:
                hold = run.hold(id)
            except NotFoundError:
                run.reload()
                if selector is None or id == run.find(selector):
                    break
                id = run.find(selector)
            except PawlError:  # a read-only store, where nothing is deleted either
                break
        try:
            yield run, id
        finally:
            if hold is not None:
                hold.close()
    finally:
        run.close()


@contextlib.contextmanager
def _edited(place: Place, *, read_only: bool = False, **options: Any) -> Iterator[_pawl.Run]:
    run = _options.open_run(_checks.path("run", place), {"read_only": read_only, "maintenance": True, **options})
    try:
        yield run
    finally:
        run.close()


def _runs(text: str) -> list[str] | None:
    """The runs at a place: the run itself, or those below a folder.

    None if it names a checkpoint.
    """
    if _pawl.split_address(text)[1] is not None:
        return None
    kind = _pawl.kind_of(text)
    if kind == 1:
        return [text]
    top = text.removeprefix("file://")
    if kind == 2 or not os.path.isdir(top):
        return None
    found = []
    for folder, below, files in _files.walk(top):
        if "run.json" in files or os.path.relpath(folder, top).count(os.sep) >= _MAX_DEPTH:
            below.clear()
        if "run.json" in files:
            found.append(folder)
    return sorted(found, key=_checks.natural) or None


def _readable(run: _pawl.Run) -> list[_pawl.Info]:
    """The checkpoints that are not damaged. Raises AccessError if one may not be read."""
    found = run.list(True)
    for info in found:
        if info["denied"]:
            raise AccessError(f"{info['name']}: {info['problem']}")
    return [info for info in found if not info["bad"]]


def _describe(run: _pawl.Run, id: int) -> Any:
    return run.describe(f"id:{id}", lambda index, kind, dtype, shape, _: TensorInfo(dtype, shape, kind, index))[0]


@explained
def tree(place: Place, *, progress: Progress | None = None) -> Any:
    """The state of a checkpoint with a ``TensorInfo`` in place of each tensor. Reads manifests
    only.

    Args:
        place: A checkpoint; or a run, or a folder of runs.
        progress: Called with the number of checkpoints done and of all.

    Returns:
        Dicts, lists, tuples and plain values as they were saved. For a run, a dict of such trees by
        step. For a folder of runs, a dict of those dicts by the runs' paths in the folder.

    Raises:
        NotFoundError: There is no checkpoint.
        CorruptError: The manifest is damaged. Of a run, damaged checkpoints are left out.
        AccessError: A checkpoint may not be read.
    """
    text = _checks.path("place", place)
    runs = _runs(text)
    report = progress or (lambda done, total: None)
    if runs is None:
        with _opened(text) as (run, id):
            found = _describe(run, id)
        report(1, 1)
        return found
    trees: dict[str, dict[int, Any]] = {}
    with contextlib.ExitStack() as stack:
        opened = {root: stack.enter_context(_edited(root, read_only=True)) for root in runs}
        todo = [(root, info) for root, run in opened.items() for info in _readable(run)]
        for done, (root, info) in enumerate(todo):
            report(done, len(todo))
            try:
                trees.setdefault(root, {})[info["step"]] = _describe(opened[root], info["id"])
            except NotFoundError:  # deleted meanwhile: there is a newer one
                opened[root].reload()
                newest = max(known["id"] for at, known in todo if at == root)
                todo += [(root, new) for new in _readable(opened[root]) if new["id"] > newest]
        report(len(todo), len(todo))
    if runs == [text]:
        return trees.get(text, {})
    return {os.path.relpath(root, text.removeprefix("file://")): trees.get(root, {}) for root in runs}


def _find(place: str, found: Any, path: str) -> TensorInfo:
    for part in path.split("/"):
        key = part.replace("%2F", "/").replace("%25", "%")
        if isinstance(found, dict) and (key in found or (_INTEGER.fullmatch(key) and int(key) in found)):
            found = found[key if key in found else int(key)]
        elif isinstance(found, list | tuple) and _INTEGER.fullmatch(key) and 0 <= int(key) < len(found):
            found = found[int(key)]
        else:
            names = type(found).__name__
            if isinstance(found, dict):
                names = listed(found)
            elif isinstance(found, list | tuple):
                names += f" of {len(found)}"
            raise NotFoundError(f"{place}: '{path}': no '{key}'; there is: {names}")
    if not isinstance(found, TensorInfo):
        raise UsageError(f"{place}: '{path}' is not a tensor; pawl.tree shows what there is")
    return found


def _box(path: str, shape: tuple[int, ...], index: Index) -> tuple[list[int], list[int], list[int]]:
    """Offsets and extents in the tensor, and the shape of the result.

    The result lacks the dimensions whose index is a number.
    """
    given = list(index) if isinstance(index, Sequence) else [index]
    if (at := next((at for at, one in enumerate(given) if one is ...), None)) is not None:
        given[at : at + 1] = [slice(None)] * max(len(shape) - len(given) + 1, 0)
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
            number = _checks.index(one)
            if number is None:
                raise UsageError(f"'{path}': expected numbers, slices or ..., received {_checks.shown(one)}")
            if not -size <= number < size:
                raise UsageError(f"'{path}': index {number} is outside of a dimension of {size}")
            start, stop = number % size, number % size + 1
        offsets.append(start)
        extents.append(max(stop - start, 0))
    return offsets, extents, result


def _empty(info: TensorInfo, extents: list[int]) -> Any:
    """An empty tensor of torch for tensors of torch and dtypes that NumPy lacks, else a NumPy
    array.
    """
    if info.kind.startswith("torch") or info.dtype not in _NUMPY:
        import torch

        from . import _dcp

        return torch.empty(_dcp.halves(info.dtype, tuple(extents)), dtype=_dcp.DTYPES[info.dtype])
    import numpy

    return numpy.empty(extents, dtype=_NUMPY[info.dtype])


def _read_rows(
    run: _pawl.Run, id: int, tensor: int, offsets: list[int], extent: int, target: Any, progress: Progress
) -> None:
    """Reads a box some rows at a time, to report progress in between.

    extent: its first extent, in elements of pawl.
    """
    n, total = target.shape[0], target.nbytes
    each = extent // n  # elements in a row: two in a byte if float4 has one dimension
    rows = max(1, _READ_BYTES * n // total)
    for first in range(0, n, rows):
        part = target[first : first + rows]
        run.read(f"id:{id}", [(tensor, (offsets[0] + first * each, *offsets[1:]), part)])
        progress(min(first + rows, n) * (total // n), total)


@explained
def read(
    place: Place,
    path: str,
    index: Index = (),
    *,
    progress: Progress | None = None,
) -> Any:
    """Reads one tensor of a checkpoint, or a part of it. Needs memory for the result and a few
    blocks.

    Args:
        place: The checkpoint.
        path: Path of the tensor, as ``tree`` and ``pawl show`` have it: "model/layers.0.weight".
        index: A number or a slice of step 1 for each dimension, from the first. ``...`` stands for
            the dimensions between. Default: (), all of it.
        progress: Called with the bytes done and all bytes of the result.

    Returns:
        A tensor of torch, or a NumPy array if it was saved from NumPy and the like. The bytes are
        compared with their checksums.

    Raises:
        NotFoundError: There is no such checkpoint or tensor.
        UsageError: The index does not fit.
        CorruptError: The bytes are damaged.
    """
    text = _checks.path("place", place)
    with _opened(text) as (run, id):
        info = _find(text, _describe(run, id), path)
        offsets, extents, shape = _box(path, info.shape, index)
        if info.dtype == "F4" and offsets and (offsets[-1] % 2 or extents[-1] % 2):
            raise UsageError(f"'{path}': a byte holds two elements of float4; read an even number from an even one")
        target = _empty(info, extents)
        if progress is not None and extents and 0 not in extents:
            _read_rows(run, id, info.index, offsets, extents[0], target, progress)
        elif 0 not in extents:
            run.read(f"id:{id}", [(info.index, tuple(offsets), target)])
        return target.reshape(tuple(shape)) if len(shape) != len(extents) else target


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


@explained
def diff(a: Place, b: Place, *, progress: Progress | None = None) -> Rows[Difference]:
    """What changed from checkpoint ``a`` to ``b``, in the order of paths. Tensors are streamed and
    verified.

    Args:
        a: A checkpoint.
        b: Another one, maybe of another run.
        progress: Called with the bytes done and all bytes.

    Returns:
        What differs; [] if they are equal bit for bit.

    Raises:
        NotFoundError: One does not exist.
        CorruptError: One is damaged.
    """
    with _opened(_checks.path("a", a)) as (first, id), _opened(_checks.path("b", b)) as (second, other):
        rows = first.diff(id, second, other, progress)
    return Rows(
        Difference(path, _CHANGES[change], was, now, _number(max_abs), _number(max_rel))
        for path, change, was, now, max_abs, max_rel in rows
    )


class _Sum:
    """Progress over several tasks. Each task counts on from the end of the task before it."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._before, self._last = 0, 0

    def __call__(self, done: int, total: int) -> None:
        self._last = self._before + done
        if self._progress is not None:
            self._progress(self._last, self._before + total)

    def next(self) -> None:
        """Begins the next task."""
        self._before = self._last

    def end(self) -> None:
        """Reports that all work is done, or that there was none."""
        if self._progress is not None:
            self._progress(self._last, self._last)


@explained
def verify(place: Place, *, progress: Progress | None = None) -> Rows[Finding]:
    """Reads every byte and compares it with its checksum.

    Args:
        place: A checkpoint; or a run, or a folder of runs, of which all checkpoints are verified.
        progress: Called with the bytes done and all bytes. With several runs, the total does not
            yet include the runs that follow.

    Returns:
        The damage; [] if every byte is as it was written.

    Raises:
        NotFoundError: There is no checkpoint.
    """
    text = _checks.path("place", place)
    runs = _runs(text)
    if runs is None:
        with _opened(text) as (run, id):
            return Rows(Finding(**row, root=place_of(run.root)) for row in run.verify(id, progress))
    found: Rows[Finding] = Rows()
    sums = _Sum(progress)
    for root in runs:
        with _edited(root, read_only=True) as run:
            found += [Finding(**row, root=place_of(run.root)) for row in run.verify(0, sums)]
        sums.next()
    return found


@explained
def copy(place: Place, to: Place, *, progress: Progress | None = None) -> Rows[Copied]:
    """Copies a checkpoint or a complete run to a path or URL. Every byte is verified; a repeated
    call resumes.

    Args:
        place: A checkpoint, which becomes a single one; or a run, which is updated if it exists
            there.
        to: A path or URL.
        progress: Called with the bytes done and all bytes.

    Returns:
        What happened to the checkpoint, or to each one of a run.

    Raises:
        ExistsError: Something else is at ``to``.
        CorruptError: The checkpoint is damaged.
        ConflictError: The target has another checkpoint with this id.
    """
    text, target = _checks.path("place", place), _checks.path("to", to)
    if _pawl.split_address(text)[1] is None and _pawl.kind_of(text) == 1:
        with _edited(text, read_only=True) as run:
            return Rows(Copied(*row) for row in run.copy(None, target, progress))
    with _opened(text) as (run, id):
        return Rows(Copied(*row) for row in run.copy(id, target, progress))


def _count_removed(run: _pawl.Run, progress: Progress, total: int) -> Progress:
    """A progress function that counts the checkpoints that the run has deleted."""
    done = 0

    def report(_done: int, _total: int) -> None:
        nonlocal done
        while (text := run.event()) is not None:
            done += json.loads(text)["what"] == "remove"
        progress(done, total)

    return report


def _check_scores(run: _pawl.Run, names: Sequence[str]) -> None:
    known = {name for info in run.list() for name in info["metrics"]}
    for name in names:
        if name not in known:
            there = listed(sorted(known)) or "there are none"
            raise UsageError(f"{run.root}: no checkpoint has the metric '{name}' (expected one of: {there})")


@explained
def prune(
    run: Place,
    *,
    num_to_keep: int | None = None,
    score_attribute: str | Sequence[str] | None = None,
    score_order: Literal["max", "min"] | Sequence[Literal["max", "min"]] = "max",
    retention: Retention | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Rows[Decision]:
    """Deletes the checkpoints of a run that no rule keeps. Pinned and held ones always stay.

    Args:
        run: Its folder or URL; no training may have it open.
        num_to_keep: Keep the newest N, or with ``score_attribute`` the best N and the latest.
            Default: None.
        score_attribute: Name of a metric, or several, compared in this order. Default: None.
        score_order: "max" or "min", for all score attributes or for each. Default: "max".
        retention: More rules. Default: None.
        dry_run: Only decide. Default: False.
        progress: Called with the number of checkpoints deleted and of those to delete.

    Returns:
        A decision for each checkpoint, oldest first.

    Raises:
        UsageError: There is no rule, or no checkpoint has the metric.
        BusyError: A training run has the run open.
    """
    if num_to_keep is None and retention is None:
        raise UsageError("prune: no rule was given, expected num_to_keep or retention=pawl.Retention(...)")
    if num_to_keep == 0:
        raise UsageError("prune: num_to_keep must be 1 or more; pawl.Retention has other rules")
    rules = _options.retention(num_to_keep, score_attribute, score_order, retention)
    with _edited(run, read_only=dry_run, **rules) as opened:
        _check_scores(opened, rules["retention.score_attributes"])
        rows = opened.prune(True)
        report = _count_removed(opened, progress, sum(not keep for _, keep, _ in rows)) if progress else None
        if not dry_run:
            rows = opened.prune(False, report)
        return Rows(Decision(*row) for row in rows)


@explained
def gc(run: Place, *, dry_run: bool = False, progress: Progress | None = None) -> Cleaned:
    """Removes what crashes left behind in a run.

    Args:
        run: Its folder or URL; no training may have it open.
        dry_run: Change nothing. Default: False.
        progress: Called with the bytes freed and all bytes to free.

    Returns:
        The number of files and folders, and their bytes.

    Raises:
        BusyError: A training run has it open.
    """
    with _edited(run, read_only=True) as opened:
        before = Cleaned(*opened.gc(True))
    if dry_run:
        return before
    report = None if progress is None else lambda done, _total: progress(min(done, before.nbytes), before.nbytes)
    with _edited(run) as opened:
        return Cleaned(*opened.gc(False, report))


@explained
def repair(run: Place, *, dry_run: bool = False, progress: Progress | None = None) -> Rows[Repaired]:
    """Rebuilds lost and damaged manifests from the files of tensors.

    Args:
        run: Its folder or URL; no training may have it open.
        dry_run: Only find out what would work. Default: False.
        progress: Called with the bytes read and all bytes of the checkpoints so far.

    Returns:
        The checkpoints whose manifest is damaged, each with what happened. One of a newer format,
        or that may not be read, is left alone.

    Raises:
        BusyError: A training run has it open.
    """
    done: Rows[Repaired] = Rows()
    sums = _Sum(progress)
    with _edited(run, read_only=dry_run) as opened:
        for info in [info for info in opened.list(True) if info["damaged"]]:
            problem = ""
            try:
                opened.repair(info["name"], dry_run, sums)
            except _pawl.CancelledError:
                raise
            except PawlError as error:
                problem = str(error)
            sums.next()
            done.append(Repaired(info["name"], problem))
    sums.end()
    return done


@explained
def doctor(place: Place, *, progress: Progress | None = None) -> Rows[Answer]:
    """Tests the features of a folder or a store that saves rely on.

    Args:
        place: A folder or a URL.
        progress: Called with (0, 1) a few times a second, and with (1, 1) at the end.

    Returns:
        What was found.

    Raises:
        NotFoundError: There is no such folder.
    """
    report = None if progress is None else lambda _done, _total: progress(0, 1)
    text = _checks.path("place", place)
    try:
        found = _pawl.doctor(text, report)
    except NotFoundError:
        if not checkpoint.is_far(text):
            _pawl.explain_address(text)
        raise
    if progress is not None:
        progress(1, 1)
    return Rows(Answer(about, text, _WORKS.get(re.split(r"\W", text, maxsplit=1)[0])) for about, text in found.items())
