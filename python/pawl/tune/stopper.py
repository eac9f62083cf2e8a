# SPDX-License-Identifier: Apache-2.0
"""When a trial, or the whole experiment, has had enough: as a dict of limits, a function, or one of these."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from .. import _checks
from .._pawl import UsageError


class Stopper:
    """``__call__`` says whether a trial stops after a result, ``stop_all`` whether everything does."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__")

    def stop_all(self) -> bool:
        return False


class FunctionStopper(Stopper):
    """A function of the trial's id and the result."""

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))


class MaximumIterationStopper(Stopper):
    """Stops a trial after so many results."""

    def __init__(self, max_iter: int) -> None:
        self._most = _checks.whole("max_iter", max_iter)
        self._n: dict[str, int] = defaultdict(int)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._n[trial_id] += 1
        return int(result.get("training_iteration", self._n[trial_id])) >= self._most


class TrialPlateauStopper(Stopper):
    """Stops a trial whose metric has come to rest: a standard deviation of at most ``std`` over ``num_results``."""

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        if metric_threshold is not None and mode not in ("min", "max"):
            raise UsageError(f'mode must be "min" or "max" where metric_threshold is given, received {mode!r}')
        self._metric, self._std, self._grace = metric, std, grace_period
        self._threshold, self._mode = metric_threshold, mode
        self._n: dict[str, int] = defaultdict(int)
        self._last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = float(result[self._metric])
        last = self._last[trial_id]
        last.append(value)
        self._n[trial_id] += 1
        if self._n[trial_id] < self._grace or len(last) < (last.maxlen or 0):
            return False
        if self._threshold is not None:
            good = value <= self._threshold if self._mode == "min" else value >= self._threshold
            if not good:
                return False
        return statistics.pstdev(last) <= self._std


class TimeoutStopper(Stopper):
    """Stops everything after so many seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout, self._begin = _checks.seconds("timeout", timeout), time.monotonic()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return time.monotonic() - self._begin >= self._timeout


class CombinedStopper(Stopper):
    """Stops where one of them does."""

    def __init__(self, *stoppers: Stopper) -> None:
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        answers = [one(trial_id, result) for one in self._stoppers]  # each of them sees each result
        return any(answers)

    def stop_all(self) -> bool:
        return any(one.stop_all() for one in self._stoppers)


def split(stop: object) -> tuple[dict[str, float], Stopper | None]:
    """The limits of the document, and what is asked for each result."""
    if stop is None:
        return {}, None
    if isinstance(stop, Mapping):
        for key, value in stop.items():
            if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"stop must be a dict of numbers by the names of results, received {key!r}: {value!r}")
        return dict(stop), None
    if isinstance(stop, Stopper):
        return {}, stop
    if isinstance(stop, list | tuple) and all(isinstance(one, Stopper) for one in stop):
        return {}, CombinedStopper(*stop)
    if callable(stop):
        return {}, FunctionStopper(stop)
    raise UsageError(f"stop must be a dict, a function of trial_id and result, or a Stopper, received {stop!r}")
