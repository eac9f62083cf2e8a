# SPDX-License-Identifier: Apache-2.0
"""Trainers start workers, watch them, restart them after failures, and collect the results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .. import _checks, _pawl, _signals
from .._pawl import NotFoundError, PawlError, UsageError
from ..checkpoint import Checkpoint as AnyCheckpoint
from ..loggers import Log, Scalars
from ..options import Retention
from . import _payload
from .channel import Host
from .checkpoint import Checkpoint
from .config import CheckpointConfig, RunConfig, ScalingConfig
from .engine import Engine, Job, Reached, engine_of, name_of_engine
from .group import Group
from .layout import default_run_dir
from .result import Result, TrainingFailedError


class DataParallelTrainer:
    """Runs a function in several workers at once. An existing run continues from its newest
    checkpoint.

    Args:
        train_loop_per_worker: The function. It takes ``train_loop_config`` or nothing, and calls
            ``pawl.train.report`` and ``pawl.train.get_checkpoint``.
        train_loop_config: The function's argument, a dict. Default: None.
        scaling_config: How many workers, and where. Default: None, one worker.
        run_config: Where to store, what to keep, what to do about failures. Default: None.
        resume_from_checkpoint: Where a new run begins: a checkpoint of pawl, or a file or folder of
            another program (``Checkpoint("model.pt")``). Default: None.

    Raises:
        UsageError: An argument has another type.
    """

    _backend: str | None = None  # of torch's process group that the workers are in

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        resume_from_checkpoint: AnyCheckpoint | None = None,
    ) -> None:
        _payload.check_function(train_loop_per_worker)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise UsageError(f"train_loop_config must be a dict, received {_checks.shown(train_loop_config)}")
        if resume_from_checkpoint is not None and not isinstance(resume_from_checkpoint, AnyCheckpoint):
            raise UsageError(
                f"resume_from_checkpoint must be a Checkpoint, received {_checks.shown(resume_from_checkpoint)}"
            )
        self._function, self._config = train_loop_per_worker, train_loop_config
        self._scaling = scaling_config or ScalingConfig()
        self._run = run_config or RunConfig()
        self._resume = None if resume_from_checkpoint is None else Checkpoint.of(resume_from_checkpoint)

    def fit(self) -> Result:
        """Trains. Returns when the function has ended in all workers.

        Returns:
            Checkpoints and metrics.

        Raises:
            TrainingFailedError: The workers have failed too often; its ``result`` has the
                checkpoints until then.
            Preempted: SIGTERM or SIGUSR1 has ended it. It is a SystemExit.
            UsageError: There is no room for the first workers, or ``_current_checkpoint_id`` of the
                checkpoint to begin with is not a number.
        """
        if name_of_engine(self._scaling) == "launcher":
            from . import launched  # not at the top: it imports the program of local workers

            return launched.fit(self)
        payload = _payload.pack(self._function, self._config)
        engine = engine_of(self._scaling)
        n = self._workers(engine, first=True)
        with contextlib.ExitStack() as after:
            root, memory = self._folder(after)
            resume, first = self._resumed(after)
            grace = _checks.limit(self._run.failure_config.grace_seconds)
            watch = _signals.acquire(grace or 0.0)
            after.callback(_signals.release)
            host = Host(engine.host())
            group = Group(engine, host, self._run, watch)
            after.callback(engine.stop)
            while True:
                group.run(self._job(payload, n, group.attempt + 1, host, root, resume, first))
                if not group.again():
                    break
                try:
                    n = self._workers(engine, first=False)
                except Exception as why:
                    group.start_failed(why)
                    break
            group.raise_if_preempted()
            if (error := group.error()) is not None:
                raise self._with_result(error, root, memory, group.rows)
            return self._result(root, memory, group.rows, None, group.reasons)

    # ---- before ----

    def _workers(self, engine: Engine, first: bool) -> int:
        """How many workers to start: those requested, or fewer if ``min_workers`` allows it."""
        asked, least = self._scaling.num_workers, self._scaling.min_workers or self._scaling.num_workers
        found = engine.available(self._scaling)
        if found < (asked if first and self._scaling.min_workers is None else least):
            what = "GPU" if self._scaling.use_gpu else "CPU"
            raise UsageError(
                f"num_workers={asked}, but there is room for {found} here ({os.cpu_count()} cores); ask for fewer, or "
                f'for less than one {what} for each: ScalingConfig(resources_per_worker={{"{what}": 0.5}})'
            )
        return min(asked, found)

    def _folder(self, after: contextlib.ExitStack) -> tuple[str, bool]:
        """The run's folder or URL, and whether it is a temporary one in memory."""
        if self._run.checkpoint_config.num_to_keep == 0:
            base = "/dev/shm" if os.path.isdir("/dev/shm") else None
            folder = tempfile.mkdtemp(prefix="pawl-train-", dir=base)
            after.callback(shutil.rmtree, folder, ignore_errors=True)
            return os.path.join(folder, "run"), True
        place = self._run.storage_path
        base_ = os.path.expanduser("~/ray_results") if place is None else _checks.path("storage_path", place)
        if self._run.name is None:
            root = (
                default_run_dir(base_)
                if "://" not in base_
                else f"{base_.rstrip('/')}/{_stamp()}/run_{uuid.uuid4().hex[:8]}"
            )
        else:
            root = f"{base_.rstrip('/')}/{self._run.name}"
        return root if "://" in root else os.path.abspath(root), False

    def _resumed(self, after: contextlib.ExitStack) -> tuple[tuple[str, int] | None, int]:
        """Where the workers find the checkpoint to begin with, and the number to continue from."""
        given = self._resume
        if given is None:
            return None, 0
        number: Any = 0
        if given.folder is None:
            with contextlib.suppress(UsageError):  # it holds files, not a dict
                number = given.to_dict().get("_current_checkpoint_id", 0)
        first = _checks.whole(f"{given!r}: _current_checkpoint_id", number, 63)
        if given._source is not None:
            return given._source, first
        if given.path is not None:
            return (given.path, 0), first
        folder = tempfile.mkdtemp(prefix="pawl-train-")
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        return (given.to_directory(os.path.join(folder, "checkpoint")), 0), first

    def _job(
        self,
        payload: bytes,
        n: int,
        attempt: int,
        host: Reached,
        root: str,
        resume: tuple[str, int] | None,
        first: int,
        launched: bool = False,
        channel: str = "",
    ) -> Job:
        failure, keep = self._run.failure_config, self._run.checkpoint_config
        import sys

        name = self._run.name or os.path.basename(os.path.dirname(root)) or "train"
        names = {
            "experiment": name,
            "trial": f"{type(self).__name__}_{os.path.basename(root)}",
            "trial_id": os.path.basename(root),
            "storage_path": os.path.dirname(root),
            "first": str(first),
        }
        return Job(
            payload,
            n,
            attempt,
            uuid.uuid4().hex,
            host.host,
            host.port,
            root,
            _options(keep, self._run.options),
            keep._checkpoint_keep_all_ranks,
            keep.allow_pickle,
            _checks.seconds("report_timeout", failure.report_timeout),
            _checks.limit(failure.grace_seconds) or 0.0,
            self._group_backend(),
            resume,
            names,
            tuple(sys.path),
            launched,
            _checks.seconds("heartbeat_timeout", failure.heartbeat_timeout),
            self._log(launched),
            channel,
        )

    def _log(self, launched: bool) -> Log | bool:
        logger = self._run.logger
        return Scalars(logger).log if launched and logger is not None else logger is not None

    def _group_backend(self) -> str | None:
        return self._backend

    # ---- after ----

    def _result(
        self,
        root: str,
        memory: bool,
        rows: list[dict[str, Any]],
        error: TrainingFailedError | None,
        reasons: list[str],
    ) -> Result:
        keep = self._run.checkpoint_config
        found: list[_pawl.Info] = []
        with contextlib.suppress(NotFoundError):
            run = _pawl.Run(root, read_only=True)
            try:
                found = run.list()
            finally:
                run.close()
        made = {info["id"]: self._checkpoint(root, info["id"], memory, keep) for info in found}
        ranked = _ranked(found, keep)
        return Result(
            made[found[-1]["id"]] if found else None,
            [(made[info["id"]], info["metrics"]) for info in ranked],
            rows[-1] if rows else None,
            root,
            error,
            rows,
            reasons,
        )

    def _with_result(
        self, error: TrainingFailedError, root: str, memory: bool, rows: list[dict[str, Any]]
    ) -> TrainingFailedError:
        """Adds the results so far to the error, as far as they can still be read."""
        error.result = Result(None, [], rows[-1] if rows else None, root, error, rows, error.reasons)
        try:
            error.result = self._result(root, memory, rows, error, error.reasons)
        except (PawlError, OSError) as unread:
            error.add_note(f"pawl: the checkpoints could not be read: {unread}")
        return error

    @staticmethod
    def _checkpoint(root: str, id: int, memory: bool, keep: CheckpointConfig) -> Checkpoint:
        one = Checkpoint.from_run(root, id, allow_pickle=keep.allow_pickle)
        return one.detached() if memory else one


