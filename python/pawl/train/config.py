# SPDX-License-Identifier: Apache-2.0
"""Settings of a trainer: how many workers, where to store, what to keep, what to do about failures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import _checks, loggers
from .._pawl import UsageError

MAX = "max"
MIN = "min"


def check_num_to_keep(value: object) -> None:
    """None or 0 and more."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"Received invalid num_to_keep: {value!r}. Must be None or non-negative integer.")


def check_order(value: object) -> None:
    if value not in (MAX, MIN):
        raise UsageError(f'checkpoint_score_order must be either "{MAX}" or "{MIN}".')


@dataclass
class ScalingConfig:
    """How many workers there are, and where they run.

    ``engine="local"`` starts them as processes of this machine, by torch's elastic agent; ``"ray"`` as actors of the
    Ray cluster that this process is connected to; with ``"launcher"`` this process is one of them, which mpirun, srun,
    torchrun or the like have started, and all of them call ``fit``. None: the launcher's where there is one of several
    processes, Ray's where this process is connected to a cluster, else local.

    Each worker takes one core, or one GPU with ``use_gpu``, unless ``resources_per_worker`` says otherwise
    (``{"CPU": 0.5}``). ``min_workers``: where fewer are to be had when the group is started, at first or after a
    failure, it continues with these, down to so many; None = always ``num_workers``.
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    min_workers: int | None = None
    engine: Literal["local", "ray", "launcher"] | None = None
    trainer_resources: Mapping[str, float] | None = None  # Ray's; local workers take what they need
    placement_strategy: str = "PACK"  # Ray's

    def __post_init__(self) -> None:
        for name in ("num_workers", "min_workers"):
            value = getattr(self, name)
            if value is None and name == "min_workers":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 15:
                raise UsageError(f"{name} must be a whole number from 1 to 32767, received {value!r}")
        if self.min_workers is not None and self.min_workers > self.num_workers:
            raise UsageError(
                f"min_workers must be at most num_workers ({self.num_workers}), received {self.min_workers}"
            )
        if self.engine not in ("local", "ray", "launcher", None):
            raise UsageError(f'engine must be "local", "ray", "launcher" or None, received {self.engine!r}')


@dataclass
class FailureConfig:
    """What to do when a worker fails.

    ``max_failures``: how many times the group of workers is started again, from the newest valid checkpoint; -1 = for
    ever, 0 = not at all. A worker that gives no sign of life for ``heartbeat_timeout`` seconds is killed, which counts
    as a failure; so does a report that not all workers have come to within ``report_timeout`` of the first one.
    ``progress_timeout``: so many seconds without any worker coming to a report are a failure, too: all of them hang,
    though their processes live. None = no limit. ``get_context().alive()`` says between reports that a worker gets on.
    ``grace_seconds``: time from SIGTERM or SIGUSR1 until everything is killed, if known: then fit ends in time.
    """

    max_failures: int = 0
    heartbeat_timeout: float = 60.0
    report_timeout: float = 1800.0
    grace_seconds: float | None = None
    progress_timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_failures, bool) or not isinstance(self.max_failures, int) or self.max_failures < -1:
            raise UsageError(f"max_failures must be -1 (for ever), 0 or more, received {self.max_failures!r}")
        for name in ("heartbeat_timeout", "report_timeout", "progress_timeout", "grace_seconds"):
            value = getattr(self, name)
            if value is None and name in ("progress_timeout", "grace_seconds"):
                continue
            if _checks.seconds(name, value) <= 0:
                raise UsageError(f"{name} must be a number of seconds above 0, received {value!r}")


@dataclass
class CheckpointConfig:
    """Which checkpoints are kept.

    ``num_to_keep``: None keeps all; N the newest N, or with ``checkpoint_score_attribute``, a key of the reported
    metrics, the best N and the latest as well, so that a resume never loses progress (``keep_latest=False`` gives
    exactly N); 0 writes nothing to disk and keeps the newest in memory.

    ``_checkpoint_keep_all_ranks``: every worker's dict is kept, and each gets its own back; else the first worker's
    counts. Pieces of distributed tensors (DTensor, pawl.Shard) and the files of directories are every worker's in any
    case. ``_checkpoint_upload_from_workers``: each worker writes its part to the storage by itself, which pawl does
    anyway. ``allow_pickle``: values that a state cannot hold are pickled, and pickles are read.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"
    keep_latest: bool = True
    allow_pickle: bool = False
    _checkpoint_keep_all_ranks: bool = False
    _checkpoint_upload_from_workers: bool = False

    def __post_init__(self) -> None:
        check_num_to_keep(self.num_to_keep)
        check_order(self.checkpoint_score_order)


@dataclass
class RunConfig:
    """Where a run is stored and what becomes of its checkpoints.

    The run's folder is ``storage_path/name``: a path, or a URL such as ``s3://bucket/folder``. Without a storage path
    it is ``~/ray_results``, without a name ``train_<date and time>/run_001``. An existing run continues from
    its newest checkpoint.

    ``logger``: where the first worker's metrics go, and what each checkpoint has cost (pawl.loggers). It stays in this
    process and is called by the thread that has called ``fit``; the step is the number of the report in the run.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    options: Mapping[str, Any] = field(default_factory=dict)  # more of pawl.CheckpointManager's, by their names
    logger: object = None

    def __post_init__(self) -> None:
        if self.storage_path is not None:
            _checks.path("storage_path", self.storage_path)
        if self.name is not None and (not isinstance(self.name, str) or not self.name or self.name in (".", "..")):
            raise UsageError(f"name must be the name of a folder, received {self.name!r}")
        if "logger" in self.options:
            raise UsageError("options: give the logger as RunConfig(logger=..), every worker would log by itself")
        if self.logger is not None:
            loggers.Scalars(self.logger)  # refuses what is none
        self.failure_config = self.failure_config or FailureConfig()
        self.checkpoint_config = self.checkpoint_config or CheckpointConfig()
