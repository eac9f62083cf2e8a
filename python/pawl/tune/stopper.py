# SPDX-License-Identifier: Apache-2.0
"""Stoppers: when a trial or the experiment ends.

A dict of limits or a function is possible, too.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from .. import _checks, _files
from .._pawl import UsageError
from ._json import value_at

__all__ = [
    "CombinedStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
]

_now = time.monotonic


class Stopper:
    """Base of the stoppers: ``stopper(trial_id, result)`` returns whether the trial ends after this
    result.
    """

    _arguments: Any = None  # constructor arguments as JSON, for the stoppers of this module

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__")

    def stop_all(self) -> bool:
        """Whether all trials end now.

        Returns:
            True to end the experiment. No further trial starts, not even when it is resumed.
        """
        return False

    def get_state(self) -> Any:
        """The state that is stored with the experiment.

        Returns:
            A value that JSON can hold; None for nothing.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Called when an experiment begins or continues.

        Args:
            state: What ``get_state`` returned last; None at the beginning.
        """


class FunctionStopper(Stopper):
    """Ends a trial when a function returns True.

    Args:
        function: A function of the trial's id and the result.
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))


class MaximumIterationStopper(Stopper):
    """Ends a trial after a number of results.

    Args:
        max_iter: Number of results.
    """

    def __init__(self, max_iter: int) -> None:
        self._most = _checks.whole("max_iter", max_iter)
        self._arguments = {"max_iter": self._most}
        self._n: dict[str, int] = defaultdict(int)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._n[trial_id] += 1
        return int(result.get("training_iteration", self._n[trial_id])) >= self._most


def _is_first(result: Mapping[str, Any]) -> bool:
    """Whether its trial began at the beginning, not from a checkpoint, as that of a resumed experiment may."""
    return bool(result.get("iterations_since_restore") == result.get("training_iteration"))


class TrialPlateauStopper(Stopper):
    """Ends a trial whose metric no longer changes.

    The first result of a trial must have the metric. A later one without it counts for the grace
    period only. Values that are not finite count as changes.

    Args:
        metric: Name of the metric; ``"a/b"`` is a nested one.
        std: Largest standard deviation that counts as no change. Default: 0.01.
        num_results: Number of results that it is computed from. Default: 4.
        grace_period: No trial ends before this many results. Default: 4.
        metric_threshold: Only end a trial that has reached this value. Default: None.
        mode: "min" or "max", for the threshold. Default: None.

    Raises:
        UsageError: A threshold needs a mode.
    """

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
        self._arguments = {
            "metric": metric,
            "std": std,
            "num_results": num_results,
            "grace_period": grace_period,
            "metric_threshold": metric_threshold,
            "mode": mode,
        }
        self._metric, self._std, self._grace = metric, std, grace_period
        self._threshold, self._mode = metric_threshold, mode
        self._n: dict[str, int] = defaultdict(int)
        self._last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._n[trial_id] += 1
        value = value_at(result, self._metric)
        if not isinstance(value, int | float):
            if self._n[trial_id] == 1 and _is_first(result):
                names = ", ".join(f"'{name}'" for name in result if name != "config") or "nothing"
                raise UsageError(
                    f"{trial_id}: its first result has no {'metric' if value is None else 'number'} '{self._metric}', "
                    f"by which the trial ends (TrialPlateauStopper); it has {names}"
                )
            return False  # e.g. a result between two validations
        last = self._last[trial_id]
        last.append(float(value))
        if self._n[trial_id] < self._grace or len(last) < (last.maxlen or 0):
            return False
        if self._threshold is not None:
            good = value <= self._threshold if self._mode == "min" else value >= self._threshold
            if not good:
                return False
        return all(map(math.isfinite, last)) and statistics.pstdev(last) <= self._std