def _stamp() -> str:
    return time.strftime("train_%Y-%m-%d_%H-%M-%S")


def _options(keep: CheckpointConfig, more: Mapping[str, Any]) -> dict[str, Any]:
    retention = more.get("retention") or Retention()
    if keep.num_to_keep == 0:  # in memory: keep one, whatever the scores
        return {**more, "num_to_keep": 1}
    return {
        **more,
        "num_to_keep": keep.num_to_keep,
        "score_attribute": keep.checkpoint_score_attribute,
        "score_order": keep.checkpoint_score_order if keep.checkpoint_score_attribute else "max",
        "retention": dataclasses.replace(retention, keep_latest=keep.keep_latest and retention.keep_latest),
    }


def _ranked(found: list[_pawl.Info], keep: CheckpointConfig) -> list[_pawl.Info]:
    """The best first, the older first among equals, and those without a score last."""
    if keep.checkpoint_score_attribute is None:
        return found[::-1]
    sign = -1 if keep.checkpoint_score_order == "max" else 1

    def place(info: _pawl.Info) -> tuple[bool, float, int]:
        score = info["metrics"].get(keep.checkpoint_score_attribute or "")
        known = isinstance(score, int | float) and score - score == 0
        return (not known, sign * score if known and score is not None else 0.0, info["id"])

    return sorted(found, key=place)
