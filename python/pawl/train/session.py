# SPDX-License-Identifier: Apache-2.0
"""The worker's side of a training run: report, get_checkpoint, get_context."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _metrics, _options, _pawl
from .._context import Context
from .._pawl import MismatchError, NotFoundError, PawlError, TimeoutError, UnsupportedError, UsageError
from .._signals import REQUEUE_EXIT_CODE, Preempted
from ..loggers import Scalars
from ..manager import CheckpointManager
from ..options import Timeouts
from . import parts, workers
from .channel import Channel
from .checkpoint import Checkpoint
from .engine import Job

USAGE_ERRORS = (UsageError, MismatchError, UnsupportedError)  # the program is wrong: it would fail again


@dataclass(frozen=True)
class TrainContext(Context):
    """The rank of a worker, and its group.

    Attributes:
        experiment_name: Name of the run.
        trial_name: Name of the trainer and the run's folder.
        trial_id: Name of the run's folder.
        trial_dir: The run's folder or URL.
        world_rank: Rank of this worker.
        world_size: Number of workers.
        local_rank: Rank among the workers of this machine.
        local_world_size: Number of workers of this machine.
        node_rank: Rank of this machine.
        storage_path: The folder that holds the run.
        attempt: 1 at first, one more with every start after a failure.
    """

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    storage_path: str
    attempt: int

    def get_world_rank(self) -> int:
        """The rank.

        Returns:
            ``world_rank``.
        """
        return self.world_rank

    def get_world_size(self) -> int:
        """The number of workers.

        Returns:
            ``world_size``.
        """
        return self.world_size

    def get_local_rank(self) -> int:
        """The rank on this machine.

        Returns:
            ``local_rank``.
        """
        return self.local_rank

    def get_local_world_size(self) -> int:
        """The number of workers of this machine.

        Returns:
            ``local_world_size``.
        """
        return self.local_world_size

    def get_node_rank(self) -> int:
        """The rank of this machine.

        Returns:
            ``node_rank``.
        """
        return self.node_rank

    def get_storage_path(self) -> str:
        """The folder that holds the run.

        Returns:
            ``storage_path``.
        """
        return self.storage_path

    def alive(self) -> None:
        """Reports that this worker makes progress, for reports further apart than
        ``FailureConfig(progress_timeout)``. May be called in every step.
        """
        _session().alive()

    def should_checkpoint(self) -> bool:
        """Whether the job has to end. The next report with a checkpoint is the last then.

        Returns:
            The same answer on all workers, as of their last report.
        """
        return _session().stopping


class Session:
    """One worker while its train function runs."""

    def __init__(self, job: Job, channel: Channel, watch: _pawl.Watch) -> None:
        env = os.environ
        self.job, self.stopping = job, False
        self.rank, self.world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
        self._channel, self._watch = channel, watch
        self._n = 0  # reports made
        self._n_saved = 0  # the last report of which this worker has saved its part
        self._is_open = False  # it is not known whether all ranks have reached the last report
        self._knows_end = False  # this worker knows that the job has to end
        self._lock = threading.Lock()  # guards _n, _knows_end and _unsettled, also for the heartbeat thread
        self._closes, self._closed = False, threading.Event()  # also for the heartbeat thread
        self._told = 0.0  # when this worker last reported progress
        self._ticket: _pawl.Ticket | None = None  # of the last save
        self._unsettled: list[_pawl.Ticket] = []  # of rank 0, not yet published as settled
        self._notes = {"first": 0}
        self._n_before = 0  # reports of earlier starts, up to the checkpoint to resume from
        self._row: dict[str, Any] | None = None  # of the last report, until all ranks reached it
        self._n_logged = 0
        self._scalars = Scalars(self._log) if job.log and self.rank == 0 else None
        timeouts = job.options.get("timeouts") or Timeouts()
        if timeouts.commit is None:
            timeouts = dataclasses.replace(timeouts, commit=job.report_timeout)
        options = {**job.options, "timeouts": timeouts, "signals": False}
        self._manager = CheckpointManager(job.root, **_options.with_rank(options, self.rank, self.world_size))
        self._step = self._manager.latest_step() or 0
        self._start = self._first()
        self.context = TrainContext(
            experiment_name=job.names.get("experiment", ""),
            trial_name=job.names.get("trial", ""),
            trial_id=job.names.get("trial_id", ""),
            trial_dir=job.root,
            world_rank=self.rank,
            world_size=self.world_size,
            local_rank=int(env.get("LOCAL_RANK", 0)),
            local_world_size=int(env.get("LOCAL_WORLD_SIZE", 1)),
            node_rank=int(env.get("GROUP_RANK", 0)),
            storage_path=job.names.get("storage_path", ""),
            attempt=job.attempt,
        )

    # ---- what a train function calls ----

    def get_checkpoint(self) -> Checkpoint | None:
        ticket = self._ticket
        if ticket is None:
            return self._start
        self._agree()
        ticket.wait()  # retention may delete it at once
        self._wait_settled(ticket.step)
        if ticket.id is not None:
            with contextlib.suppress(NotFoundError):
                return self._newest(ticket.id)
        self._manager.reload()
        found = self._manager.checkpoints()
        return self._newest(found[-1].id) if found else self._start

    def report(self, metrics: object, checkpoint: object, wait: bool) -> None:
        row = _metrics.plain(metrics)
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise UsageError(
                f"report: checkpoint must be a pawl.train.Checkpoint, received {type(checkpoint).__name__}; "
                "make it by Checkpoint.from_dict or Checkpoint.from_directory"
            )
        has, files = checkpoint is not None, checkpoint is not None and checkpoint.folder is not None
        self._agree()
        self._log_reported()
        is_last = self._begin_report()
        if self.world_size > 1:
            if files:
                self._channel.put(f"folder/{self._n}", self.rank)
            self._channel.arrive(self._n, self.world_size, has, self.rank == 0, files)
            self._is_open = True
            if files or not has:  # what to save depends on the checkpoints of the other ranks
                has, files = self._agree()
        self.stopping = self.stopping or is_last
        self._row = row
        if has:
            self._save(row, checkpoint, files)
        if wait or self.stopping:
            self._agree()
            if has and self._ticket is not None:
                left = self._watch.seconds_left
                self._ticket.wait(left if left is not None and self.stopping else None)
            self._log_reported()
        if self.rank == 0:
            self._channel.put(f"row/{self._n}", {"metrics": row, "time": time.time(), "saved": has, "step": self._step})
        if has and self.stopping:
            raise Preempted(f"the job was asked to end; the checkpoint of report {self._n} is durable")

    def alive(self) -> None:
        now = time.monotonic()
        if now - self._told >= 0.5:  # may be called in every step
            self._told = now
            self._channel.count(f"on/{self.rank}")

    def save_checkpoint(self, values: Mapping[str, Any]) -> None:
        """The older interface: scores are taken from the checkpoint itself."""
        given = dict(values)
        given.setdefault("_timestamp", time.time())
        scores = {k: v for k, v in given.items() if _metrics.is_number(v) and isinstance(k, str)}
        self.report(scores, Checkpoint.from_dict(_metrics.storable(given)), False)

    # ---- the ends of a session ----

    def finish(self) -> None:
        """Called when the train function has returned.

        Waits until running saves are durable, or raises their error.
        """
        self._channel.put(f"done/{self.rank}", self._n)
        self._agree()
        self._hear_end(self._channel)
        self._log_reported()
        self._close()

    def leave(self) -> None:
        self._channel.put(f"left/{self.rank}", self._n)
        self._close()

    def settle(self, seconds: float) -> None:
        """Waits at most this long for running saves: other workers may need this worker's part."""
        if self._closes:
            self._closed.wait(seconds)
            return
        try:
            self._manager.wait_until_finished(seconds)
        except PawlError:
            pass

    def _close(self) -> None:
        self._closes = True
        try:
            self._manager.close()
        finally:
            self._tell_settled(self._channel)
            self._closed.set()
            if self._scalars is not None:
                self._scalars.flush()

    # ---- the others ----

    def listen(self, channel: Channel) -> None:
        """Called by the heartbeat thread from time to time."""
        self._tell_settled(channel)
        if self.world_size > 1 and not self._knows_end and self._asked(channel):
            self._hear_end(channel)

    def _hear_end(self, channel: Channel) -> None:
        """Publishes that this worker knows of the end of the job, or has ended.

        It also publishes how many reports this worker has reached. When all workers have done so,
        the last report is known: the first one that no worker had reached.
        """
        with self._lock:
            if self._knows_end or self.world_size == 1:
                return
            self._knows_end, n = True, self._n
        channel.know_end(self.rank, n, self.world_size)

    def _tell_settled(self, channel: Channel) -> None:
        """Rank 0 publishes which saves have ended, their retention too, which is its own task."""
        with self._lock:
            ended = [ticket for ticket in self._unsettled if ticket.done()]
            self._unsettled = [ticket for ticket in self._unsettled if ticket not in ended]
        for ticket in ended:
            channel.settle(ticket.step)

    def _wait_settled(self, step: int) -> None:
        """Waits for the retention of rank 0, so that all ranks find the same newest checkpoint.

        The next save cannot end before all ranks have taken part in it.
        """
        if self.rank == 0:
            self._tell_settled(self._channel)
        elif not self._channel.wait_settled(step, self.job.report_timeout):
            raise TimeoutError(
                f"get_checkpoint: rank 0 has not ended the save of step {step} within {self.job.report_timeout:g} s"
            )

    def _begin_report(self) -> bool:
        """Counts the report. True if it is the last one, or would be if it had a checkpoint."""
        asked = self._asked(self._channel)
        if asked:
            self._hear_end(self._channel)
        with self._lock:
            self._n += 1
            knows_end = self._knows_end
        self._channel.put(f"at/{self.rank}", self._n)
        if self.world_size == 1 or not knows_end:
            return asked and self.world_size == 1
        last = self._channel.last_report(self.job.report_timeout)
        if last is None:
            raise TimeoutError(
                f"report {self._n}: the job is to end, but not all {self.world_size} workers have heard of it within "
                f"{self.job.report_timeout:g} s"
            )
        return self._n >= last

    def _agree(self) -> tuple[bool, bool]:
        """Waits until all ranks have reached this rank's last report.

        Returns whether any rank gave a checkpoint, and whether it is a folder. Raises an error if
        the checkpoints do not fit together. Then none of them is kept.
        """
        if not self._is_open:
            return False, False
        met = self._channel.meeting(self._n, self.job.report_timeout)
        if met is None:
            raise TimeoutError(self._missing())
        self._is_open = False
        words = ""
        if 0 < met.n_folders < met.n_with:
            words = f"{met.n_folders} of the {met.n_with} workers with a checkpoint gave a folder, the others a dict"
        elif met.n_with and not (met.first_has or met.n_folders or self.job.keep_all_ranks):
            words = (
                f"rank 0 gave no checkpoint, but {met.n_with} of {self.world_size} workers did; the first worker's "
                "counts"
            )
        if words:
            words = f"report {self._n}: {words}"
            if self._n > self._n_saved:
                self._manager._run.save_failed(words)
            raise MismatchError(words)
        return met.n_with > 0, met.n_folders > 0

    # ---- inside ----

    def _log_reported(self) -> None:
        """Logs the last report, which all ranks have reached."""
        row, self._row = self._row, None
        if self._scalars is not None:
            self._scalars.metrics(row, self._n_before + self._n)
            self._scalars.flush()

    def _log(self, scalars: Mapping[str, float], step: int) -> None:
        """Passes scalars to the logger, which may be in the driver's process."""
        if callable(self.job.log):
            self.job.log(scalars, step)
            return
        self._n_logged += 1
        self._channel.put(f"log/{self._n_logged}", {"scalars": dict(scalars), "step": step})

    def _asked(self, channel: Channel) -> bool:
        """Whether the job has to end.

        A signal from the agent does not mean that. It only ends this group, maybe for a new start.
        """
        if self._watch.signal != 0 and (self.job.launched or self._watch.sender != os.getppid()):
            channel.put("preempt", 1)
            return True
        return channel.has("preempt")

    def _first(self) -> Checkpoint | None:
        """The newest checkpoint of the run, else the one that was given to the trainer."""
        found = self._manager.checkpoints()
        allow = self.job.allow_pickle
        if found:
            notes = self._manager.metadata(id=found[-1].id)
            own = notes.get(parts.NOTES, {}) if isinstance(notes, dict) else {}
            self._notes["first"], self._n_before = int(own.get("first", 0)), int(own.get("report", 0))
            return self._newest(found[-1].id)
        if self.job.resume is None:
            return None
        path, id = self.job.resume
        self._notes["first"] = int(self.job.names.get("first", "0"))
        if id:
            return Checkpoint.from_run(path, id, allow_pickle=allow, rank=self.rank)
        given = Checkpoint(path)
        given._allow_pickle = allow
        return given

    def _newest(self, id: int) -> Checkpoint:
        """The newest checkpoint of the run. If it is damaged, an older one is read instead."""
        found = Checkpoint.from_run(self.job.root, id, allow_pickle=self.job.allow_pickle, rank=self.rank)
        found._falls_back = True
        return found

    def _save(self, row: dict[str, Any], checkpoint: Checkpoint | None, files: bool) -> None:
        job = self.job
        self._step += 1
        self._n_saved = self._n
        try:
            if files:
                folder = None if checkpoint is None else checkpoint.folder
                kind, (state, facts) = "files", parts.of_files(folder, self.rank)
                self._channel.put(f"files/{self._n}/{self.rank}", facts)
            else:
                data = None if checkpoint is None else checkpoint.values(job.allow_pickle)
                kind, state = parts.of_dict(data, self.rank, self.world_size, job.keep_all_ranks)
        except Exception as error:  # the other ranks are saving already
            self._manager._run.save_failed(str(error))
            raise
        user = None if checkpoint is None else checkpoint.get_metadata()
        notes = {parts.NOTES: {**self._notes, "kind": kind, "report": self._n_before + self._n}, "user": user or None}
        numbers_ = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        scores = self._scored(row, numbers_)
        self._ticket = self._manager.save(self._step, state, metrics=scores, metadata=notes, force=True)
        if self.rank == 0 and self.world_size > 1 and self._ticket is not None:
            with self._lock:
                self._unsettled.append(self._ticket)
        if self._scalars is not None and self._ticket is not None:
            self._scalars.saved(self._ticket, self._n_before + self._n)

    def _scored(self, row: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        """The metrics with the score.

        Only the first worker needs it, since only its metrics count.
        """
        attribute = self.job.options.get("score_attribute")
        if attribute is None:
            return found
        if self.rank != 0:
            return {**found, attribute: found.get(attribute, math.nan)}
        return {**found, attribute: row[attribute]} if attribute in row else found

    def _missing(self) -> str:
        at = self._channel.get_all("at", self.world_size)
        done = self._channel.get_all("done", self.world_size)
        rows = [
            workers.Worker(int(n or 0) if end is None else int(end), end is not None)
            for n, end in zip(at, done, strict=True)
        ]
        return (
            f"report {self._n}: not all {self.world_size} workers reached it within {self.job.report_timeout:g} s "
            f"(all must report equally often): {workers.late(rows, self._n)}"
        )


_here: Session | None = None


def _session(name: str = "this") -> Session:
    if _here is None:
        raise UsageError(f"{name} can only be called in a train function, which a trainer runs in its workers")
    return _here


def enter(session: Session | None) -> None:
    """Sets the session of this process; None at its end."""
    global _here
    _here = session


def report(metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None, *, wait: bool = False) -> None:
    """Reports metrics of the training, and with them a checkpoint. All workers call it equally
    often.

    The caller waits while the checkpoint is copied. It does not wait for the other workers unless
    one is a full report behind. A worker without a checkpoint, or with a folder, waits until all
    have reached the report.

    Args:
        metrics: Values by name; those of the first worker count.
        checkpoint: What to save. Default: None, the metrics alone.
        wait: Wait until the checkpoint is durable. Default: False.

    Raises:
        Preempted: SIGTERM or SIGUSR1 asked the job to end, and the checkpoint is durable.
        MismatchError: The checkpoints of the workers do not fit together.
        TimeoutError: Not all workers reached the last report within ``report_timeout``.
        UsageError: It is not called by a worker, or the checkpoint is of another class.
    """
    _session("report").report(metrics, checkpoint, wait)


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint to continue from. Waits for one that is being saved.

    Returns:
        The newest checkpoint of the run, also after a failure; else the trainer's
        ``resume_from_checkpoint``; else None. All workers get the same one.

    Raises:
        TimeoutError: The other workers did not reach the last report, or the first one did not end
            its save, within ``report_timeout``.
        UsageError: It is not called by a worker.
    """
    return _session("get_checkpoint").get_checkpoint()


def get_context() -> TrainContext:
    """The rank and the names of this worker.

    Returns:
        Its rank, the number of workers, the names of run and storage.

    Raises:
        UsageError: It is not called by a worker.
    """
    return _session("get_context").context


def save_checkpoint(**values: Any) -> None:
    """The older interface: saves a dict.

    Args:
        values: The values of the dict by name; the score attribute is one of them.

    Raises:
        UsageError: It is not called by a worker.
    """
    _session("save_checkpoint").save_checkpoint(values)


def load_checkpoint() -> dict[str, Any] | None:
    """The older interface: the dict of ``get_checkpoint``.

    Returns:
        The dict; None without a checkpoint.

    Raises:
        UsageError: It is not called by a worker.
    """
    checkpoint = get_checkpoint()
    return None if checkpoint is None else checkpoint.to_dict()


__all__ = [
    "REQUEUE_EXIT_CODE",
    "Preempted",
    "TrainContext",
    "get_checkpoint",
    "get_context",
    "load_checkpoint",
    "report",
    "save_checkpoint",
]
