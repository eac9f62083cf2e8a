# SPDX-License-Identifier: Apache-2.0
"""pawl: save training state without stopping the training, keep the right checkpoints, resume
exactly.

    with pawl.CheckpointManager("runs/demo", num_to_keep=3) as manager:
        state = {"model": model, "optimizer": optimizer, "rng": pawl.rng_state()}
        restored = manager.restore(state)                    # None on a fresh run
        for epoch in range(restored.step + 1 if restored else 0, 10):
            ...
            manager.save(epoch, state, metrics={"accuracy": accuracy})

A state is a tree of dicts, lists, tuples, tensors (torch, NumPy, JAX), int, float, bool, str, bytes
and None. It may contain objects with state_dict() and load_state_dict(), which are saved and
restored through these methods. This package only translates. libpawl does the work, on its own
threads and without the interpreter lock.
"""

from typing import TYPE_CHECKING

from ._cluster import init
from ._convert import convert, export
from ._names import elsewhere
from ._pawl import (
    AccessError,
    BusyError,
    CancelledError,
    ConflictError,
    CorruptError,
    DeviceError,
    ExistsError,
    InternalError,
    LimitError,
    MismatchError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    PawlError,
    ReadOnlyError,
    StorageError,
    Ticket,
    TimeoutError,
    TransientError,
    UnsupportedError,
    UsageError,
    VersionError,
    optimal_interval,
    version,
)
from .checkpoint import Checkpoint, load, save
from .consumer import hold, wait_for_new
from .files import FileSaver
from .inspection import copy, diff, doctor, gc, prune, read, repair, tree, verify
from .manager import CheckpointManager
from .options import IO, Candidate, Mirror, Naming, Packs, Ranks, Retention, Staging, Timeouts, Uploads
from .rank import Rank, rank_identify
from .records import CheckpointInfo, Converted, Decision, Event, Restored
from .rng import RngState, rng_state
from .shard import PerRank, Shard
from .syncer import SyncConfig, Syncer, SyncReport

__version__ = version()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise AttributeError(elsewhere("pawl", name), name=name)


__all__ = [
    "AccessError",
    "BusyError",
    "CancelledError",
    "Candidate",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointManager",
    "ConflictError",
    "Converted",
    "CorruptError",
    "Decision",
    "DeviceError",
    "Event",
    "ExistsError",
    "FileSaver",
    "IO",
    "InternalError",
    "LimitError",
    "Mirror",
    "MismatchError",
    "Naming",
    "NoSpaceError",
    "NotFoundError",
    "OutOfMemoryError",
    "Packs",
    "PawlError",
    "PerRank",
    "Rank",
    "Ranks",
    "ReadOnlyError",
    "Restored",
    "Retention",
    "RngState",
    "Shard",
    "Staging",
    "StorageError",
    "SyncConfig",
    "SyncReport",
    "Syncer",
    "Ticket",
    "TimeoutError",
    "Timeouts",
    "TransientError",
    "UnsupportedError",
    "Uploads",
    "UsageError",
    "VersionError",
    "__version__",
    "convert",
    "copy",
    "diff",
    "doctor",
    "export",
    "gc",
    "hold",
    "init",
    "load",
    "optimal_interval",
    "prune",
    "rank_identify",
    "read",
    "repair",
    "rng_state",
    "save",
    "tree",
    "verify",
    "wait_for_new",
]
