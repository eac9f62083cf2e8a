# SPDX-License-Identifier: Apache-2.0
"""What pawl tells about checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar

from ._notebook import table

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointInfo:
    """The facts of one checkpoint, from its manifest. ``path`` is a path or a URL."""

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
    path: str
    run_id: str
    attempt: int
    time: datetime  # of the save, in UTC
    progress: dict[str, float]
    metrics: dict[str, float]
    score: float | None
    nbytes: int
    new_bytes: int
    plain_bytes: int  # of all files unpacked; as nbytes where none is compressed
    n_tensors: int
    n_files: int
    world_size: int
    blocked_seconds: float
    problem: str
    format: str
    level: str  # what it survives: "remote" the loss of this host, "local" a power cut, "none" nothing (memory)
    here: bool  # in the run's own folder, not only in a mirror
    n_mirrors: int  # that have it, verified
    latest: bool
    best: bool
    pinned: bool
    held: bool
    nonfinite: bool
    bad: bool
    denied: bool  # bad, for lack of permission to read it: it may well be good


def checkpoint_info(row: Mapping[str, Any]) -> CheckpointInfo:
    """A row of the library as a record."""
    return CheckpointInfo(**{**row, "time": datetime.fromtimestamp(row["time"], UTC)})


@dataclass(frozen=True, repr=False)
class Restored(Generic[T]):
    """What a restore brought back.

    ``state`` is the complete saved tree; its tensors are the caller's own where they were restored in place.
    ``fallbacks`` lists why newer checkpoints were skipped, ``report`` what did not fit (with ``strict=False``).
    """

    step: int
    id: int
    progress: dict[str, float]
    metrics: dict[str, float]
    metadata: Any
    path: str
    fallbacks: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)
    state: T = None  # type: ignore[assignment]

    @property
    def interrupted(self) -> bool:
        """True of what ``save_on_exception`` has saved: a state of after ``step``, maybe inside the next."""
        return isinstance(self.metadata, dict) and self.metadata.get("interrupted") is True

    def _repr_html_(self) -> str:
        names = ("step", "id", "metrics", "path", "fallbacks", "report")
        return table(("restored", ""), ((name, getattr(self, name)) for name in names if getattr(self, name)))

    def __repr__(self) -> str:
        """A line, whatever the size of the state."""
        parts = [f"step={self.step}", f"id={self.id}", f"path={self.path!r}"]
        if self.fallbacks:
            parts.append(f"skipped {len(self.fallbacks)}")
        if self.report:
            parts.append(f"did not fit {len(self.report)}")
        size = f" of {len(self.state)}" if isinstance(self.state, dict | list | tuple) else ""
        return f"Restored({', '.join(parts)}, state={type(self.state).__name__}{size})"


@dataclass(frozen=True)
class Event:
    """What has happened to a checkpoint; hooks of CheckpointManager get one.

    Attributes:
        kind: "saved", "uploaded", "deleted" or "failed".
        time: When it happened, in UTC.
        id: Id of the checkpoint.
        step: Step of the checkpoint; None where it is not known.
        name: Name of its folder.
        reason: Why it was deleted, as ``prune`` says it.
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
    """Damage: bytes ``begin`` to ``end`` of a file of checkpoint ``id``, and the first tensors in them."""

    id: int
    file: str
    begin: int
    end: int
    tensor: str
    message: str


@dataclass(frozen=True)
class Decision:
    """Whether retention keeps a checkpoint, and why."""

    id: int
    keep: bool
    reason: str


@dataclass(frozen=True)
class Converted:
    """What a conversion has written."""

    n_tensors: int
    n_files: int
    nbytes: int  # of tensors
    n_left: int  # values that are not tensors, which the format does not hold
