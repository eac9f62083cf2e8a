# SPDX-License-Identifier: Apache-2.0
"""What pawl tells about checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointInfo:
    """The facts of one checkpoint, from its manifest."""

    id: int
    step: int
    name: str
    path: str
    run_id: str
    attempt: int
    time: float
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
