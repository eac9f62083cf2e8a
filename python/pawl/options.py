# SPDX-License-Identifier: Apache-2.0
"""The options of CheckpointManager that few runs need, in groups.

A size is a number of bytes or a text (``"500MB"``, ``"2GiB"``). A duration is a number of seconds,
a text (``"90s"``, ``"5min"``, ``"7d"``) or a ``timedelta``. Zero or None is the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from ._names import explained
from ._pawl import UsageError

Size = int | float | str
Duration = float | str | timedelta
Interval = str | int | timedelta | Callable[[int], bool] | None


class _Sized(Protocol):
    """torch.dtype and numpy.dtype."""

    @property
    def itemsize(self) -> int: ...


DType = str | type[Any] | _Sized
Cast = DType | Mapping[str, DType] | None


@dataclass(frozen=True)
class Candidate:
    """A checkpoint, as a rule of retention sees it.

    Attributes:
        id: Its id; newer checkpoints have larger ones.
        step: Step that it was saved at.
        time: When it was saved, in UTC.
        nbytes: Bytes that deleting it frees at most.
        metrics: Its metrics, with those scored later.
        pinned: Whether it is pinned.
        nonfinite: Whether its state holds NaN or Inf.
    """

    id: int
    step: int
    time: datetime
    nbytes: int
    metrics: Mapping[str, float]
    pinned: bool
    nonfinite: bool


@explained
@dataclass(frozen=True, kw_only=True)
class Retention:
    """What to keep, in addition to ``num_to_keep``. A checkpoint is kept if any rule keeps it.

    Attributes:
        keep_latest: Whether ``num_to_keep`` and ``keep_best`` always keep the latest. Default:
            True.
        keep_last: Keep the newest N. Default: 0, no such rule.
        keep_best: Keep the best N by ``score_attribute``. Default: 0, no such rule.
        keep_every: Keep the first checkpoint of every N steps: at each multiple of N, or next after
            it. Default: 0, no such rule.
        keep_seconds: Keep checkpoints younger than this duration. Default: 0, no such rule.
        keep_hourly: Of the checkpoints younger than this duration, keep the first of every hour
            (UTC). Default: 0.
        keep_daily: Of those younger than this duration, the first of every day. Default: 0.
        keep_weekly: Of those younger than this duration, the first of every week. Default: 0.
        keep: A function that takes the list of candidates, oldest first, and returns the ids to
            keep. It may run on any thread, and must not use the manager. If it raises, nothing is
            deleted. Default: None.
        max_bytes: Delete the oldest while all together are above this size. Default: 0, no limit.
        strict_score: Refuse a save that is not better than the worst of a full list. Default:
            False.
    """

    keep_latest: bool = True
    keep_last: int = 0
    keep_best: int = 0
    keep_every: int = 0
    keep_seconds: Duration = 0
    keep_hourly: Duration = 0
    keep_daily: Duration = 0
    keep_weekly: Duration = 0
    keep: Callable[[list[Candidate]], Iterable[int]] | None = None
    max_bytes: Size = 0
    strict_score: bool = False


@explained
@dataclass(frozen=True)
class Mirror:
    """Another store to which checkpoints are copied in the background.

    Attributes:
        url: A path or a URL, outside of the run's folder.
        every: Copy only the first checkpoint at or after each multiple of this interval: a number
            of steps, a time string (``"1000ba"``, ``"5min"``) or a timedelta. Default: None, every
            checkpoint.
        keep: Rules for the checkpoints of the mirror. Default: None, it keeps all.
    """

    url: str | os.PathLike[str]
    every: str | int | timedelta | None = None
    keep: Retention | None = None


@explained
@dataclass(frozen=True, kw_only=True)
class Uploads:
    """How checkpoints reach the mirrors.

    Attributes:
        n_streams: Pieces of an upload in flight, 1 to 64. Default: 0, which is 4.
        memory_bytes: Size of the buffers of one upload. Default: 0, which is 256 MiB.
        bytes_per_second: Limit of writing into each mirror, as a size. Default: 0, no limit.
        error_budget: Failed tries in a row that are not reported. Default: 0, report each.
        delete_local: Delete a checkpoint in the run's folder once every mirror has it. Default:
            False.
        fail_saves: Whether a failed upload fails the next save. Default: False:
            ``check_for_errors`` and ``close`` report it.
        leave_uploads: ``close`` does not wait for uploads; the next open resumes them. Default:
            False.
    """

    n_streams: int = 0
    memory_bytes: Size = 0
    bytes_per_second: Size = 0
    error_budget: int = 0
    delete_local: bool = False
    fail_saves: bool = False
    leave_uploads: bool = False


@explained
@dataclass(frozen=True, kw_only=True)
class Staging:
    """How tensors get from the caller to the threads that write.

    Attributes:
        mode: "snapshot" copies the state and returns; "ring" copies through ``ring_bytes``;
            "direct" does that, and waits for the writes. Default: "snapshot".
        arena_bytes: Most memory of one save, as a size; larger states use a ring. Default: 0, no
            limit.
        ring_bytes: Memory of a ring, as a size. Default: 0, which is 64 MiB.
        copy_threads: Threads that copy. Default: 0, one per processor and at most 4.
        device: "auto" copies tensors on a GPU within the GPU first, where its memory allows
            (docs/explanation/gpu.md). Default: "off".
    """

    mode: Literal["snapshot", "ring", "direct"] = "snapshot"
    arena_bytes: Size = 0
    ring_bytes: Size = 0
    copy_threads: int = 0
    device: Literal["off", "auto"] = "off"


@explained
@dataclass(frozen=True, kw_only=True)
class Packs:
    """How checkpoints are stored in files.

    Attributes:
        pack_bytes: Target size of a file. Default: 0, which is 256 MiB.
        block_bytes: Size of the blocks that have a checksum each, a power of two. Default: 0, which
            is 1 MiB.
        compression_level: Level of the codec. Default: 0, the codec's own.
        recycle: Deleted checkpoints whose files are kept for reuse, at most 1,000. Default: 0.
        reuse: Link the files of tensors that have not changed instead of writing them again.
            Default: True.
    """

    pack_bytes: Size = 0
    block_bytes: Size = 0
    compression_level: int = 0
    recycle: int = 0
    reuse: bool = True


@explained
@dataclass(frozen=True, kw_only=True)
class IO:
    """How bytes reach the store.

    Attributes:
        threads: Threads that write and read, at most 256. Default: 0, which is 4.
        direct: Bypass the page cache. Default: True.
        write_bytes_per_second: Limit of writing, all threads together, as a size. Default: 0, no
            limit.
        read_bytes_per_second: Limit of reading, all threads together, as a size. Default: 0, no
            limit.
        fault: For tests: the n-th call of an operation of the store fails with a code, as
            (operation, n, code, for ever). Default: None.
    """

    threads: int = 0
    direct: bool = True
    write_bytes_per_second: Size = 0
    read_bytes_per_second: Size = 0
    fault: tuple[str, int, int, bool] | None = None


@explained
@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Many processes that save one run together. Values that are None come from the launcher's
    variables.

    Attributes:
        rank: Which process this is, from 0. Default: None, as the launcher says.
        world_size: Number of processes. Default: None, as the launcher says.
        node_rank: Which node this is, from 0. Default: None, as the launcher says.
        n_nodes: Number of nodes. Default: 0, computed from the ranks per node.
        n_partners: Other nodes that keep a copy of each file, at most 7. Default: 0.
        node_folder: Folder of each node for its files, a path with ``{node_rank}`` in it. Default:
            None, the run's.
        broadcast: A function of bytes that returns those of rank 0. Default: None, files in the
            store are used.
    """

    rank: int | None = None
    world_size: int | None = None
    node_rank: int | None = None
    n_nodes: int = 0
    n_partners: int = 0
    node_folder: str | os.PathLike[str] | None = None
    broadcast: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            found = f"rank={self.rank!r} and world_size={self.world_size!r}"
            raise UsageError(f"rank and world_size go together, received {found}")