class TimeoutStopper(Stopper):
    """Ends everything after some time. When an experiment is resumed, the time before it was
    stopped counts; the time in between does not.

    Args:
        timeout: Seconds, or a duration.

    Raises:
        UsageError: It is not a duration.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout, self._begin = _checks.seconds("timeout", timeout), _now()
        self._before = 0.0
        self._arguments = {"timeout": self._timeout}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def _seconds(self) -> float:
        return self._before + _now() - self._begin

    def stop_all(self) -> bool:
        return self._seconds() >= self._timeout

    def get_state(self) -> Any:
        return self._seconds()

    def set_state(self, state: Any) -> None:
        is_time = isinstance(state, int | float) and math.isfinite(state) and state >= 0
        self._before, self._begin = float(state) if is_time else 0.0, _now()


class CombinedStopper(Stopper):
    """Ends a trial, or everything, when one of several stoppers does.

    Args:
        stoppers: The stoppers.
    """

    def __init__(self, *stoppers: Stopper) -> None:
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        answers = [one(trial_id, result) for one in self._stoppers]  # each must see each result
        return any(answers)

    def stop_all(self) -> bool:
        return any(one.stop_all() for one in self._stoppers)

    def get_state(self) -> Any:
        states = [one.get_state() for one in self._stoppers]
        return states if any(state is not None for state in states) else None

    def set_state(self, state: Any) -> None:
        states = (
            state if isinstance(state, list) and len(state) == len(self._stoppers) else [None] * len(self._stoppers)
        )
        for one, its in zip(self._stoppers, states, strict=True):
            one.set_state(its)


_KINDS = {kind.__name__: kind for kind in (MaximumIterationStopper, TrialPlateauStopper, TimeoutStopper)}


def _made(stopper: Stopper) -> Any:
    """What ``_make`` needs to make the stopper again; None if only the program can make it."""
    if type(stopper) is CombinedStopper:
        parts = [_made(one) for one in stopper._stoppers]
        return None if None in parts else parts
    if _KINDS.get(type(stopper).__name__) is not type(stopper):
        return None
    try:
        return {type(stopper).__name__: json.loads(json.dumps(stopper._arguments))}
    except (TypeError, ValueError):
        return None


def _make(made: Any) -> Stopper:
    if isinstance(made, list):
        return CombinedStopper(*map(_make, made))
    [(kind, arguments)] = made.items()
    return _KINDS[kind](**arguments)


def _read(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, "stopper.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def again(folder: str, stop: object) -> Stopper | None:
    """The stopper of a resumed experiment: ``stop``, or else the one that it began with."""
    limits, given = split(stop)
    if limits:
        raise UsageError(f"stop: the limits of {folder} are those that it began with; give a function or a Stopper")
    found = _read(folder)
    if given is not None or "kind" not in found:
        return given
    if found.get("made") is None:
        raise UsageError(f"{folder} began with a {found['kind']}, which only the program can make: give it as stop=")
    try:
        return _make(found["made"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{folder}: stopper.json is damaged: give the stopper as stop=") from None


class Kept:
    """Stores a stopper in the experiment's folder: its arguments and its state.

    It is written when the experiment begins, once a second, and when ``tune.run`` ends.
    """

    def __init__(self, stopper: Stopper | None, folder: str) -> None:
        self._stopper, self._file = stopper, os.path.join(folder, "stopper.json")
        self._written: float | None = None
        if stopper is not None:
            stopper.set_state(_read(folder).get("state"))
            self.keep()

    def keep(self, at_once: bool = False) -> None:
        if self._stopper is None or (not at_once and self._written is not None and _now() - self._written < 1):
            return
        self._written = _now()
        made, state = _made(self._stopper), self._stopper.get_state()
        kept = {"kind": type(self._stopper).__name__, "made": made, "state": state}
        _files.replace(self._file, json.dumps(kept))


def split(stop: object) -> tuple[dict[str, float], Stopper | None]:
    """Splits ``stop`` into the limits of the document and a stopper to call for each result."""
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
