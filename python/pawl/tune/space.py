# SPDX-License-Identifier: Apache-2.0
"""What a configuration may hold: values that are drawn, grids, and functions of the other values.

The runner draws the values with the experiment's seed. This module makes the runner's document from
the objects of a program. Values that JSON cannot hold (functions, classes, tuples, infinity) are
replaced by names in the document. They go to the trials with the trainable.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._names import listed
from .._pawl import UsageError

GRID = "grid_search"
_NAME = re.compile(r"<.* #[0-9]+>", re.DOTALL)  # of a value that JSON cannot hold; see Objects


class Domain:
    """A value that is drawn for each trial. ``key`` and ``arguments`` are those of the document."""

    def __init__(self, key: str, *arguments: Any) -> None:
        self.key, self.arguments = key, list(arguments)

    def __repr__(self) -> str:
        return f"tune.{self.key[1:]}({', '.join(map(repr, self.arguments))})"


class Function:
    """A value that a function computes from the other values (``sample_from``)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise UsageError(f"sample_from takes a function, received {function!r}")
        self.function = function

    def __call__(self, config: Mapping[str, Any]) -> Any:
        return self.function(_Spec(config)) if inspect.signature(self.function).parameters else self.function()

    def __repr__(self) -> str:
        return f"tune.sample_from({self.function!r})"


class _Unresolved(Exception):
    """Another function must be called first."""


