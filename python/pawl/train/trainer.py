# SPDX-License-Identifier: Apache-2.0
"""Trainers: start a group of workers, watch it, start it again after failures, collect what it gives."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .. import _checks, _pawl, _signals
from .._pawl import NotFoundError, UsageError
from . import _payload, parts
from .channel import Channel, Host
from .checkpoint import Checkpoint
from .config import CheckpointConfig, RunConfig, ScalingConfig
from .engine import Engine, Job, Outcome, engine_of
from .layout import default_run_dir
from .result import Result, TrainingFailedError
from .session import Preempted

_log = logging.getLogger("pawl")
_LOOK_SECONDS = 0.05


class DataParallelTrainer:
    """Runs a function in several workers at once.

    ``train_loop_per_worker`` takes ``train_loop_config``, or nothing. It calls ``pawl.train.report`` and
    ``pawl.train.get_checkpoint``. ``resume_from_checkpoint`` is where a new run begins; a run that is there already
    goes on from its own newest checkpoint.
    """

    _backend: str | None = None  # of torch's process group that the workers are in

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        _payload.check_function(train_loop_per_worker)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise UsageError(f"train_loop_config must be a dict, received {train_loop_config!r}")
        if resume_from_checkpoint is not None and not isinstance(resume_from_checkpoint, Checkpoint):
            raise UsageError(f"resume_from_checkpoint must be a Checkpoint, received {resume_from_checkpoint!r}")
        self._function, self._config = train_loop_per_worker, train_loop_config
        self._scaling = scaling_config or ScalingConfig()
        self._run = run_config or RunConfig()
        self._resume = resume_from_checkpoint

    def fit(self) -> Result:
        """Trains. Returns when the train function has ended in all workers, or has failed too often: then
        ``Result.error`` says why. Raises Preempted (a SystemExit) when SIGTERM or SIGUSR1 has ended it."""
        payload = _payload.pack(self._function, self._config)
        engine = engine_of(self._scaling)
        n = self._workers(engine, first=True)
        with contextlib.ExitStack() as after:
            root, memory = self._folder(after)
            resume, first = self._resumed(after)
            grace = self._run.failure_config.grace_seconds
            watch = _signals.acquire(grace or 0.0)
            after.callback(_signals.release)
            host = Host(engine.host())
            group = _Group(engine, host, self._run, watch)
            after.callback(engine.stop)
            while True:
                group.run(self._job(payload, n, group.attempt + 1, host, root, resume, first))
                if not group.again():
                    break
                n = self._workers(engine, first=False)
            group.raise_if_preempted()
            return self._result(root, memory, group)

    # ---- before ----

    def _workers(self, engine: Engine, first: bool) -> int:
        """How many are started: as many as were asked for, or later on as there are, if that is allowed."""
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
        """The run's folder or URL, and whether it is only for the time being, in memory."""
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
        """Where the workers find the checkpoint to begin with, and the number that it goes on from."""
        given = self._resume
        if given is None:
            return None, 0
        first = 0
        if given.folder is None:
            with contextlib.suppress(UsageError):  # a folder of files of a run
                first = int(given.to_dict().get("_current_checkpoint_id", 0))
        if given._source is not None:
            return given._source, first
        if given.path is not None:
            return (given.path, 0), first
        folder = tempfile.mkdtemp(prefix="pawl-train-")
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        return (given.to_directory(os.path.join(folder, "checkpoint")), 0), first

    def _job(
        self, payload: bytes, n: int, attempt: int, host: Host, root: str, resume: tuple[str, int] | None, first: int
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
            failure.report_timeout,
            failure.grace_seconds or 0.0,
            self._group_backend(),
            resume,
            names,
            tuple(sys.path),
        )

    def _group_backend(self) -> str | None:
        return self._backend

    # ---- after ----

    def _result(self, root: str, memory: bool, group: _Group) -> Result:
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
        error = group.error()
        if error is not None:
            _log.error("the training in %s has failed: %s", root, error.reason)
        return Result(
            made[found[-1]["id"]] if found else None,
            [(made[info["id"]], info["metrics"]) for info in ranked],
            group.rows[-1] if group.rows else None,
            root,
            error,
            group.rows,
            group.reasons,
        )

    @staticmethod
    def _checkpoint(root: str, id: int, memory: bool, keep: CheckpointConfig) -> Checkpoint:
        one = Checkpoint.from_run(root, id, allow_pickle=keep.allow_pickle)
        return one.detached() if memory else one


