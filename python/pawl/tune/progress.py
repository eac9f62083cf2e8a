# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of an experiment to standard error."""

from __future__ import annotations

import sys
import time

from .. import _pawl
from .._pawl import UsageError
from .spec import Plan

_EVERY_SECONDS = 30.0


class Progress:
    """Prints what happens.

    ``verbose`` 0 prints nothing. 1 prints ends, failures, and the state of the search now and then.
    2 also prints starts, and 3 each result.
    """

    def __init__(self, verbose: int, plan: Plan) -> None:
        if isinstance(verbose, bool) or verbose not in (0, 1, 2, 3):
            raise UsageError(f"verbose must be 0, 1, 2 or 3, received {verbose!r}")
        self._verbose, self._plan = verbose, plan
        self._metric = plan.document.get("metric")
        self._next = 0.0

    def _say(self, text: str, level: int = 1) -> None:
        if self._verbose >= level:
            print(text, file=sys.stderr, flush=True)

    def begin(self, experiment: _pawl.Experiment) -> None:
        self._say(f"tune: {self._plan.folder}")
        notice = experiment.about()[2]
        if notice:
            self._say(f"tune: {notice}")
        self._next = time.monotonic() + _EVERY_SECONDS

    def tick(self, experiment: _pawl.Experiment) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            self._say(f"tune: {self._states(experiment)}")

    def _states(self, experiment: _pawl.Experiment) -> str:
        counts = experiment.counts()
        states = ", ".join(f"{n} {name.lower()}" for name, n in counts["states"].items() if n)
        best = experiment.best(None, None, None) if self._metric else None
        found = f"; best {self._metric} {best[1]:g}, {experiment.trial(best[0])['name']}" if best else ""
        return f"{counts['trials']} trials: {states or 'none'}{found}"

    def notice(self, experiment: _pawl.Experiment, number: int, text: str) -> None:
        self._say(f"tune: {text}")

    def report(self, experiment: _pawl.Experiment, number: int, reason: str) -> None:
        if self._verbose >= 3:
            row = experiment.trial(number)
            metric = f", {self._metric} {row['metric']}" if self._metric else ""
            self._say(f"tune: {row['name']}: result {row['iteration']}{metric}{f': {reason}' if reason else ''}", 3)

    def ended(self, experiment: _pawl.Experiment, number: int, how: str, why: str, again: bool) -> None:
        row = experiment.trial(number)
        if how == "failed":
            self._say(f"tune: {row['name']} has failed{', and starts again' if again else ''}: {why}")
        elif not again:
            metric = f", {self._metric} {row['metric']}" if self._metric else ""
            self._say(f"tune: {row['name']} {row['state'].lower()} after {row['iteration']} results{metric}")

    def interrupted(self, error: BaseException) -> None:
        self._say(
            f"tune: interrupted ({type(error).__name__}); the trials save what they can. A second interrupt kills them"
        )