@explained
@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts and other durations of a run.

    Attributes:
        lease: Duration after which a lease that is not renewed is taken over. Default: None, 2
            minutes.
        lease_wait: Duration of the wait for the lease of another process; 0 raises ``BusyError`` at
            once. Default: None, until that process is known to be alive or dead.
        commit: Duration of the wait for the other ranks. Default: None, 30 minutes.
        upload: Duration of the upload of one checkpoint to one mirror, after which it is tried
            again. Default: None, 1 hour.
        grace: Duration between the signal that ends a job and the kill. Default: None, not known.
        mtbf: Mean duration between failures, for ``save_interval="auto"``. Default: None, 1 day.
    """

    lease: Duration | None = None
    lease_wait: Duration | None = None
    commit: Duration | None = None
    upload: Duration | None = None
    grace: Duration | None = None
    mtbf: Duration | None = None


@explained
@dataclass(frozen=True, kw_only=True)
class Naming:
    """How a run and its checkpoints are named.

    Attributes:
        run_id: Expected id of the run, 32 hex digits. Default: None, any.
        name_template: Name of a checkpoint's folder. Default: None, ``checkpoint_{id:06d}``.
        after_id: New checkpoints get ids above this one. Default: 0.
    """

    run_id: str | None = None
    name_template: str | None = None
    after_id: int = 0
