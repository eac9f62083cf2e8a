# SPDX-License-Identifier: Apache-2.0
"""Settings of a trainer: the workers, the storage, what to keep, what to do about failures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import _checks, loggers
from .._pawl import UsageError
from ..options import Duration

MAX = "max"
MIN = "min"


_KEPT = {
    "num_to_keep": "num_to_keep",
    "score_attribute": "checkpoint_score_attribute",
    "score_order": "checkpoint_score_order",
}  # options of CheckpointManager that CheckpointConfig sets


def check_num_to_keep(value: object) -> None:
    """Checks that the value is None, 0 or more."""
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

    Attributes:
        num_workers: Number of workers. Default: 1.
        use_gpu: Give each worker a GPU. Default: False, a core.
        resources_per_worker: What a worker takes instead, such as ``{"CPU": 0.5}``. Default: None.
        min_workers: Start with fewer workers, down to this number, if there is no room for all;
            also after a failure. Default: None, always ``num_workers``.
        engine: "local" starts processes of this machine, by torch's elastic agent. "ray" starts
            actors of the Ray cluster that this process is connected to. With "launcher" this
            process is a worker that mpirun, srun or torchrun has started; all of them call ``fit``.
            Default: None, "launcher" if a launcher started several processes, "ray" if connected,
            else "local".
        trainer_resources: The trainer's resources in Ray. Local workers ignore it. Default: None.
        placement_strategy: Ray's placement strategy. Default: "PACK".
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    min_workers: int | None = None
    engine: Literal["local", "ray", "launcher"] | None = None
    trainer_resources: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"

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
    """What to do when a worker fails. Times are durations: seconds, ``"5min"`` or a timedelta.

    Attributes:
        max_failures: How many times the workers are started again, from the newest valid
            checkpoint; -1 means no limit. Default: 0.
        heartbeat_timeout: A worker without a heartbeat for this time is killed. That is a failure.
            Default: 60.
        report_timeout: All workers must reach a report within this time of the first. Default:
            1,800.
        grace_seconds: Time from SIGTERM or SIGUSR1 until all processes are killed. ``fit`` ends
            before. Default: None, unknown.
        progress_timeout: It is a failure if no worker reports for this time. Calls of
            ``get_context().alive()`` count as well. Default: None, no limit.
    """

    max_failures: int = 0
    heartbeat_timeout: Duration = 60.0
    report_timeout: Duration = 1800.0
    grace_seconds: Duration | None = None
    progress_timeout: Duration | None = None

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

    Attributes:
        num_to_keep: Keep the newest N, or with a score attribute the best N and the latest. 0
            writes nothing to disk and keeps the newest in memory. Default: None, all.
        checkpoint_score_attribute: A key of the reported metrics. Default: None.
        checkpoint_score_order: Whether the "max" or the "min" is best. Default: "max".
        keep_latest: Keep the latest in addition to the best N, so that a resume never loses
            progress. Default: True.
        allow_pickle: Pickle values that a state cannot hold, and load pickles. Default: False.
        _checkpoint_keep_all_ranks: Keep the dict of every worker, and return to each its own.
            Default: False, only the first worker's is kept. Pieces of distributed tensors and files
            of folders are always kept for all workers.
        _checkpoint_upload_from_workers: An option of Ray. With pawl each worker always writes its
            own part. Default: False.
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
    """Where a run is stored, and what happens to its checkpoints. An existing run continues from
    its newest checkpoint.

    Attributes:
        name: Name of the run's folder. Default: None, ``train_<date and time>/run_001``.
        storage_path: Folder of the runs: a path, or a URL such as ``s3://bucket/folder``. Default:
            None, ``~/ray_results``.
        failure_config: What to do about failures. Default: a ``FailureConfig()``.
        checkpoint_config: Which checkpoints are kept. Default: a ``CheckpointConfig()``.
        options: More options of ``pawl.CheckpointManager``, by their names, except those
            that ``checkpoint_config`` has. Default: none.
        logger: Where the first worker's metrics and the cost of each checkpoint go (pawl.loggers).
            It stays in this process; the thread that called ``fit`` calls it. The step is the
            number of the report. Default: None.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    logger: object = None

    def __post_init__(self) -> None:
        if self.storage_path is not None:
            _checks.path("storage_path", self.storage_path)
        if self.name is not None and (not isinstance(self.name, str) or not self.name or self.name in (".", "..")):
            raise UsageError(f"name must be the name of a folder, received {self.name!r}")
        if "logger" in self.options:
            raise UsageError("options: give the logger as RunConfig(logger=..), every worker would log by itself")
        for name, field_name in _KEPT.items():
            if name in self.options:
                raise UsageError(f"options: give {name} as checkpoint_config=CheckpointConfig({field_name}=..)")
        if self.logger is not None:
            loggers.Scalars(self.logger)  # an error if it is not a logger
        self.failure_config = self.failure_config or FailureConfig()
        self.checkpoint_config = self.checkpoint_config or CheckpointConfig()
