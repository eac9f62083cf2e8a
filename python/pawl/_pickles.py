# SPDX-License-Identifier: Apache-2.0
"""Values that a state cannot hold, as pickles inside of it: with ``allow_pickle`` only, in both directions."""

from __future__ import annotations

import pickle
from typing import Any

from . import _pawl
from ._pawl import UnsupportedError

_MARK = "pawl.pickle"


def _dumps(value: object) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    return bytes(cloudpickle.dumps(value))


def _fits(value: object) -> bool:
    try:
        _pawl.check_state({"": value})
    except UnsupportedError:
        return False
    return True


def wrap(value: Any) -> Any:
    """A state: what fits stays, down to the smallest part that does not, which becomes a pickle."""
    if _fits(value):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: wrap(inner) for key, inner in value.items()}
    if type(value) is list:
        return [wrap(inner) for inner in value]
    return {_MARK: _dumps(value)}


def unwrap(value: Any, allow_pickle: bool, path: str = "") -> Any:
    """What wrap was given; an error that names the first pickle if they are not to be read."""
    if isinstance(value, dict):
        if set(value) == {_MARK} and isinstance(value[_MARK], bytes):
            if not allow_pickle:
                raise UnsupportedError(
                    f"'{path}' is a pickle, which can run code when it is read: give allow_pickle=True"
                )
            return pickle.loads(value[_MARK])
        if not any(isinstance(inner, dict | list) for inner in value.values()):
            return value
        for key, inner in value.items():
            value[key] = unwrap(inner, allow_pickle, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list):
        value[:] = [unwrap(inner, allow_pickle, f"{path}/{i}" if path else str(i)) for i, inner in enumerate(value)]
    return value
