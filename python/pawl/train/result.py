# SPDX-License-Identifier: Apache-2.0
"""The results of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._pawl import UnsupportedError
from .checkpoint import Checkpoint


class TrainingFailedError(RuntimeError):
    """The workers have failed more often than ``max_failures`` allows. ``fit`` raises it.

    ``result`` has the checkpoints and metrics until then. It is None if the workers did not find
    each other.

    Args:
        reason: Reason of the last failure, in one line.
        reasons: Those of all failures.
        traceback: The worker's traceback. Default: "".
    """

    def __init__(self, reason: str, reasons: list[str], traceback: str = "") -> None:
        super().__init__(reason if not traceback else f"{reason}\n{traceback}")
        self.reason, self.reasons, self.traceback = reason, reasons, traceback
        self.result: Result | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.reasons, self.traceback), self.__dict__


@dataclass(frozen=True)
class Result:
    """The results of a training run.

    Attributes:
        checkpoint: The newest checkpoint; None if there is none.
        best_checkpoints: All kept checkpoints with their metrics, from the best to the worst by the
            score attribute. Without a score attribute, from the newest to the oldest.
        metrics: The last reported metrics; None before a report.
        path: The run's folder or URL.
        error: The TrainingFailedError that this result belongs to, or None.
        metrics_history: The metrics of all reports.
        failures: The reasons of all failures.
    """

    checkpoint: Checkpoint | None
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]]
    metrics: dict[str, Any] | None
    path: str
    error: TrainingFailedError | None = None
    metrics_history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    failures: list[str] = field(default_factory=list)

    @property
    def metrics_dataframe(self) -> Any:
        """A DataFrame of pandas with a row for each report.

        pandas must be installed. ``metrics_history`` has the same rows as dicts.
        """
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise UnsupportedError(
                "metrics_dataframe needs pandas, which is not installed; metrics_history has the same rows as dicts"
            ) from None
        return pandas.DataFrame(self.metrics_history)
