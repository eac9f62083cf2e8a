# SPDX-License-Identifier: Apache-2.0
"""Composer's ``checkpoint_periodically``: makes a function of a ``save_interval``.

A program can combine the function with its own conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import _pawl
from ._composer_state import interval_text, number_of, progress_of

_START: dict[str, float] = {
    "epoch": 0,
    "batch": 0,
    "sample": 0,
    "token": 0,
    "iteration": 0,
    "total_wct": 0,
    "fraction": 0,
}


def checkpoint_periodically(interval: object, save_end_of_training: bool = True) -> Callable[[Any, Any], bool]:
    """A function for ``save_interval``. It takes Composer's ``(State, Event)``.

    In any other loop it takes ``(progress, event)``. There it counts from the last call that
    returned True. Asked again about the same progress and event, it answers the same: algorithms
    such as EMA ask before the saver does.

    Args:
        interval: A Time, a time string or a number of epochs.
        save_end_of_training: Save at the end, too. Default: True.

    Returns:
        A function that returns True whenever ``interval`` has passed.

    Raises:
        UsageError: It is not an interval.
    """
    text = interval_text(interval)
    if text is None:
        raise _pawl.UsageError(f"interval must be a Time, a time string or a number of epochs, received {interval!r}")
    _pawl.interval_due(text, None, _START)  # an error if it is not an interval
    last: dict[str, float] = {}
    seen: float | None = None  # the fraction at the call before, which a Timestamp does not have
    asked: tuple[object, bool] | None = None  # the last question, and its answer

    def is_due(state: Any, event: Any) -> bool:
        nonlocal asked
        question = (progress_of(getattr(state, "timestamp", state)), event)
        if asked is None or asked[0] != question:
            asked = question, answer(state)
        return asked[1]

    def answer(state: Any) -> bool:
        nonlocal last, seen
        now = progress_of(getattr(state, "timestamp", state))
        elapsed = state.get_elapsed_duration() if hasattr(state, "get_elapsed_duration") else None
        if elapsed is not None:
            now["fraction"] = min(max(float(number_of(elapsed) or 0), 0.0), 1.0)
        if not save_end_of_training and now.get("fraction") == 1:
            now["fraction"] = math.nextafter(1.0, 0.0)  # the interval still counts it as the end
        before = last
        if getattr(state, "previous_timestamp", None) is not None:
            before = progress_of(state.previous_timestamp)
            if seen is not None:
                before["fraction"] = seen
        seen = now.get("fraction")
        if "batch" in now and now["batch"] == last.get("batch"):  # a batch may also end an epoch
            return False
        if not _pawl.interval_due(text, before or None, now):
            return False
        last = now
        return True

    return is_due