class _View(dict[str, Any]):
    """A configuration whose values are items and also attributes."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Function):
            raise _Unresolved(key)
        return _View(value) if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}, but {listed(self) or 'nothing'}") from None

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default


class _Spec(_View):
    """The argument of a function of sample_from: ``spec.config.lr``, or ``spec["lr"]``."""

    @property
    def config(self) -> _View:
        return _View(self)


def _number(name: str, where: str, value: object) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"tune.{name}: {where} must be a finite number, received {value!r}")
    return value


def _range(name: str, lower: object, upper: object, *more: object, whole: bool = False, log: bool = False) -> Domain:
    low, high = _number(name, "lower", lower), _number(name, "upper", upper)
    if whole and (low != int(low) or high != int(high)):
        raise UsageError(f"tune.{name}: the bounds must be whole numbers, received {lower!r} and {upper!r}")
    if low >= high:
        raise UsageError(f"tune.{name}: lower must be below upper, received {lower!r} and {upper!r}")
    if log and low <= 0:
        raise UsageError(f"tune.{name}: lower must be above 0, received {lower!r}")
    steps = [_number(name, "q", step) for step in more]
    if any(step <= 0 for step in steps):
        raise UsageError(f"tune.{name}: q must be above 0, received {more[0]!r}")
    bounds = (int(low), int(high)) if whole else (low, high)
    return Domain(f"${name}", *bounds, *steps)


def uniform(lower: float, upper: float) -> Domain:
    """A number that is drawn for each trial, all equally likely.

    Args:
        lower: Lower bound.
        upper: Upper bound.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds are not finite numbers in order.
    """
    return _range("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Domain:
    """As ``uniform``, rounded to multiples of ``q``; ``upper`` may be drawn.

    Args:
        lower: Lower bound.
        upper: Upper bound.
        q: The step.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds or the step are wrong.
    """
    return _range("quniform", lower, upper, q)


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A number whose logarithm is uniform.

    Args:
        lower: Lower bound, above 0.
        upper: Upper bound.
        base: Accepted as in Ray. It changes nothing.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds are wrong.
    """
    return _range("loguniform", lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    """As ``loguniform``, rounded to multiples of ``q``.

    Args:
        lower: Lower bound, above 0.
        upper: Upper bound.
        q: The step.
        base: Accepted as in Ray. It changes nothing.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds or the step are wrong.
    """
    return _range("qloguniform", lower, upper, q, log=True)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """A normally distributed number.

    Args:
        mean: Mean. Default: 0.
        sd: Standard deviation. Default: 1.

    Returns:
        The domain.

    Raises:
        UsageError: An argument is not a finite number.
    """
    return Domain("$randn", _number("randn", "mean", mean), _number("randn", "sd", sd))


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """As ``randn``, rounded to multiples of ``q``.

    Args:
        mean: Mean.
        sd: Standard deviation.
        q: The step.

    Returns:
        The domain.

    Raises:
        UsageError: An argument is not a finite number.
    """
    return Domain("$qrandn", _number("qrandn", "mean", mean), _number("qrandn", "sd", sd), _number("qrandn", "q", q))


def randint(lower: int, upper: int) -> Domain:
    """An integer, all equally likely.

    Args:
        lower: Smallest number.
        upper: Largest number, not included.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds are wrong.
    """
    return _range("randint", lower, upper, whole=True)


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """A multiple of ``q``; ``upper`` may be drawn.

    Args:
        lower: Lower bound.
        upper: Upper bound.
        q: The step. Default: 1.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds or the step are wrong.
    """
    return _range("qrandint", lower, upper, q, whole=True)


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """An integer whose logarithm is uniform, below ``upper``.

    Args:
        lower: Lower bound, above 0.
        upper: Upper bound.
        base: Accepted as in Ray. It changes nothing.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds are wrong.
    """
    return _range("lograndint", lower, upper, whole=True, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    """As ``lograndint``, rounded to multiples of ``q``.

    Args:
        lower: Lower bound, above 0.
        upper: Upper bound.
        q: The step.
        base: Accepted as in Ray. It changes nothing.

    Returns:
        The domain.

    Raises:
        UsageError: The bounds or the step are wrong.
    """
    return _range("qlograndint", lower, upper, q, whole=True, log=True)


def choice(categories: Sequence[Any]) -> Domain:
    """One of the given values.

    Args:
        categories: The values, a list.

    Returns:
        The domain.

    Raises:
        UsageError: It is not a list, or it is empty.
    """
    if isinstance(categories, str) or not isinstance(categories, Sequence) or not categories:
        raise UsageError(f"tune.choice takes a list of at least one value, received {categories!r}")
    return Domain("$choice", *categories)


def sample_from(func: Callable[..., Any]) -> Function:
    """A value that a function returns.

    Args:
        func: A function without arguments, or of ``spec``, in which ``spec.config`` has the other
            values.

    Returns:
        A placeholder for the configuration.

    Raises:
        UsageError: It is not a function.
    """
    return Function(func)


def grid_search(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Each of the given values, combined with those of all other grids, ``num_samples`` times.

    Args:
        values: The values, a list.

    Returns:
        A placeholder for the configuration.

    Raises:
        UsageError: It is not a list, or it is empty.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UsageError(f"tune.grid_search takes a list of at least one value, received {values!r}")
    return {GRID: list(values)}


def _plain(value: Any) -> Any:
    """A scalar of NumPy as the value of Python. Any other value is returned as it is."""
    kind: Any = getattr(sys.modules.get("numpy"), "generic", ())
    if not isinstance(value, kind):
        return value
    found = value.item()
    return found if type(found) in (str, bool, int, float) else value


class Objects:
    """Values that a document refers to by a name. The same document gets the same names."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def put(self, value: Any) -> Any:
        """The value with names in place of the parts that JSON does not preserve.

        Scalars of NumPy become values of Python: a resumed search can read them again.
        """
        value = _plain(value)
        if value is None or type(value) in (str, bool) or (type(value) is float and math.isfinite(value)):
            return value
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if type(value) is list:
            return [self.put(inner) for inner in value]
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.put(inner) for key, inner in value.items()}
        return self._name(value)

    def _name(self, value: Any) -> str:
        for known, other in self.by_name.items():
            if other is value:
                return known
        if isinstance(value, int | float | tuple) and len(repr(value)) < 80:
            text = repr(value)
        else:
            text = getattr(value, "__qualname__", None) or f"{type(value).__qualname__} object"
        name = f"<{text} #{len(self.by_name)}>"
        self.by_name[name] = value
        return name

    def restore(self, value: Any) -> Any:
        """The tree with the values in place of their names."""
        if not self.by_name:
            return value
        if isinstance(value, dict):
            return {key: self.restore(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.restore(inner) for inner in value]
        return self.by_name.get(value, value) if isinstance(value, str) else value

    def lost(self, value: Any) -> str | None:
        """The first name in the tree whose value is not known; None if there is none."""
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return next((name for one in inner if (name := self.lost(one)) is not None), None)
        is_lost = isinstance(value, str) and value not in self.by_name and _NAME.fullmatch(value)
        return value if is_lost else None


def _is_grid(value: object) -> bool:
    return isinstance(value, Mapping) and set(value) == {GRID}


def encode(space: Mapping[str, Any], objects: Objects, where: str = "config") -> dict[str, Any]:
    """Encodes a space for the document. Functions become null, since ``fill`` calls them later."""
    found = {}
    for key, value in space.items():
        if not isinstance(key, str):
            raise UsageError(f"{where}: the names in a configuration must be str, received {key!r}")
        if key.startswith("$"):
            raise UsageError(f"{where}[{key!r}]: a name must not begin with $")
        found[key] = encode_value(value, objects, f"{where}[{key!r}]")
    return found


def encode_value(value: Any, objects: Objects, where: str) -> Any:
    """Encodes one value of a space."""
    if isinstance(value, Function):
        return None
    if isinstance(value, Domain):
        return {value.key: [objects.put(one) for one in value.arguments]}
    if _is_grid(value):
        values = value[GRID]
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"{where}: grid_search takes a list of at least one value, received {values!r}")
        return {"$grid": [objects.put(one) for one in values]}
    if isinstance(value, Mapping):
        return encode(value, objects, where)
    if isinstance(value, list):
        return [encode_value(one, objects, f"{where}[{i}]") for i, one in enumerate(value)]
    return objects.put(value)


def functions(space: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Function]]:
    """The functions of a space, with their places."""
    if isinstance(space, Function):
        yield path, space
    elif isinstance(space, Mapping) and not _is_grid(space):
        for key, value in space.items():
            yield from functions(value, (*path, key))
    elif isinstance(space, list):
        for i, value in enumerate(space):
            yield from functions(value, (*path, i))


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a space that are neither domains nor functions nor grids."""
    found = {}
    for key, value in given.items():
        if isinstance(value, Domain | Function) or _is_grid(value):
            continue
        found[key] = fixed(value) if isinstance(value, Mapping) else value
    return found


def merge(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two dicts, nested ones as well. If both have a value, that of b is used."""
    found = dict(a)
    for key, value in b.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merge(found[key], value) if both else value
    return found


def _set_value(config: Any, path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        config = config[key]
    config[path[-1]] = value


def fill(config: dict[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Calls the functions of the space for a drawn configuration.

    A function that needs the value of another one is called after it.
    """
    waiting = list(functions(space))
    for path, function in waiting:
        _set_value(config, path, function)
    while waiting:
        left = []
        for path, function in waiting:
            try:
                _set_value(config, path, function(config))
            except _Unresolved:
                left.append((path, function))
        if len(left) == len(waiting):
            names = ", ".join("/".join(map(str, path)) for path, _ in left)
            raise UsageError(f"sample_from: {names} need each other's values")
        waiting = left
    return config
