# SPDX-License-Identifier: Apache-2.0
"""Options and arguments as the library takes them; what is wrong is refused by its name."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsFloat, SupportsIndex

from . import _metrics
from ._pawl import UsageError

_LONGEST_SECONDS = 1e9  # 31 years; fits as milliseconds wherever it goes


def _index(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole(option: str, value: object, bits: int = 64) -> int:
    """A count or a number of bytes, as an unsigned number of so many bits."""
    number = _index(value)
    if number is None or number < 0:
        raise UsageError(f"{option} must be a whole number of 0 or more, received {value!r}")
    if number >> bits:
        raise UsageError(f"{option} must be below 2**{bits}, received {value!r}")
    return number


def word(option: str, value: object, words: Iterable[str]) -> str:
    """One of these words."""
    if isinstance(value, str) and value in words:
        return value
    allowed = " or ".join(f'"{one}"' for one in words)
    raise UsageError(f"{option} must be {allowed}, received {value!r}")


def path(option: str, value: object) -> str:
    """A path of text, with ~ for the user's home."""
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(found, str):
        raise UsageError(f"{option} must be a path (a str, or an os.PathLike of one), received {value!r}")
    try:
        found.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{option} must be a path that is UTF-8, received {value!r}") from None
    if "\0" in found:
        raise UsageError(f"{option} must be a path without NUL, received {value!r}")
    return os.path.expanduser(found)


def paths(option: str, value: object) -> tuple[str, ...]:
    """One path or URL, or several."""
    if isinstance(value, str | os.PathLike):
        return (path(option, value),)
    if not isinstance(value, Sequence):
        raise UsageError(f"{option} must be a path or a list of paths, received {value!r}")
    return tuple(path(option, one) for one in value)


_RULES = ("num_to_keep", "keep_last", "keep_best", "keep_every", "keep_seconds", "max_bytes")


def rules(option: str, value: object) -> dict[str, float]:
    """Rules of retention by their names; none at all keep everything."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{option} must be a dict of rules, received {value!r}")
    for name in value:
        if name not in _RULES:
            raise UsageError(f"{option}: expected some of {', '.join(_RULES)}, received {name!r}")
    return {
        name: seconds(name, number) if name == "keep_seconds" else whole(name, number, 63)
        for name, number in value.items()
    }


def fault(value: object) -> tuple[str, int, int, bool] | None:
    """For tests: the n-th call of an operation fails with a code, once or always."""
    if value is None:
        return None
    match value:
        case (str(operation), int(nth), int(code), forever) if nth > 0 and -(2**31) <= code < 0:
            return operation, nth, code, bool(forever)
    raise UsageError(f"fault must be (operation, n from 1, negative code, for ever), received {value!r}")


def seconds(option: str, value: object) -> float:
    """A length of time."""
    number = _metrics.as_float(value) if isinstance(value, SupportsFloat) else -1.0
    if not number >= 0:
        raise UsageError(f"{option} must be a number of seconds of 0 or more, received {value!r}")
    return min(number, _LONGEST_SECONDS)


def step(value: object) -> int:
    """A training's counter."""
    number = _index(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise UsageError(f"step must be a whole number of 64 bits, received {value!r}")
    return number


def names(option: str, value: object) -> tuple[str, ...]:
    """One name or several."""
    if isinstance(value, str):
        return (value,)
    found = tuple(value) if isinstance(value, Sequence) else ()
    if not isinstance(value, Sequence) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{option} must be a name or a list of names, received {value!r}")
    return found


def globs(paths: Sequence[str] | None) -> tuple[str, ...]:
    """The paths of a partial restore; none of them means all."""
    if paths is None:
        return ()
    found = names("paths", paths)
    if not found:
        raise UsageError("paths is empty, which would restore nothing; None restores everything")
    return found
