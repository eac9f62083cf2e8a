# SPDX-License-Identifier: Apache-2.0
"""Types other than plain values and tensors, as a plain value and a kind (docs/reference/format.md,
section 4).

The extension module calls these functions:

- ``parts`` takes an object apart.
- ``make`` makes a value of a kind without a live object. It makes only value types of the table
  below, never a class that a file names.
- ``misfit`` checks whether a saved value fits a live object.
- ``rebuild`` puts values into a live object of any of these types.
- ``per_rank`` returns whether a kind belongs to one process.

A kind may have an argument: ``deque:8``.
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import random
import sys
import types
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

from ._names import listed

_Make = Callable[[Any], Any]
_FACTORIES = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def _from_list(kind: Callable[..., Any]) -> _Make:
    return lambda value: kind(*value)


def _iso_text(value: datetime.datetime | datetime.time) -> str:
    zone = value.tzinfo.key if isinstance(value.tzinfo, zoneinfo.ZoneInfo) else None
    return f"{value.isoformat()}[{zone}]" if zone else value.isoformat()


def _datetime(text: str) -> datetime.datetime:
    moment, _, zone = text.partition("[")
    value = datetime.datetime.fromisoformat(moment)
    if not zone:
        return value
    place = zoneinfo.ZoneInfo(zone.rstrip("]"))
    for fold in (0, 1):  # of the hour that a change of the clocks repeats or skips
        local = value.replace(tzinfo=place, fold=fold)
        if local.utcoffset() == value.utcoffset():
            return local
    return value.astimezone(place)  # the rules of the zone have changed


def _time(text: str) -> datetime.time:
    moment, _, zone = text.partition("[")
    value = datetime.time.fromisoformat(moment)
    return value.replace(tzinfo=zoneinfo.ZoneInfo(zone.rstrip("]"))) if zone else value


def _timezone(value: list[Any]) -> datetime.timezone:
    return datetime.timezone(datetime.timedelta(microseconds=value[0]), *value[1:])


def _sorted(values: Any) -> list[Any]:
    """Sorts a set, so that the file does not depend on the order of its values."""
    return sorted(values, key=lambda value: (type(value).__name__, repr(value)))


# type -> kind, function to the plain value, function from it
_VALUES: dict[type, tuple[str, Callable[[Any], Any], _Make]] = {
    datetime.datetime: ("datetime", _iso_text, _datetime),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", _iso_text, _time),
    datetime.timedelta: (
        "timedelta",
        lambda value: value // datetime.timedelta(microseconds=1),
        lambda value: datetime.timedelta(microseconds=value),
    ),
    datetime.timezone: (
        "timezone",
        lambda value: [value.utcoffset(None) // datetime.timedelta(microseconds=1), *value.__getinitargs__()[1:]],
        _timezone,
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    fractions.Fraction: (
        "fraction",
        lambda value: [value.numerator, value.denominator],
        _from_list(fractions.Fraction),
    ),
    uuid.UUID: ("uuid", str, uuid.UUID),
    complex: ("complex", lambda value: [value.real, value.imag], _from_list(complex)),
    range: ("range", lambda value: [value.start, value.stop, value.step], _from_list(range)),
    bytearray: ("bytearray", bytes, bytearray),
    set: ("set", _sorted, set),
    frozenset: ("frozenset", _sorted, frozenset),
    collections.Counter: ("counter", dict, collections.Counter),
    argparse.Namespace: ("namespace", lambda value: dict(vars(value)), lambda value: argparse.Namespace(**value)),
    types.SimpleNamespace: (
        "simplenamespace",
        lambda value: dict(vars(value)),
        lambda value: types.SimpleNamespace(**value),
    ),
}


# ---- types of torch, NumPy and JAX, if they are imported


def _numpy_dtype(name: str) -> Any:
    import numpy

    return numpy.dtype(name)


def _torch_dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name)
    return found if isinstance(found, torch.dtype) else name


def _torch_device(name: str) -> Any:
    import torch

    return torch.device(name)


def _torch_generator(value: Any, live: Any = None) -> Any:
    import torch

    generator = live if live is not None else torch.Generator(value["device"])
    generator.set_state(value["state"])
    return generator


def checked_numpy_state(state: Any) -> Any:
    """The state of a NumPy generator. Raises ValueError if an index is out of range: NumPy does not
    check it, and the next draw would read memory outside of an array.
    """
    for values, name, last in ((state["state"], "pos", 624), (state, "buffer_pos", 4)):
        index = values.get(name, 0) if isinstance(values, dict) else 0
        if not 0 <= index <= last:
            raise ValueError(f"the state of a NumPy generator has {name}={index}, expected 0 to {last}")
    return state


def _numpy_generator(value: Any, live: Any = None) -> Any:
    import numpy

    if live is None:
        name = value["bit_generator"]
        live = numpy.random.Generator(getattr(numpy.random, _BIT_GENERATORS[_BIT_GENERATORS.index(name)])())
    live.bit_generator.state = checked_numpy_state(value)
    return live


def _random_state(value: Any, live: Any = None) -> Any:
    import numpy

    live = numpy.random.RandomState() if live is None else live  # noqa: NPY002
    live.set_state(checked_numpy_state(value))
    return live


def _random(value: Any, live: Any = None) -> Any:
    live = random.Random() if live is None else live
    live.setstate(value)
    return live


_GENERATORS: dict[str, Callable[..., Any]] = {
    "torch.generator": _torch_generator,
    "numpy.generator": _numpy_generator,
    "numpy.randomstate": _random_state,
    "random": _random,
}


def _jax_key(implementation: str, value: Any) -> Any:
    import jax

    return jax.random.wrap_key_data(value, impl=implementation)


def _numpy_parts(value: Any) -> tuple[str, Any] | None:
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "random"):
        return None
    if isinstance(value, numpy.dtype) and value.names is None and value.subdtype is None and not value.hasobject:
        return "numpy.dtype", value.name if value.isbuiltin == 2 else value.str
    if isinstance(value, numpy.random.Generator) and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return "numpy.generator", value.bit_generator.state
    if isinstance(value, numpy.random.RandomState):
        return "numpy.randomstate", value.get_state(legacy=False)
    return None


def _torch_parts(value: Any) -> tuple[str, Any] | None:
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Generator"):
        return None
    if isinstance(value, torch.dtype):
        return "torch.dtype", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "torch.device", str(value)
    if isinstance(value, torch.Generator):
        return "torch.generator", {"device": str(value.device), "state": value.get_state()}
    return None


# ---- pytrees


def _is_code(value: Any) -> bool:
    """Whether it is a function in a pytree, such as an activation.

    The live object keeps its own.
    """
    return (
        callable(value)
        and not hasattr(value, "state_dict")
        and not hasattr(value, "dtype")
        and (isinstance(value, type) or parts(value) is None)
    )


def _entry(key: Any) -> Any:
    for name in ("key", "name", "idx"):
        found = getattr(key, name, None)
        if isinstance(found, str | int):
            return found
    return str(key)


def _jax_children(value: Any) -> tuple[list[Any], list[Any], _Make] | None:
    tree = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree is None:
        return None
    entries, form = tree.tree_flatten_with_path(value, is_leaf=lambda child: child is not value)
    if len(entries) == 1 and not entries[0][0]:
        return None
    return [path[0] for path, _ in entries], [child for _, child in entries], form.unflatten


def _torch_children(value: Any) -> tuple[list[Any], list[Any], _Make] | None:
    tree: Any = sys.modules.get("torch.utils._pytree")
    node = tree.SUPPORTED_NODES.get(type(value)) if hasattr(tree, "SUPPORTED_NODES") else None
    if node is None:
        return None
    if node.flatten_with_keys_fn is not None:
        entries, form = node.flatten_with_keys_fn(value)
        keys, children = [key for key, _ in entries], [child for _, child in entries]
    else:
        children, form = node.flatten_fn(value)
        keys = list(range(len(children)))
    return keys, children, lambda values: node.unflatten_fn(values, form)


def _children(value: Any) -> tuple[list[Any], list[Any], _Make] | None:
    """The names or indices, the children, and a function that makes an object of other children."""
    found = _jax_children(value) or _torch_children(value)
    if found is None:
        return None
    keys = [key if isinstance(key, str | int) else _entry(key) for key in found[0]]
    return keys if len(set(keys)) == len(keys) else list(range(len(keys))), found[1], found[2]


def _pytree_parts(keys: list[Any], children: list[Any]) -> dict[Any, Any] | list[Any]:
    kept = {key: child for key, child in zip(keys, children, strict=True) if not _is_code(child)}
    return list(kept.values()) if list(kept) == list(range(len(keys))) and keys else kept


def _nnx_is(live: Any, name: str) -> bool:
    return isinstance(live, getattr(sys.modules.get("flax.nnx"), name, ()))


def _pytree_rebuild(live: Any, value: Any, in_place: bool) -> Any:
    """Rebuilds a pytree. Variables and modules of NNX are changed in place, others are replaced."""
    found = _children(live)
    if found is None:
        return live
    keys, children, unflatten = found
    given = value if isinstance(value, dict) else dict(enumerate(value))
    values = [given.get(key, child) for key, child in zip(keys, children, strict=True)]
    changed = [key for key, new, old in zip(keys, values, children, strict=True) if new is not old]
    if in_place and changed and _nnx_is(live, "Variable"):
        live.update_from_state(unflatten(values))
    elif in_place and _nnx_is(live, "Pytree"):
        for key in changed:
            setattr(live, str(key), given[key])
    elif changed:
        return unflatten(values)
    return live


# ---- classes with named fields


def _field_names(value: Any) -> tuple[str, list[str]] | None:
    if isinstance(value, tuple):
        return ("namedtuple", list(value._fields)) if hasattr(value, "_fields") else None
    if dataclasses.is_dataclass(value):
        return "dataclass", [field.name for field in dataclasses.fields(value)]
    attributes = getattr(type(value), "__attrs_attrs__", None)
    return None if attributes is None else ("attrs", [attribute.name for attribute in attributes])


def _fields_rebuild(live: Any, value: dict[str, Any], in_place: bool) -> Any:
    kind, names = _field_names(live) or ("", [])
    values = {name: value[name] for name in names if name in value}
    if kind == "namedtuple":
        return live._replace(**values)
    if all(getattr(live, name, values) is new for name, new in values.items()):
        return live
    frozen = _is_frozen(live)
    target = live if in_place and not frozen else copy.copy(live)
    for name, new in values.items():
        object.__setattr__(target, name, new) if frozen else setattr(target, name, new)
    return target


def _is_frozen(value: Any) -> bool:
    settings = getattr(type(value), "__dataclass_params__", None)
    return settings.frozen if settings else "frozen" in getattr(type(value).__setattr__, "__name__", "")


# ---- the functions that the extension module calls


def parts(value: Any) -> tuple[str, Any] | None:
    """The kind and the plain value of an object; None if it has no kind."""
    kind = type(value)
    if known := _VALUES.get(kind):
        return known[0], known[1](value)
    if isinstance(value, enum.Enum):
        plain = type(value.value) in (bool, int, float, str, bytes)  # numpy.float64 is a float, but saved otherwise
        return ("enum", value.value) if plain else ("enum.name", value.name)
    if kind is collections.defaultdict:
        factory = getattr(value.default_factory, "__name__", "")
        return f"defaultdict:{factory}" if value.default_factory is _FACTORIES.get(
            factory, value
        ) else "defaultdict", dict(value)
    if kind is collections.deque:
        return "deque" if value.maxlen is None else f"deque:{value.maxlen}", list(value)
    if isinstance(value, pathlib.PurePath):
        return "path", str(value)
    if isinstance(value, zoneinfo.ZoneInfo) and value.key:
        return "zoneinfo", value.key
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return "random", value.getstate()
    if isinstance(value, str | int | float | bytes | dict | list | type | types.FunctionType):
        return None
    return _numpy_parts(value) or _torch_parts(value) or _object_parts(value)


def _object_parts(value: Any) -> tuple[str, Any] | None:
    jax: Any = sys.modules.get("jax")
    if hasattr(jax, "dtypes") and isinstance(value, jax.Array):
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        return (f"jax.key:{jax.random.key_impl(value)}", [jax.random.key_data(value)]) if is_key else None
    named = _field_names(value) if isinstance(value, tuple) else None
    if named is None:
        if found := _children(value):
            return "pytree", _pytree_parts(found[0], found[1])
        named = _field_names(value)
    if named is None:
        return None
    return named[0], {name: getattr(value, name) for name in named[1] if hasattr(value, name)}


def per_rank(kind: str) -> bool:
    """Whether each process has its own value of this kind."""
    return kind in _GENERATORS


def _make(kind: str, value: Any) -> Any:
    name, _, argument = kind.partition(":")
    makers: dict[str, _Make] = {known: make for known, _, make in _VALUES.values()} | _GENERATORS
    makers |= {"path": pathlib.Path, "zoneinfo": zoneinfo.ZoneInfo, "numpy.dtype": _numpy_dtype}
    makers |= {"torch.dtype": _torch_dtype, "torch.device": _torch_device}
    if name == "deque":
        return collections.deque(value, int(argument) if argument else None)
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES[argument], value)
    if name == "jax.key":
        return _jax_key(argument, value[0])
    return makers[name](value) if name in makers else value


def make(kind: str, value: Any) -> Any:
    """The value of a kind. The plain value itself if the kind is unknown or does not fit it."""
    try:
        return _make(kind, value)
    except (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError):
        return value


def _member(live: enum.Enum, kind: str, value: Any) -> enum.Enum | None:
    try:
        return type(live)(value) if kind == "enum" else type(live)[value]
    except (KeyError, ValueError):
        return None


def misfit(live: Any, saved: str, value: Any) -> str | None:
    """Why a saved value does not fit the live object, or None.

    Called before anything is changed.
    """
    if not isinstance(live, enum.Enum) or saved not in ("enum", "enum.name") or _member(live, saved, value) is not None:
        return None
    members = listed(repr(one.value) if saved == "enum" else one.name for one in type(live))
    return f"saved {value!r}, which is not a member of {type(live).__qualname__} (expected {members})"


def rebuild(live: Any, kind: str, value: Any, saved: str, in_place: bool) -> Any:
    """An object of the live object's type with the saved value. If possible, the live object
    itself.

    ``kind`` is the kind of the live object, ``saved`` that of the value. A live object of another
    kind is replaced.
    """
    name, old = kind.partition(":")[0], saved.partition(":")[0]
    if isinstance(live, enum.Enum) and old in ("enum", "enum.name"):
        member = _member(live, old, value)
        return live if member is None else member  # misfit has reported a missing member
    if name == "path" == old:
        return type(live)(value)
    if name in ("namedtuple", "dataclass", "attrs") and isinstance(value, dict):
        return _fields_rebuild(live, value, in_place)
    if name == "pytree" and isinstance(value, dict | list):
        return _pytree_rebuild(live, value, in_place)
    if name == old and name in _GENERATORS and in_place:
        return _GENERATORS[name](value, live)
    if name == "defaultdict" and isinstance(value, dict):
        return _fill_dict(live if in_place else copy.copy(live), value)
    if not old and not isinstance(value, dict | list):
        return value
    new = make(saved or kind, value)
    return _fill_live(live, new) if in_place and type(live) is type(new) else new


def _fill_dict(live: dict[Any, Any], value: dict[Any, Any]) -> dict[Any, Any]:
    live.clear()
    live.update(value)
    return live


def _fill_live(live: Any, new: Any) -> Any:
    """Puts the restored contents into a live container, if that can be changed."""
    if isinstance(live, dict):
        return _fill_dict(live, new)
    if isinstance(live, collections.deque) and live.maxlen == new.maxlen:
        live.clear()
        live.extend(new)
    elif isinstance(live, set):
        live.clear()
        live.update(new)
    elif isinstance(live, argparse.Namespace | types.SimpleNamespace):
        _fill_dict(vars(live), vars(new))
    elif isinstance(live, bytearray):
        live[:] = new
    else:
        return new
    return live
