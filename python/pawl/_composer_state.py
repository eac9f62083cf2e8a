# SPDX-License-Identifier: Apache-2.0
"""Composer's objects as plain values, for composer.py."""

from __future__ import annotations

import io
import pathlib
import pickle
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from ._names import listed
from ._pawl import UsageError

_WHOLE = ("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch", "iteration")
_SECONDS = ("total_wct", "epoch_wct", "batch_wct")


def number_of(value: object) -> float | None:
    """The value of a number or a Time; the seconds of a timedelta."""
    value = getattr(value, "value", value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def progress_of(given: object) -> dict[str, float]:
    """The counters of a mapping or of a Timestamp."""
    if isinstance(given, Mapping):
        known = (*_WHOLE, *_SECONDS, "fraction", "run_name")
        for name in given:
            if name not in known:
                raise UsageError(f"progress: unknown counter {name!r} ({listed(known)})")
        found = {name: given.get(name) for name in known[:-1]}
    else:
        found = {name: getattr(given, name, None) for name in (*_WHOLE, *_SECONDS)}
    progress: dict[str, float] = {}
    for name, value in found.items():
        number = None if value is None else number_of(value)
        if value is not None and number is None:
            raise UsageError(f"progress: {name} must be a number, received {value!r}")
        if number is not None:
            progress[name] = int(number) if name in _WHOLE else float(number)
    if not progress:
        raise UsageError(f"progress must be a mapping of counters or a Timestamp, received {given!r}")
    return progress


class _Pickler(pickle.Pickler):
    """A pickler without a memo, so that another pickle can contain its output."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.fast = True


def _is_plain(value: object) -> bool:
    kind = type(value)
    return value is None or kind in (bool, int, float, str, bytes) or hasattr(value, "requires_grad")


def translated(value: Any) -> Any:
    """Replaces values that are neither plain nor tensors (timedeltas, versions, arrays) by pickles.

    The pickle of the file contains these as parts. This function is used only for writing, and only
    for Composer's own state.
    """
    if _is_plain(value):
        return value
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, translated(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(translated(one) for one in value)
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return {"$pickle": file.getvalue()[2:-1]}


def copied(tree: Any) -> Any:
    """New containers around the same tensors, for a function that may change them freely."""
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(copied(value) for value in tree)
    if hasattr(tree, "state_dict") and hasattr(tree, "load_state_dict"):
        return copied(tree.state_dict())
    return tree


def interval_text(value: object) -> str | None:
    """A save_interval as a time string; None if it is a function."""
    if callable(value) and not hasattr(value, "to_timestring"):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        text = getattr(value, "to_timestring", None)  # a Time
        if text is None:
            raise UsageError(
                f"save_interval must be a Time, a time string, a number of epochs or a function, received {value!r}"
            )
        return str(text())
    return str(value)


def composer_imported() -> Any:
    """The module of Composer if the program has imported it, else None."""
    return sys.modules.get("composer")


def state_of(state: Any, weights_only: bool) -> dict[str, Any]:
    """The state that Composer's own saver writes into a file."""
    if weights_only:
        parts = {"model": state.get_model_state_dict()}
        for name, method in (("integrations", "_get_integrations_state_dict"), ("metadata", "_get_state_metadata")):
            if hasattr(state, method):
                parts[name] = getattr(state, method)()
        return {"state": parts}
    from composer.utils import reproducibility

    return {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}


def timestamp_of(progress: dict[str, float]) -> Any:
    if composer_imported() is None:
        return progress
    from composer.core import Timestamp

    times = {name: timedelta(seconds=progress[name]) for name in _SECONDS if name in progress}
    return Timestamp(**{name: int(progress[name]) for name in _WHOLE if name in progress}, **times)


def scheduler(interval: str, given: Any) -> Callable[[Any, Any], bool]:
    """A function that asks Composer whether a save is due by any of the time strings."""
    from composer.utils import create_interval_scheduler

    parts = [given] if not isinstance(given, str) else [re.sub(r"(?<=\d)it$", "iter", one) for one in given.split(",")]
    try:
        due = [create_interval_scheduler(int(one) if str(one).isdigit() else one) for one in parts]
    except (ValueError, IndexError, NotImplementedError) as error:
        raise UsageError(
            f"save_interval {interval!r}: Composer does not take it ({error}); "
            "expected 1ep, 5it, 10ba, 5000sp, 1000000tok, 30sec or 0.25dur"
        ) from error
    return due[0] if len(due) == 1 else lambda state, event: any(one(state, event) for one in due)


class SavedPath(str):
    """A path in Composer's list of checkpoints.

    It unpacks into the ``(timestamp, [paths])`` that Composer documents.
    """

    timestamp: Any
    paths: list[pathlib.Path]

    def __iter__(self) -> Any:
        return iter((self.timestamp, self.paths))
