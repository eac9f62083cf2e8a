# SPDX-License-Identifier: Apache-2.0
"""The keywords of CheckpointManager, as options of the library (src/run/option_table.c)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _checks, _pawl, _reports
from ._pawl import UsageError
from .rank import Rank, rank_identify

_ORDERS = {"max": 1, "min": -1}


def _as_it_is(keyword: str, value: Any) -> Any:
    return value


def _opposite(keyword: str, value: Any) -> bool:
    return not value


def _bits(bits: int) -> Callable[[str, Any], int]:
    return functools.partial(_checks.whole, bits=bits)


def _given(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """None is the library's default."""
    return lambda keyword, value: None if value is None else check(keyword, value)


def _one_of(*words: str) -> Callable[[str, Any], str]:
    return functools.partial(_checks.word, words=words)


def _keep(keyword: str, value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{keyword} must be None or a non-negative integer, received {value!r}")
    if value >= 2**63:
        raise UsageError(f"{keyword} must be below 2**63, received {value!r}")
    return value or _pawl.KEEP_MEMORY


def _interval(keyword: str, value: Any) -> str | None:
    if isinstance(value, bool) or not (value is None or isinstance(value, str | int) or callable(value)):
        raise UsageError(f"{keyword} must be a time string, a number of epochs or a function, received {value!r}")
    return str(value) if isinstance(value, str | int) else None


def _lease_wait(keyword: str, value: Any) -> float:
    """-1 ms = not at all."""
    return _checks.seconds(keyword, value) or -0.001


def _hard(keyword: str, value: Any) -> bool:
    return _checks.word(keyword, value, ("soft", "hard")) == "hard"


# Keyword -> option of the library, and what checks and converts the value.
_TABLE: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "save_interval": ("save_interval", _interval),
    "read_only": ("read_only", _as_it_is),
    "overwrite": ("overwrite", _as_it_is),
    "run_id": ("run_id", _as_it_is),
    "name_template": ("name_template", _as_it_is),
    "after_id": ("after_id", _bits(53)),
    "mtbf_seconds": ("mtbf_seconds", _checks.seconds),
    "on_busy": ("on_busy", _one_of("wait", "skip", "replace")),
    "nonfinite": ("nonfinite", _one_of("accept", "flag", "refuse")),
    "strict_latest": ("strict_latest", _as_it_is),
    "num_to_keep": ("retention.num_to_keep", _keep),
    "keep_latest": ("retention.drop_latest", _opposite),
    "keep_last": ("retention.keep_last", _checks.whole),
    "keep_best": ("retention.keep_best", _checks.whole),
    "keep_every": ("retention.keep_every", _checks.whole),
    "keep_seconds": ("retention.keep_seconds", _checks.seconds),
    "max_bytes": ("retention.max_bytes", _checks.whole),
    "strict_score": ("retention.strict_score", _as_it_is),
    "mode": ("staging.mode", _one_of("snapshot", "ring", "direct")),
    "arena_bytes": ("staging.arena_bytes", _checks.whole),
    "ring_bytes": ("staging.ring_bytes", _checks.whole),
    "copy_threads": ("staging.copy_threads", _bits(32)),
    "pack_bytes": ("packs.pack_bytes", _checks.whole),
    "block_bytes": ("packs.block_bytes", _checks.whole),
    "compression": ("packs.compression", _as_it_is),
    "compression_level": ("packs.compression_level", _bits(31)),
    "recycle": ("packs.recycle", _bits(32)),
    "reuse": ("packs.no_reuse", _opposite),
    "io_threads": ("io.threads", _bits(32)),
    "direct_io": ("io.no_direct", _opposite),
    "bandwidth": ("io.write_bytes_per_second", _given(_checks.whole)),
    "read_bandwidth": ("io.read_bytes_per_second", _given(_checks.whole)),
    "fault": ("io.fault", lambda keyword, value: _checks.fault(value)),
    "lease_timeout": ("lease.timeout_ms", _given(_checks.seconds)),
    "lease_wait": ("lease.wait_ms", _given(_lease_wait)),
    "commit_timeout": ("ranks.commit_timeout_ms", _given(_checks.seconds)),
    "broadcast": ("ranks.broadcast", _as_it_is),
    "node_folder": ("ranks.node_folder", _given(_checks.path)),
    "partner": ("ranks.n_partners", _bits(32)),
    "n_nodes": ("ranks.n_nodes", _bits(32)),
    "mirrors": ("mirrors.urls", _checks.paths),
    "mirror_keep": ("mirrors.retention", _checks.rules),
    "num_concurrent_uploads": ("mirrors.n_streams", _bits(32)),
    "upload_timeout": ("mirrors.timeout_ms", _given(_checks.seconds)),
    "upload_memory": ("mirrors.memory_bytes", _checks.whole),
    "upload_bandwidth": ("mirrors.bytes_per_second", _given(_checks.whole)),
    "upload_error_budget": ("mirrors.error_budget", _bits(32)),
    "delete_after_upload": ("mirrors.delete_local", _as_it_is),
    "upload_errors": ("mirrors.fail_saves", _hard),
    "wait_uploads": ("mirrors.leave_uploads", _opposite),
}


def _scores(attribute: Any, order: Any) -> dict[str, Any]:
    names = () if attribute is None else _checks.names("score_attribute", attribute)
    several = isinstance(order, Sequence) and not isinstance(order, str)
    words = tuple(order) if several else (order,) * max(len(names), 1)
    orders = tuple(_ORDERS[_checks.word("score_order", word, _ORDERS)] for word in words)
    if names and len(orders) != len(names):
        raise UsageError(f"{len(names)} score attributes, but {len(orders)} score orders")
    return {"retention.score_attributes": names, "retention.score_orders": orders if names else ()}


def _who(root: str, rank: int | None, world_size: int | None) -> Rank:
    """As given, else as the launcher says. A run in memory is one process's own."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank and world_size go together, received rank={rank!r} and world_size={world_size!r}")
    if rank is None or world_size is None:
        if root.startswith("mem:"):
            return Rank(0, 1, None, None, None, "", "")
        return rank_identify()
    given = (_checks.whole("rank", rank, 31), _checks.whole("world_size", world_size, 31))
    with contextlib.suppress(UsageError):  # the launcher may have other values
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


def read(given: Mapping[str, Any]) -> tuple[str, Rank, dict[str, Any]]:
    """The root, who this process is, and the options of ``_pawl.Run``; given: the arguments by their names."""
    options = {option: convert(keyword, given[keyword]) for keyword, (option, convert) in _TABLE.items()}
    root = _checks.path("root", given["root"])
    who = _who(root, given["rank"], given["world_size"])
    options |= _scores(given["score_attribute"], given["score_order"]) | _ranks(who, given["node_rank"])
    return root, who, {**options, "lease.on_wait": _reports.waits}