def _stamp() -> str:
    return time.strftime("train_%Y-%m-%d_%H-%M-%S")


def _options(keep: CheckpointConfig, more: Mapping[str, Any]) -> dict[str, Any]:
    if keep.num_to_keep == 0:  # in memory: one place, whatever the scores
        return {**more, "num_to_keep": 1}
    return {
        **more,
        "num_to_keep": keep.num_to_keep,
        "score_attribute": keep.checkpoint_score_attribute,
        "score_order": keep.checkpoint_score_order,
        "keep_latest": keep.keep_latest,
    }


def _ranked(found: list[_pawl.Info], keep: CheckpointConfig) -> list[_pawl.Info]:
    """The best first; among equals the older; those without a score last."""
    if keep.checkpoint_score_attribute is None:
        return found[::-1]
    sign = -1 if keep.checkpoint_score_order == "max" else 1

    def place(info: _pawl.Info) -> tuple[bool, float, int]:
        score = info["metrics"].get(keep.checkpoint_score_attribute or "")
        known = isinstance(score, int | float) and score - score == 0
        return (not known, sign * score if known and score is not None else 0.0, info["id"])

    return sorted(found, key=place)


class _Group:
    """One group of workers after the other, and what has been heard of them."""

    def __init__(self, engine: Engine, host: Host, run: RunConfig, watch: _pawl.Watch) -> None:
        self._engine, self._host, self._config, self._watch = engine, host, run.failure_config, watch
        self.attempt = 0
        self.rows: list[dict[str, Any]] = []
        self.reasons: list[str] = []  # of all failures
        self._outcome: Outcome | None = None
        self._trace, self._kind = "", "failure"
        self._left = False

    def run(self, job: Job) -> None:
        """Starts a group and waits for its end."""
        self.attempt = job.attempt
        channel = self._host.attempt(job.attempt)
        look = _Look(channel, job, self._config.heartbeat_timeout)
        self._engine.start(job)
        told: str | None = None
        deadline: float | None = None
        while (outcome := self._engine.poll()) is None:
            time.sleep(_LOOK_SECONDS)
            self._take_rows(channel, look)
            if self._watch.signal and deadline is None:
                channel.put("preempt", self._watch.signal)
                deadline = time.monotonic() + (self._config.grace_seconds or float("inf"))
            if deadline is not None and time.monotonic() > deadline - 0.5:
                self._left = True
                self._engine.stop()
                deadline = float("inf")
            if told is None and (found := look.problem()) is not None:
                told, rank = found
                self._engine.kill(rank, look.pid(rank)) if rank is not None else self._engine.stop()
        self._take_rows(channel, look)
        if outcome.ok and told is None and (found := look.disagreement()) is not None:
            told = found[0]
        self._end(outcome, channel, job, told)

    def _take_rows(self, channel: Channel, look: _Look) -> None:
        while (row := channel.get(f"row/{look.n_rows + 1}")) is not None:
            look.n_rows += 1
            channel.drop(f"row/{look.n_rows}")
            self.rows.append(row["metrics"])

    def _end(self, outcome: Outcome, channel: Channel, job: Job, told: str | None) -> None:
        left = [one for one in channel.get_all("left", job.world_size) if one is not None]
        self._left = self._left or bool(left)
        self._outcome, self._trace, self._kind = outcome, "", "failure"
        errors = {r: e for r, e in enumerate(channel.get_all("error", job.world_size)) if e is not None}
        if outcome.ok and told is None:
            return
        reason = told or outcome.reason
        if told is not None:
            self._kind = "usage" if told.startswith("report ") else "failure"
        elif errors and (outcome.rank is None or outcome.rank in errors):  # else they are what the others ran into
            rank = min(errors) if outcome.rank is None else outcome.rank
            error = errors[rank]
            reason = f"rank {rank} raised {error['type']}: {error['message']}"
            self._trace, self._kind = error["traceback"], error["kind"]
        self._outcome = Outcome(False, outcome.rank, reason)
        self.reasons.append(reason)

    def again(self) -> bool:
        """Is the group to be started once more?"""
        outcome = self._outcome
        if outcome is None or outcome.ok or self._left or self._watch.signal or self._kind == "usage":
            return False
        most = self._config.max_failures
        if 0 <= most < len(self.reasons):
            return False
        allowed = "without end" if most < 0 else f"of {most}"
        _log.warning("failure %d %s: %s; the workers start again", len(self.reasons), allowed, outcome.reason)
        return True

    def raise_if_preempted(self) -> None:
        if self._left or (self._watch.signal and self._outcome is not None and not self._outcome.ok):
            raise Preempted("the job was told to end; it goes on from its newest checkpoint when it is started again")

    def error(self) -> TrainingFailedError | None:
        if self._outcome is None or self._outcome.ok:
            return None
        return TrainingFailedError(self._outcome.reason, list(self.reasons), self._trace)


