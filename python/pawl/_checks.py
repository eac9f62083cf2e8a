# SPDX-License-Identifier: Apache-2.0
"""Converts options and arguments for the library. Errors name the option that is wrong."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, SupportsFloat, SupportsIndex

from . import _metrics, _pawl
from ._pawl import UsageError

_SCHEMES = frozenset(_pawl.url_schemes()) - {"mem"}
_LONGEST_SECONDS = 1e9  # 31 years; in milliseconds it fits in 64 bits


def index(value: object) -> int | None:
    """The value as an int if it is a whole number, also of NumPy; else None."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def shown(value: object) -> str:
    """The text of a value in a message, shortened if it is long."""
    if isinstance(value, Mapping | Sequence) and len(value) > 3 and not isinstance(value, str | bytes):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, str | bytes) and len(value) > 100:
        return f"{value[:100]!r}..."
    text = repr(value)
    return text if len(text) <= 120 else type(value).__name__


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key for sorting by which 2 comes before 10."""
    parts = re.split(r"(\d+)", text)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def whole(option: str, value: object, bits: int = 64) -> int:
    """A count or a number of bytes, as an unsigned number with this many bits."""
    number = index(value)
    if number is None or number < 0:
        raise UsageError(f"{option} must be a whole number of 0 or more, received {shown(value)}")
    if number >> bits:
        raise UsageError(f"{option} must be below 2**{bits}, received {shown(value)}")
    return number


def size(option: str, value: object) -> int:
    """A number of bytes, or a text such as "500MB"."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, str):
        try:
            return _pawl.parse_bytes(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
    return whole(option, value)


def word(option: str, value: object, words: Iterable[str]) -> str:
    """Returns the value if it is one of the words."""
    if isinstance(value, str) and value in words:
        return value
    allowed = " or ".join(f'"{one}"' for one in words)
    raise UsageError(f"{option} must be {allowed}, received {shown(value)}")


def path(option: str, value: object) -> str:
    """A path or URL as text, with ~ replaced by the user's home."""
    found = place(option, value)
    scheme, _, rest = found.partition(":")
    if scheme in _SCHEMES and rest.startswith("/") and not rest.startswith("//"):
        meant = f"{scheme}://{rest if scheme == 'file' else rest[1:]}"
        raise UsageError(
            f"{option}: {found}: a URL has two slashes, expected {meant} (pathlib.Path removes one); a folder of this "
            f"name is ./{found}"
        )
    return found


def place(option: str, value: object) -> str:
    """The same for a place of a sync: its command knows what s3:/x means."""
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(found, str):
        raise UsageError(f"{option} must be a path (a str, or an os.PathLike of one), received {shown(value)}")
    try:
        found.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{option} must be a path that is UTF-8, received {shown(value)}") from None
    if "\0" in found:
        raise UsageError(f"{option} must be a path without NUL, received {shown(value)}")
    return os.path.expanduser(found)


def split_options(place: str) -> tuple[str, str]:
    """A place without the options of a URL, and the options: ``"?region=x"`` or ``""``."""
    if "://" not in place:
        return place, ""
    base, mark, options = place.partition("?")
    return base, mark + options


def below(place: str, *names: str) -> str:
    """A place below another one, with its options."""
    base, options = split_options(place)
    return "/".join((base.rstrip("/"), *names)) + options


def paths(option: str, value: object) -> tuple[str, ...]:
    """One path or URL, or several."""
    if isinstance(value, str | os.PathLike):
        return (path(option, value),)
    if not isinstance(value, Sequence):
        raise UsageError(f"{option} must be a path or a list of paths, received {shown(value)}")
    return tuple(path(option, one) for one in value)


def fault(value: object) -> tuple[str, int, int, bool] | None:
    """For tests: the n-th call of an operation fails with a code, once or always."""
    if value is None:
        return None
    match value:
        case (str(operation), int(nth), int(code), forever) if nth > 0 and -(2**31) <= code < 0:
            return operation, nth, code, bool(forever)
    raise UsageError(f"fault must be (operation, n from 1, negative code, for ever), received {shown(value)}")


def seconds(option: str, value: object) -> float:
    """A duration in seconds."""
    number = -1.0
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        with contextlib.suppress(UsageError):
            number = _pawl.parse_seconds(value)
    elif isinstance(value, SupportsFloat):
        number = _metrics.as_float(value)
    if not number >= 0:
        raise UsageError(
            f"{option} must be a time: a number of seconds of 0 or more, a timedelta or a text such as 90s or 5min, "
            f"received {shown(value)}"
        )
    return min(number, _LONGEST_SECONDS)


def limit(timeout: object) -> float | None:
    """The longest wait in seconds; None means no limit. A value below 0 does not wait."""
    if timeout is None:
        return None
    return 0.0 if isinstance(timeout, int | float) and timeout < 0 else seconds("timeout", timeout)


def step(value: object) -> int:
    """A step, the counter of a training run."""
    number = index(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise UsageError(f"step must be a whole number of 64 bits, received {shown(value)}")
    return number


def names(option: str, value: object) -> tuple[str, ...]:
    """One name or several."""
    if isinstance(value, str):
        return (value,)
    found = tuple(value) if isinstance(value, Sequence) else ()
    if not isinstance(value, Sequence) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{option} must be a name or a list of names, received {shown(value)}")
    return found


def renames(rules: Sequence[tuple[str, str]] | None) -> tuple[str, ...]:
    """Pairs (old, new) as rules.

    The n-th '*' of the new path is what the n-th of the old one matched.
    """
    found = []
    if rules is not None and not isinstance(rules, Sequence):
        raise UsageError(f"rename: expected pairs of texts, such as ('old/*', 'new/*'), found {shown(rules)}")
    for rule in rules or ():
        if (
            isinstance(rule, str)
            or not isinstance(rule, Sequence)
            or len(rule) != 2
            or not all(isinstance(text, str) and text for text in rule)
        ):
            raise UsageError(f"rename: expected pairs of texts, such as ('old/*', 'new/*'), found {shown(rule)}")
        old, new = rule
        if "=" in old:
            raise UsageError(f"rename: '{old}': a path with '=' cannot be renamed")
        found.append(f"{old}={new}")
    return tuple(found)


def rules(given: object) -> tuple[str, ...]:
    """New names: pairs as renames takes them, or texts "GLOB=TEMPLATE"."""
    given = (given,) if isinstance(given, str) else given
    if not isinstance(given, Sequence):
        raise UsageError(f"rename must be a list of pairs or of texts 'GLOB=TEMPLATE', received {shown(given)}")
    return tuple(rule if isinstance(rule, str) else renames([rule])[0] for rule in given)


def dtype_name(dtype: object) -> str:
    """A dtype of torch, NumPy or JAX, or its name."""
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def casts(cast: Any) -> tuple[str, ...]:
    """Rules that set the dtype of all floats, or of those that a glob matches.

    A dtype is a name, or an object of torch, NumPy or JAX.
    """
    rules = {"*": cast} if cast is not None and not isinstance(cast, Mapping) else cast or {}
    found = []
    for glob, dtype in rules.items():
        if not isinstance(glob, str) or not glob:
            raise UsageError(f"cast: expected a dtype, or a dict of globs and dtypes, found the glob {shown(glob)}")
        found.append(f"{glob}={dtype_name(dtype)}")
    return tuple(found)


def globs(paths: Sequence[str] | None) -> tuple[str, ...]:
    """The globs of a partial restore. An empty result restores everything."""
    if paths is None:
        return ()
    found = names("paths", paths)
    if not found:
        raise UsageError("paths is empty, which would restore nothing; None restores everything")
    return found
