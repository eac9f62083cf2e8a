# SPDX-License-Identifier: Apache-2.0
"""Passes the train function to the workers."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from .. import _pickled
from .._pawl import UsageError


def check_function(function: object) -> None:
    """Checks that the function can be called with its config or without arguments."""
    if not callable(function):
        raise UsageError(f"the train function must be a function, received {function!r}")
    needed = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if len(needed) > 1:
        raise UsageError(
            f"the train function takes one argument, the config, or none; {_pickled.who(function)} needs {len(needed)}"
        )


def pack(function: Callable[..., Any], config: Mapping[str, Any] | None) -> bytes:
    """Pickles the function and its config for ``unpack``. An error names what cannot be pickled."""
    payload = (function, None if config is None else dict(config))
    return _pickled.dumps(payload, function, config, "train_loop_config", "train function")


def unpack(payload: bytes) -> Callable[[], Any]:
    """The call of the train function that a worker makes."""
    return bind(*pickle.loads(payload))


def bind(function: Callable[..., Any], config: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Binds the train function to its config, if it takes one."""
    if not inspect.signature(function).parameters:
        call: Callable[[], Any] = function
        return call
    return lambda: function({} if config is None else dict(config))