class _Look:
    """What is wrong with a group, seen from outside."""

    def __init__(self, channel: Channel, job: Job, heartbeat_timeout: float) -> None:
        self._channel, self._world_size, self._timeout = channel, job.world_size, heartbeat_timeout
        self._keep_all_ranks, self._checked = job.keep_all_ranks, 1
        self._beats: dict[int, tuple[Any, float]] = {}
        self._next = 0.0
        self.n_rows = 0

    def pid(self, rank: int) -> int:
        return int(self._channel.get(f"pid/{rank}") or 0)

    def problem(self) -> tuple[str, int | None] | None:
        """In words, and which rank is to be killed; None ends the group."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + 0.2
        return self._silent(now) or self.disagreement()

    def disagreement(self) -> tuple[str, None] | None:
        return self._unequal() or self._clash()

    def _silent(self, now: float) -> tuple[str, int] | None:
        for rank in range(self._world_size):
            beat = self._channel.get(f"beat/{rank}")
            was = self._beats.get(rank)
            if beat is None or self._channel.has(f"done/{rank}") or self._channel.has(f"left/{rank}"):
                continue
            if was is None or was[0] != beat:
                self._beats[rank] = (beat, now)
            elif now - was[1] > self._timeout:
                return f"rank {rank} gave no sign of life for {self._timeout:g} s, and was killed", rank
        return None

    def _unequal(self) -> tuple[str, None] | None:
        done = self._channel.get_all("done", self._world_size)
        if all(one is None for one in done):
            return None
        at = [n or 0 for n in self._channel.get_all("at", self._world_size)]
        least = min(rank for rank, n in enumerate(done) if n is not None and n == min(m for m in done if m is not None))
        ahead = [rank for rank, n in enumerate(at) if n > done[least]]
        if not ahead:
            return None
        return (
            f"report {done[least] + 1}: rank {ahead[0]} has come to it, but the train function of rank {least} has "
            f"ended after {done[least]}; all workers must report equally often",
            None,
        )

    def _clash(self) -> tuple[str, None] | None:
        """A file that several ranks give with different contents. All of it is in the checkpoint, but who reads it
        would have to choose."""
        while self._checked <= self.n_rows:
            n = self._checked
            if self._channel.has(f"folder/{n}") and not self._keep_all_ranks:
                rows = self._channel.get_all(f"files/{n}", self._world_size)
                if any(row is None for row in rows):
                    return None
                if (found := parts.conflicts(rows)) is not None:
                    return f"report {n}: {found}; name it after the rank, or give it on one worker only", None
            self._checked += 1
        return None
