# SPDX-License-Identifier: Apache-2.0
"""The train function on its way to the workers: by cloudpickle where it is installed, else by reference."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from .._pawl import UnsupportedError, UsageError


def _who(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def check_function(function: object) -> None:
    """It can be called, with its config or with nothing."""
    if not callable(function):
        raise UsageError(f"the train function must be a function, received {function!r}")
    needed = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if len(needed) > 1:
        raise UsageError(
            f"the train function takes one argument, the config, or none; {_who(function)} needs {len(needed)}"
        )


def _culprit(function: Callable[..., Any], config: Any, dumps: Callable[[Any], bytes]) -> str:
    """Which of the parts cannot be pickled, as precisely as can be told."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            try:
                dumps(value)
            except Exception:
                return f"train_loop_config[{key!r}], {type(value).__name__},"
    closed = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    for kind in ("nonlocals", "globals"):
        for name, value in getattr(closed, kind, {}).items():
            try:
                dumps(value)
            except Exception:
                return f"{_who(function)}: the variable {name!r} that it uses, {type(value).__name__},"
    return f"{_who(function)}"


def pack(function: Callable[..., Any], config: Mapping[str, Any] | None) -> bytes:
    """Bytes for unpack; an error that names what cannot be handed over."""
    payload = (function, None if config is None else dict(config))
    if importlib.util.find_spec("cloudpickle") is not None:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
    else:
        if getattr(function, "__module__", None) == "__main__":
            raise UnsupportedError(
                f"the train function {_who(function)} lies in the script itself, where the workers cannot find it: "
                "install cloudpickle, or move it to a module"
            )
        dumps = pickle.dumps
    try:
        return dumps(payload)
    except Exception as error:
        what = _culprit(function, config, dumps)
        raise UnsupportedError(
            f"{what} cannot be pickled and handed to the workers: {error}; make it inside of the train function"
        ) from error


def unpack(payload: bytes) -> Callable[[], Any]:
    """The call that a worker makes."""
    function, config = pickle.loads(payload)
    if not inspect.signature(function).parameters:
        call: Callable[[], Any] = function
        return call
    return lambda: function({} if config is None else config)
