# SPDX-License-Identifier: Apache-2.0
"""What pawl tells about checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    n_tensors: int
    n_files: int
    world_size: int
    blocked_seconds: float
    problem: str
    latest: bool
    best: bool
    pinned: bool
    held: bool
    nonfinite: bool
    bad: bool


@dataclass(frozen=True)
class Restored:
    """What a restore brought back.

    ``state`` is the whole saved tree; its tensors are the caller's own where they were restored in place. ``fallbacks``
    says why newer checkpoints were passed over, ``report`` what did not fit (with ``strict=False``).
    """

    step: int
    id: int
    progress: dict[str, float]
    metrics: dict[str, float]
    metadata: Any
    path: str
    fallbacks: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)
    state: Any = None


@dataclass(frozen=True)
class Decision:
    """Whether retention keeps a checkpoint, and why."""

    id: int
    keep: bool
    reason: str
