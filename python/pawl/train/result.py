# SPDX-License-Identifier: Apache-2.0
"""What a training has given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._pawl import UnsupportedError
from .checkpoint import Checkpoint


class TrainingFailedError(RuntimeError):
    """The workers have failed more often than ``max_failures`` allows. ``fit`` raises it.

    ``reason`` is the last failure's in one line, ``reasons`` those of all of them, ``traceback`` the worker's.
    ``result`` is what the training has given until then: its checkpoints and metrics; None where the workers have not
    found each other.
    """

    def __init__(self, reason: str, reasons: list[str], traceback: str = "") -> None:
        super().__init__(reason if not traceback else f"{reason}\n{traceback}")
        self.reason, self.reasons, self.traceback = reason, reasons, traceback
        self.result: Result | None = None


@dataclass(frozen=True)
class Result:
    """``checkpoint`` is the newest, ``best_checkpoints`` all that are kept, the best first, each with its metrics (by
    the score attribute; without one the newest first). ``metrics`` are the last reported ones. ``error`` is None, but
    in the ``result`` of a TrainingFailedError, where it is that error. ``failures`` are the reasons of all failures."""

    checkpoint: Checkpoint | None
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]]
    metrics: dict[str, Any] | None
    path: str
    error: TrainingFailedError | None = None
    metrics_history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    failures: list[str] = field(default_factory=list)

    @property
    def metrics_dataframe(self) -> Any:
        """A row for each report, as a DataFrame of pandas, which must be installed; ``metrics_history`` has the same as
        dicts."""
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise UnsupportedError(
                "metrics_dataframe needs pandas, which is not installed; metrics_history has the same rows as dicts"
            ) from None
        return pandas.DataFrame(self.metrics_history)
