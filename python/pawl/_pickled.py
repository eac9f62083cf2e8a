# SPDX-License-Identifier: Apache-2.0
"""Pickles a function and its configuration for other processes: by cloudpickle where it is
installed, else by reference.
"""

from __future__ import annotations

import importlib.util
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from ._pawl import UnsupportedError


def who(function: Callable[..., Any]) -> str:
    """The name of a function with its module."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _culprit(function: Callable[..., Any], config: Any, config_name: str, dumps: Callable[[Any], bytes]) -> str:
    """Names the part that cannot be pickled, as precisely as possible."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            try:
                dumps(value)
            except Exception:
                return f"{config_name}[{key!r}], {type(value).__name__},"
    closed = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    for kind in ("nonlocals", "globals"):
        for name, value in getattr(closed, kind, {}).items():
            try:
                dumps(value)
            except Exception:
                return f"{who(function)}: the variable {name!r} that it uses, {type(value).__name__},"
    return f"{who(function)}"


def dumps(payload: object, function: Callable[..., Any], config: Any, config_name: str, what: str) -> bytes:
    """Pickles the payload, which contains the function and the configuration.

    ``what`` names the function in errors ("train function"). An error names the part that cannot be
    pickled.
    """
    if importlib.util.find_spec("cloudpickle") is not None:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]

        by: Callable[[Any], bytes] = cloudpickle.dumps
    else:
        if getattr(function, "__module__", None) == "__main__":
            raise UnsupportedError(
                f"the {what} {who(function)} is defined in the script itself, where the workers cannot find it: "
                "install cloudpickle, or move it to a module"
            )
        by = pickle.dumps
    try:
        return by(payload)
    except Exception as error:
        culprit = _culprit(function, config, config_name, by)
        raise UnsupportedError(
            f"{culprit} cannot be pickled and handed to the workers: {error}; make it inside of the {what}"
        ) from error
