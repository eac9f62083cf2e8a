# SPDX-License-Identifier: Apache-2.0
"""The types of the arguments of CheckpointManager, for manager.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from .options import IO, Cast, Mirror, Naming, Packs, Ranks, Retention, Staging, Timeouts, Uploads
from .records import Event

Order = Literal["max", "min"]
Place = str | os.PathLike[str] | Mirror
Mirrors = Place | Sequence[Place]
Hook = Callable[[Event], object]


class Options(TypedDict, total=False):
    """The arguments of CheckpointManager that do not decide whether ``save`` may return None."""

    num_to_keep: int | None
    score_attribute: str | Sequence[str] | None
    score_order: Order | Sequence[Order]
    mirrors: Mirrors
    compression: str | None
    nonfinite: Literal["accept", "flag", "refuse"]
    read_only: bool
    overwrite: bool
    signals: bool | None
    save_on_exception: bool
    logger: object
    on_durable: Hook | None
    on_uploaded: Hook | None
    on_deleted: Hook | None
    on_error: Hook | None
    retention: Retention | None
    uploads: Uploads | None
    staging: Staging | None
    packs: Packs | None
    io: IO | None
    ranks: Ranks | None
    timeouts: Timeouts | None
    naming: Naming | None


class Reading(TypedDict, total=False):
    """The arguments of ``restore`` other than the state."""

    step: int | None
    id: int | None
    which: Literal["latest", "best", "good"]
    paths: Sequence[str] | None
    strict: bool
    rank_values: Literal["strict", "drop", "wrap"]
    share_reads: bool
    fallback: bool
    rename: Sequence[tuple[str, str]] | None
    cast: Cast
