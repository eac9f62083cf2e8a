# SPDX-License-Identifier: Apache-2.0
"""Metrics as they are reported: numbers, texts, lists and dicts of these; what is none is refused by its name."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from ._pawl import UsageError


def plain(metrics: object) -> dict[str, Any]:
    """Metrics as the driver keeps them; what is no plain value is refused by name."""
    if not isinstance(metrics, Mapping):
        raise UsageError(f"report: metrics must be a dict, received {type(metrics).__name__}")
    return {_name(key): _value(f"metrics[{key!r}]", value) for key, value in metrics.items()}


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise UsageError(f"report: the names of metrics must be str, received {key!r}")
    return key


def _value(where: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_name(key): _value(f"{where}[{key!r}]", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(f"{where}[{i}]", inner) for i, inner in enumerate(value)]
    if isinstance(value, numbers.Real):  # NumPy's numbers, fractions
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if hasattr(type(value), "__dlpack__"):
        raise UsageError(f"report: {where} is a tensor ({kind}); report a number: .item()")
    raise UsageError(f"report: {where} is of type {kind}; metrics are numbers, str, lists and dicts of them")
