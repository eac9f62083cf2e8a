# SPDX-License-Identifier: Apache-2.0
"""Stores values that a state cannot hold as pickles in it.

Both directions need ``allow_pickle``.
"""

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
    """Makes a state. The smallest parts that a state cannot hold become pickles."""
    if _fits(value):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: wrap(inner) for key, inner in value.items()}
    if type(value) is list:
        return [wrap(inner) for inner in value]
    return {_MARK: _dumps(value)}


def unwrap(value: Any, allow_pickle: bool, path: str = "") -> Any:
    """The reverse of ``wrap``. Without allow_pickle an error names the first pickle."""
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
