# SPDX-License-Identifier: Apache-2.0
"""Checks reported metrics: numbers, texts, lists and dicts of these.

Errors name any other value.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

from ._pawl import UsageError, no_numbers

_BEYOND = 1 << 1024  # integers from here on are beyond the range of floats


def is_number(value: object) -> TypeGuard[numbers.Number]:
    """Whether it can be a score. Decimals and fractions can."""
    is_complex = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    return isinstance(value, numbers.Number) and not is_complex


def as_float(value: Any) -> float:
    """A number as a float.

    Beyond the range of floats it is the largest float, which keeps the order.
    """
    try:
        found = float(value)
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    except ValueError:  # a decimal's signaling NaN
        return math.nan
    if math.isinf(found) and value != found:
        return math.copysign(sys.float_info.max, found)
    return found


def numbers_of(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that a save stores as numbers: tensors and NumPy's numbers, too."""
    return {name: as_float(value) for name, value in metrics.items() if not no_numbers({name: value})}


def storable(values: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's dict with fractions and decimals as floats, since a state cannot hold them."""
    return {k: as_float(v) if isinstance(v, Decimal | Fraction) else v for k, v in values.items()}


def plain(metrics: object) -> dict[str, Any]:
    """Metrics as the driver keeps them. An error names a value that is not plain."""
    if not isinstance(metrics, Mapping):
        raise UsageError(f"report: metrics must be a dict, received {type(metrics).__name__}")
    return {_name(key): _value(f"metrics[{key!r}]", value) for key, value in metrics.items()}


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise UsageError(f"report: the names of metrics must be str, received {key!r}")
    return key


def _value(where: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, Mapping):
        return {_name(key): _value(f"{where}[{key!r}]", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(f"{where}[{i}]", inner) for i, inner in enumerate(value)]
    if is_number(value):  # NumPy's numbers, fractions, decimals
        whole = int(value) if isinstance(value, numbers.Integral) else None
        return as_float(value) if whole is None or abs(whole) >= _BEYOND else whole
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if hasattr(type(value), "__dlpack__"):
        raise UsageError(f"report: {where} is a tensor ({kind}); report a number: .item()")
    raise UsageError(f"report: {where} is of type {kind}; metrics are numbers, str, lists and dicts of them")
