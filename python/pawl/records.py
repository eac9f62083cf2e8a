# SPDX-License-Identifier: Apache-2.0
"""Records that describe checkpoints and the results of operations."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from ._notebook import cell, table

T = TypeVar("T")


def place_of(text: str) -> pathlib.Path | str:
    """A local path as ``pathlib.Path``: the library makes all of them absolute.

    A URL stays text.
    """
    return pathlib.Path(text) if os.path.isabs(text) else text


@dataclass(frozen=True)
class CheckpointInfo:
    """The facts of one checkpoint, from its manifest.

    Attributes:
        id: Its id; newer checkpoints have larger ones.
        step: Step that it was saved at.
        name: Name of its folder.
        path: Its path; a URL is a ``str``.
        run_id: Id of the run that saved it, 32 hex digits.
        attempt: Which start of the training saved it, from 1.
        time: When it was saved, in UTC.
        progress: Counters of the training.
        metrics: Its metrics, with those scored later.
        score: The first score attribute; None without one.
        nbytes: Bytes of its files.
        new_bytes: Bytes that this save wrote; the others are links.
        plain_bytes: Bytes of its files without compression.
        n_tensors: Number of tensors.
        n_files: Number of files.
        world_size: Number of processes that saved it.
        blocked_seconds: How long the save blocked the training.
        problem: Why it is bad; "" if it is not.
        format: Format of another program; "" of pawl's own.
        level: What it survives: "remote" the loss of this host, "local" a power cut, "none"
            (memory) nothing.
        here: Whether it is in the run's own folder, not only in a mirror.
        n_mirrors: Number of mirrors that have it, verified.
        latest: Whether it is the newest.
        best: Whether it is the best by the score attributes.
        pinned: Whether it is pinned.
        held: Whether a reader holds it.
        nonfinite: Whether its state holds NaN or Inf.
        bad: Whether its manifest is missing, damaged or unreadable.
        denied: Whether it is bad only for lack of permission to read it. It may well be valid.
    """

    _columns: ClassVar[Sequence[str]] = (
        "id",
        "step",
        "metrics",
        "nbytes",
        "new_bytes",
        "time",
        "latest",
        "best",
        "pinned",
    )

    id: int
    step: int
    name: str
    path: pathlib.Path | str
    run_id: str
    attempt: int
    time: datetime
    progress: dict[str, float]
    metrics: dict[str, float]
    score: float | None
    nbytes: int
    new_bytes: int
    plain_bytes: int
    n_tensors: int
    n_files: int
    world_size: int
    blocked_seconds: float
    problem: str
    format: str
    level: str
    here: bool
    n_mirrors: int
    latest: bool
    best: bool
    pinned: bool
    held: bool
    nonfinite: bool
    bad: bool
    denied: bool


def checkpoint_info(row: Mapping[str, Any]) -> CheckpointInfo:
    """A row of the library as a record."""
    fields = {name: value for name, value in row.items() if name != "damaged"}  # of a repair
    return CheckpointInfo(**{**fields, "path": place_of(row["path"]), "time": datetime.fromtimestamp(row["time"], UTC)})


@dataclass(frozen=True, repr=False)
class Restored(Generic[T]):
    """What a restore brought back.

    Attributes:
        step: Step of the checkpoint.
        id: Its id.
        progress: Counters of the training.
        metrics: Its metrics.
        metadata: The metadata that was saved with it.
        path: Its path; a URL is a ``str``.
        fallbacks: Why newer checkpoints were skipped.
        report: With ``strict=False``: what did not fit.
        state: The complete saved tree; its tensors are the caller's own where they were restored in
            place.
    """

    step: int
    id: int
    progress: dict[str, float]
    metrics: dict[str, float]
    metadata: Any
    path: pathlib.Path | str
    fallbacks: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)
    state: T = None  # type: ignore[assignment]

    @property
    def interrupted(self) -> bool:
        """True if ``save_on_exception`` saved it: a state from after ``step``, maybe inside the
        next.
        """
        return isinstance(self.metadata, dict) and self.metadata.get("interrupted") is True

    if not TYPE_CHECKING:

        def __getitem__(self, key: object) -> Any:
            raise TypeError(f"what was saved is in the attribute 'state': write restored.state[{key!r}]")

    def _repr_html_(self) -> str:
        names = ("step", "id", "metrics", "path", "fallbacks", "report")
        rows = ((name, cell(name, getattr(self, name))) for name in names)
        return table(("restored", ""), (row for row in rows if row[1] not in ("", (), [])))

    def __repr__(self) -> str:
        """One line, whatever the size of the state."""
        parts = [f"step={self.step}", f"id={self.id}", f"path={str(self.path)!r}"]
        if self.fallbacks:
            parts.append(f"skipped {len(self.fallbacks)}")
        if self.report:
            parts.append(f"did not fit {len(self.report)}")
        size = f" of {len(self.state)}" if isinstance(self.state, dict | list | tuple) else ""
        return f"Restored({', '.join(parts)}, state={type(self.state).__name__}{size})"


@dataclass(frozen=True)
class Event:
    """Something that happened to a checkpoint. Hooks of CheckpointManager get one.

    Attributes:
        kind: "saved", "uploaded", "deleted" or "failed".
        time: When it happened, in UTC.
        id: Id of the checkpoint.
        step: Step of the checkpoint; None where it is not known.
        name: Name of its folder.
        reason: Why it was deleted, as ``prune`` reports it.
        mirror: The mirror, of an upload.
        error: Message of a failure.
        nbytes: Bytes of its files.
        seconds: Duration of the save or upload.
        blocked_seconds: For how long the save blocked the training.
    """

    kind: str
    time: datetime
    id: int
    step: int | None
    name: str
    reason: str
    mirror: str
    error: str
    nbytes: int
    seconds: float
    blocked_seconds: float


@dataclass(frozen=True)
class Finding:
    """Damage in a file of a checkpoint.

    Attributes:
        id: Id of the checkpoint.
        file: Name of the file in the checkpoint's folder.
        begin: First damaged byte.
        end: The byte after the last one.
        tensor: Names of the first tensors in them.
        message: What is wrong.
        root: Folder of the run, where several may have been verified; a URL is a ``str``.
    """

    id: int
    file: str
    begin: int
    end: int
    tensor: str
    message: str
    root: pathlib.Path | str = ""


@dataclass(frozen=True)
class Decision:
    """Whether retention keeps a checkpoint.

    Attributes:
        id: Id of the checkpoint.
        keep: Whether it stays.
        reason: Which rule decided: "latest", "best 1 of 3 by accuracy".
    """

    id: int
    keep: bool
    reason: str


@dataclass(frozen=True)
class Converted:
    """What a conversion has written.

    Attributes:
        n_tensors: Number of tensors.
        n_files: Number of files.
        nbytes: Bytes of the tensors.
        n_left: Number of values that are not tensors, which the format does not hold.
    """

    n_tensors: int
    n_files: int
    nbytes: int
    n_left: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that was not read.

    Attributes:
        dtype: Its dtype, named as in safetensors: "F32", "BF16".
        shape: Its extents.
        kind: Kind of the array that was saved, such as "torch" or "numpy".
        index: Its number in the checkpoint.
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str
    index: int


@dataclass(frozen=True)
class Difference:
    """A value that differs.

    Attributes:
        path: Its path, as ``tree`` and ``pawl show`` have it.
        change: "added", "removed" or "changed".
        was: Dtype and shape of a tensor, else the value as text; None if it does not exist.
        now: The same in the second checkpoint.
        max_abs: Largest absolute difference of the elements; None unless both are tensors of one
            dtype and shape.
        max_rel: Largest relative difference of the elements; None as ``max_abs``.
    """

    path: str
    change: Literal["same", "added", "removed", "changed"]
    was: str | None
    now: str | None
    max_abs: float | None
    max_rel: float | None


@dataclass(frozen=True)
class Copied:
    """A checkpoint that was copied.

    Attributes:
        id: Its id.
        name: Name of its folder.
        nbytes: Bytes of its files.
        was_there: Whether the target had it already.
        sent_bytes: Bytes that were sent.
        problem: Why it was not copied; "" if it was.
    """

    id: int
    name: str
    nbytes: int
    was_there: bool
    sent_bytes: int
    problem: str


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Attributes:
        count: Number of files and folders.
        nbytes: Bytes that were freed.
    """

    count: int
    nbytes: int


@dataclass(frozen=True)
class Repaired:
    """A checkpoint whose manifest was rebuilt, or could be.

    Attributes:
        name: Name of its folder.
        problem: Why it cannot be repaired; "" if it can.
    """

    name: str
    problem: str


@dataclass(frozen=True)
class Answer:
    """What ``doctor`` has found.

    Attributes:
        about: What was tried, such as "hard links" or "free space".
        found: The result as text: "yes", "no: ...", "252.0 GiB".
        works: Whether a feature works; None for other facts.
    """

    about: str
    found: str
    works: bool | None
