# SPDX-License-Identifier: Apache-2.0
"""JSON as the runner writes it: numbers that are not finite are the texts "NaN", "Infinity" and
"-Infinity". And how a result names a nested value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from .._metrics import as_float

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _map(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map(inner, leaf) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map(inner, leaf) for inner in value]
    return leaf(value)


def _out(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return as_float(value)
    return value


def dumps(value: Any) -> str:
    return json.dumps(_map(value, _out), allow_nan=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """Reads a result. The three texts become numbers again."""
    found = json.loads(text)
    if "NaN" not in text and "Infinity" not in text:
        return found
    return _map(found, lambda leaf: _WORDS.get(leaf, leaf) if isinstance(leaf, str) else leaf)


def value_at(result: Any, name: str) -> Any:
    """The value of a name as limits have them: ``a/b`` is ``b`` in ``a``. None if there is none."""
    if not isinstance(result, Mapping):
        return None
    outer, _, inner = name.partition("/")
    return result[name] if name in result else value_at(result.get(outer), inner) if inner else None
