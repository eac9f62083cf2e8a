# SPDX-License-Identifier: Apache-2.0
"""The arguments of CheckpointManager, as options of the library.

The library's table of options (src/run/option_table.c) defines names, units, ranges and defaults.
This module lists only the differences: options with another name in Python, and values in another
form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from . import _checks, _pawl, _reports
from ._pawl import BusyError, UsageError
from .options import IO, Candidate, Mirror, Naming, Packs, Ranks, Retention, Staging, Timeouts, Uploads
from .rank import Rank, rank_identify

_ORDERS = {"max": 1, "min": -1}
_PLAIN = ("read_only", "overwrite", "on_busy", "nonfinite")
_HOOKS = ("on_durable", "on_uploaded", "on_deleted", "on_error")
# Argument -> class of its group. In the library's table, its options begin with the argument's name.
_GROUPS: dict[str, type] = {
    "retention": Retention,
    "uploads": Uploads,
    "staging": Staging,
    "packs": Packs,
    "io": IO,
    "ranks": Ranks,
    "timeouts": Timeouts,
    "naming": Naming,
}


def _opposite(keyword: str, value: Any) -> bool:
    return not value


def _lease_wait(keyword: str, value: Any) -> Any:
    """0 means no wait, which is -1 ms in the library."""
    seconds = _pawl.parse_seconds(value) if isinstance(value, str) else value
    return -0.001 if seconds == 0 else seconds


def _rule(keyword: str, value: Any) -> Any:
    """Wraps a rule for the library: a function of rows that returns a truth value for each."""
    if not callable(value):
        raise UsageError(f"{keyword} must be a function of the list of candidates, received {_checks.shown(value)}")

    def ask(rows: list[tuple[Any, ...]]) -> list[bool]:
        candidates = [
            Candidate(id, step, datetime.fromtimestamp(when, UTC), nbytes, metrics, bool(pinned), bool(nonfinite))
            for id, step, when, nbytes, metrics, pinned, nonfinite in rows
        ]
        found = value(candidates)
        if not isinstance(found, Iterable):
            raise UsageError(f"{keyword}: expected a list of ids of candidates, received {_checks.shown(found)}")
        ids, kept = {candidate.id for candidate in candidates}, {_checks.index(one): one for one in found}
        for id, one in kept.items():
            if id not in ids:
                raise UsageError(f"{keyword}: expected ids of candidates, received {_checks.shown(one)}")
        return [candidate.id in kept for candidate in candidates]

    return ask


def _as_it_is(keyword: str, value: Any) -> Any:
    return value


# Options whose name, or the form of whose value, differs in the library.
_OTHERS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "retention.keep_latest": ("retention.drop_latest", _opposite),
    "retention.keep": ("retention.keep", _rule),
    "packs.reuse": ("packs.no_reuse", _opposite),
    "io.direct": ("io.no_direct", _opposite),
    "io.fault": ("io.fault", lambda keyword, value: _checks.fault(value)),
    "ranks.node_folder": ("ranks.node_folder", _checks.path),
    "timeouts.lease": ("timeouts.lease_ms", _as_it_is),
    "timeouts.lease_wait": ("timeouts.lease_wait_ms", _lease_wait),
    "timeouts.commit": ("timeouts.commit_ms", _as_it_is),
    "timeouts.upload": ("timeouts.upload_ms", _as_it_is),
    "timeouts.mtbf": ("timeouts.mtbf_seconds", _as_it_is),
}
_WITHOUT_OPTION = {"timeouts.grace", "ranks.rank", "ranks.world_size", "ranks.node_rank"}


def _of_group(name: str, group: Any) -> dict[str, Any]:
    kind = _GROUPS[name]
    if group is None:
        return {}
    if not isinstance(group, kind) or not dataclasses.is_dataclass(group):
        raise UsageError(f"{name} must be a pawl.{kind.__name__}, received {_checks.shown(group)}")
    found = {}
    for row in dataclasses.fields(group):
        keyword, value = f"{name}.{row.name}", getattr(group, row.name)
        if value is None or keyword in _WITHOUT_OPTION:
            continue
        option, convert = _OTHERS.get(keyword, (keyword, _as_it_is))
        value = value.total_seconds() if isinstance(value, timedelta) else value
        found[option] = convert(keyword, value)
    return found


def _num_to_keep(value: Any) -> int:
    if value is None:
        return 0
    number = _checks.index(value)
    if number is None or number < 0:
        raise UsageError(f"num_to_keep must be None or a non-negative integer, received {_checks.shown(value)}")
    if number >= 2**63:
        raise UsageError(f"num_to_keep must be below 2**63, received {_checks.shown(value)}")
    return number or _pawl.KEEP_MEMORY


def interval(keyword: str, value: Any) -> str | None:
    """An interval as a time string. A number, also as text, counts steps.

    None if there is no interval, or if it is a function.
    """
    if isinstance(value, timedelta):
        if value <= timedelta(0):
            raise UsageError(f"{keyword} must be above 0, received {_checks.shown(value)}")
        return f"{value.total_seconds()}sec"
    number = _checks.index(value)
    if number is None and not (value is None or isinstance(value, str) or callable(value)):
        raise UsageError(
            f"{keyword} must be a time string, a timedelta, a number of steps or a function, "
            f"received {_checks.shown(value)}"
        )
    if isinstance(value, str) and value.strip().isdecimal():
        number = int(value)
    if number is not None and number <= 0:
        raise UsageError(f"{keyword} must be above 0, received {_checks.shown(value)}")
    if number is not None:
        return f"{number}ba"
    return value if isinstance(value, str) else None


def _mirror(given: Any) -> tuple[str, str | None, dict[str, Any] | None]:
    mirror = given if isinstance(given, Mirror) else Mirror(given)
    if callable(mirror.every):
        raise UsageError(
            f"mirrors: every must be a time string, a timedelta or a number of steps, "
            f"received {_checks.shown(mirror.every)}"
        )
    if mirror.keep is not None and not isinstance(mirror.keep, Retention):
        raise UsageError(
            f"mirrors: keep must be a pawl.Retention, received {_checks.shown(mirror.keep)}; "
            "write keep=pawl.Retention(keep_last=...)"
        )
    rules = None if mirror.keep is None else _of_group("retention", mirror.keep)
    if rules is not None and "retention.keep" in rules:
        raise UsageError("mirrors: keep must not contain a function; only the run's retention can have one")
    return _checks.place("mirrors", mirror.url), interval("mirrors: every", mirror.every), rules


def _mirrors(given: Any) -> tuple[tuple[str, str | None, dict[str, Any] | None], ...]:
    if isinstance(given, str | os.PathLike | Mirror):
        return (_mirror(given),)
    if not isinstance(given, Sequence):
        raise UsageError(f"mirrors must be a path, a pawl.Mirror or a list of them, received {_checks.shown(given)}")
    return tuple(_mirror(one) for one in given)


def _scores(attribute: Any, order: Any) -> dict[str, Any]:
    names = () if attribute is None else _checks.names("score_attribute", attribute)
    several = isinstance(order, Sequence) and not isinstance(order, str)
    words = tuple(order) if several else (order,) * max(len(names), 1)
    orders = tuple(_ORDERS[_checks.word("score_order", word, _ORDERS)] for word in words)
    if not names and -1 in orders:
        raise UsageError('score_order="min" needs score_attribute, the name of the metric')
    if names and len(orders) != len(names):
        raise UsageError(f"{len(names)} score attributes, but {len(orders)} score orders")
    return {"retention.score_attributes": names, "retention.score_orders": orders if names else ()}


def _who(root: str, rank: int | None, world_size: int | None) -> Rank:
    """The rank as given, else as the launcher reports it.

    A run in memory belongs to one process.
    """
    if rank is None or world_size is None:
        if root.startswith("mem:"):
            return Rank(0, 1, None, None, None, "", "")
        return rank_identify()
    given = (_checks.whole("rank", rank, 31), _checks.whole("world_size", world_size, 31))
    with contextlib.suppress(UsageError):  # the launcher's values may differ
        found = rank_identify()
        if (found.rank, found.world_size) == given:
            return found
    return Rank(*given, None, None, None, "", "")


def _ranks(who: Rank, node_rank: int | None) -> dict[str, Any]:
    node_rank = who.node_rank if node_rank is None else node_rank
    return {
        "ranks.rank": who.rank,
        "ranks.world_size": who.world_size,
        "ranks.local_world_size": who.local_world_size,
        "ranks.node_rank": -1 if node_rank is None else _checks.whole("node_rank", node_rank, 31),
        "ranks.attempt": who.attempt,
    }


def retention(num_to_keep: Any, score_attribute: Any, score_order: Any, group: Any) -> dict[str, Any]:
    """The rules of retention as options of ``_pawl.Run``."""
    rules = _of_group("retention", group) | _scores(score_attribute, score_order)
    return rules | {"retention.num_to_keep": _num_to_keep(num_to_keep)}


def read(given: Mapping[str, Any]) -> tuple[str, Rank, dict[str, Any]]:
    """The root, the rank of this process, and the options of ``_pawl.Run``.

    given: the arguments of CheckpointManager by their names.
    """
    options = {name: given[name] for name in _PLAIN}
    for name in _GROUPS.keys() - {"retention"}:
        options |= _of_group(name, given[name])
    for name in _HOOKS:
        if given[name] is not None and not callable(given[name]):
            raise UsageError(f"{name} must be a function of a pawl.Event, received {_checks.shown(given[name])}")
    root = _checks.path("root", given["root"])
    ranks = given["ranks"] or Ranks()
    who = _who(root, ranks.rank, ranks.world_size)
    options |= retention(*(given[name] for name in ("num_to_keep", "score_attribute", "score_order", "retention")))
    options |= _ranks(who, ranks.node_rank) | {
        "save_interval": interval("save_interval", given["save_interval"]),
        "packs.compression": given["compression"],
        "mirrors": _mirrors(given["mirrors"]),
        "on_lease_wait": lambda why: _reports.waits(root, _spelled(why)),
    }
    return root, who, options


@functools.cache
def _keywords() -> dict[str, str]:
    """Option of the library -> keyword, where they differ."""
    return {"retention.num_to_keep": "num_to_keep"} | {option: keyword for keyword, (option, _) in _OTHERS.items()}


def _spelled(text: str) -> str:
    """A message of the library with options as Python spells them."""
    for option, keyword in _keywords().items():
        text = text.replace(option, keyword)
    return text


def open_run(root: str, options: Mapping[str, Any]) -> _pawl.Run:
    """Opens the run. An error names an option as Python spells it."""
    try:
        return _pawl.Run(root, **options)
    except (UsageError, BusyError) as error:
        text = _spelled(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from None


def with_rank(options: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """The arguments of a manager, with this process's rank in place of any other."""
    ranks = dataclasses.replace(options.get("ranks") or Ranks(), rank=rank, world_size=world_size)
    return {**options, "ranks": ranks}
