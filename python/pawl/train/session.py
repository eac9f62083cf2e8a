# SPDX-License-Identifier: Apache-2.0
"""The worker's side of a training: report, get_checkpoint, get_context."""

from __future__ import annotations

import logging
import math
import numbers
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _metrics, _pawl, _signals
from .._pawl import MismatchError, PawlError, TimeoutError, UnsupportedError, UsageError
from .._signals import REQUEUE_EXIT_CODE, Preempted
from ..manager import CheckpointManager
from . import parts
from .channel import Channel
from .checkpoint import Checkpoint
from .engine import Job

_log = logging.getLogger("pawl")
USAGE_ERRORS = (UsageError, MismatchError, UnsupportedError)  # the program is wrong: it would fail again


@dataclass(frozen=True)
class TrainContext:
    """Who a worker is."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    experiment_name: str
    trial_name: str
    trial_id: str
    storage_path: str
    trial_dir: str
    attempt: int  # 1 at first, one more with every start after a failure

    def get_world_rank(self) -> int:
        return self.world_rank

    def get_world_size(self) -> int:
        return self.world_size

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_local_world_size(self) -> int:
        return self.local_world_size

    def get_node_rank(self) -> int:
        return self.node_rank

    def get_experiment_name(self) -> str:
        return self.experiment_name

    def get_trial_name(self) -> str:
        return self.trial_name

    def get_trial_id(self) -> str:
        return self.trial_id

    def get_trial_dir(self) -> str:
        return self.trial_dir

    def get_storage_path(self) -> str:
        return self.storage_path

    def alive(self) -> None:
        """Says that this worker gets on, where reports are further apart than ``FailureConfig(progress_timeout)``."""
        _session().alive()

    def should_checkpoint(self) -> bool:
        """True once the job was told to end: the next report with a checkpoint is the last. The same on all workers, as
        of their last report."""
        return _session().stopping


class Session:
    """One worker while its train function runs."""

    def __init__(self, job: Job, channel: Channel, watch: _pawl.Watch) -> None:
        env = os.environ
        self.job, self.stopping = job, False
        self.rank, self.world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
        self._channel, self._watch = channel, watch
        self._n = 0  # reports made
        self._told = 0.0  # when it last said that it gets on
        self._ticket: _pawl.Ticket | None = None  # of the last save
        self._notes = {"first": 0}
        options = {**job.options, "commit_timeout": job.options.get("commit_timeout", job.report_timeout)}
        self._manager = CheckpointManager(
            job.root, rank=self.rank, world_size=self.world_size, signals=False, **options
        )
        self._step = self._manager.latest_step() or 0
        self._start = self._first()
        self.context = TrainContext(
            self.rank,
            self.world_size,
            int(env.get("LOCAL_RANK", 0)),
            int(env.get("LOCAL_WORLD_SIZE", 1)),
            int(env.get("GROUP_RANK", 0)),
            job.names.get("experiment", ""),
            job.names.get("trial", ""),
            job.names.get("trial_id", ""),
            job.names.get("storage_path", ""),
            job.root,
            job.attempt,
        )

    # ---- what a train function calls ----

    def get_checkpoint(self) -> Checkpoint | None:
        ticket = self._ticket
        if ticket is None:
            return self._start
        ticket.wait_durable()
        if ticket.id is None:
            return self._start
        return Checkpoint.from_run(self.job.root, ticket.id, allow_pickle=self.job.allow_pickle, rank=self.rank)

    def report(self, metrics: object, checkpoint: object, wait: bool) -> None:
        row = _metrics.plain(metrics)
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise UsageError(
                f"report: checkpoint must be a pawl.train.Checkpoint, received {type(checkpoint).__name__}; "
                "make it by Checkpoint.from_dict or Checkpoint.from_directory"
            )
        self._n += 1
        self._channel.put(f"at/{self.rank}", self._n)
        asked = self._asked()
        has, stop = checkpoint is not None, asked
        files = checkpoint is not None and checkpoint.folder is not None
        if self.world_size > 1:
            if files:
                self._channel.put(f"folder/{self._n}", self.rank)
            met = self._channel.meet(self._n, self.world_size, has, self.rank == 0, asked, self.job.report_timeout)
            if met is None:
                raise TimeoutError(self._missing())
            has, stop = met.n_with_checkpoint > 0, met.signalled
            files = has and self._channel.has(f"folder/{self._n}")
            if has and not met.first_has and not files and not self.job.keep_all_ranks:
                raise MismatchError(
                    f"report {self._n}: rank 0 gave no checkpoint, but {met.n_with_checkpoint} of {self.world_size} "
                    "workers did; the first worker's counts"
                )
        self.stopping = self.stopping or stop
        if has:
            self._save(row, checkpoint, files, wait or self.stopping)
        if self.rank == 0:
            self._channel.put(f"row/{self._n}", {"metrics": row, "time": time.time(), "saved": has, "step": self._step})
        if has and self.stopping:
            raise Preempted(f"the job was told to end; the checkpoint of report {self._n} is durable")

    def alive(self) -> None:
        now = time.monotonic()
        if now - self._told >= 0.5:  # may be called in every step
            self._told = now
            self._channel.count(f"on/{self.rank}")

    def save_checkpoint(self, values: Mapping[str, Any]) -> None:
        """The older interface: scores are taken from the checkpoint itself."""
        given = dict(values)
        given.setdefault("_timestamp", time.time())
        scores = {k: v for k, v in given.items() if isinstance(v, numbers.Real) and isinstance(k, str)}
        self.report(scores, Checkpoint.from_dict(given), False)

    # ---- the ends of a session ----

    def finish(self) -> None:
        """The train function has returned: what is being saved becomes durable, or an error."""
        self._channel.put(f"done/{self.rank}", self._n)
        self._manager.close()

    def leave(self) -> None:
        self._channel.put(f"left/{self.rank}", self._n)
        self._manager.close()

    def settle(self, seconds: float) -> None:
        """What is being saved goes on for so long, since the other workers may be waiting for this one's part."""
        try:
            self._manager.wait_until_finished(seconds)
        except PawlError:
            pass

    # ---- inside ----

    def _asked(self) -> bool:
        """Was the job told to end? A signal from the agent means that it ends this group, maybe for a new start."""
        if self._watch.signal != 0 and (self.job.launched or self._watch.sender != os.getppid()):
            return True
        return self._channel.has("preempt")

    def _first(self) -> Checkpoint | None:
        """The newest checkpoint of the run, else the one that the trainer was given."""
        found = self._manager.checkpoints()
        allow = self.job.allow_pickle
        if found:
            notes = self._manager.metadata(id=found[-1].id)
            own = notes.get(parts.NOTES, {}) if isinstance(notes, dict) else {}
            self._notes["first"] = int(own.get("first", 0))
            return Checkpoint.from_run(self.job.root, found[-1].id, allow_pickle=allow, rank=self.rank)
        if self.job.resume is None:
            return None
        path, id = self.job.resume
        self._notes["first"] = int(self.job.names.get("first", "0"))
        if id:
            return Checkpoint.from_run(path, id, allow_pickle=allow, rank=self.rank)
        given = Checkpoint(path)
        given._allow_pickle = allow
        return given

    def _save(self, row: dict[str, Any], checkpoint: Checkpoint | None, files: bool, wait: bool) -> None:
        job = self.job
        self._step += 1
        try:
            if files:
                folder = None if checkpoint is None else checkpoint.folder
                if checkpoint is not None and folder is None:
                    raise MismatchError(
                        f"report {self._n}: some workers gave a folder, this one (rank {self.rank}) a dict"
                    )
                kind, (state, facts) = "files", parts.of_files(folder, self.rank)
                self._channel.put(f"files/{self._n}/{self.rank}", facts)
            else:
                data = None if checkpoint is None else checkpoint.values(job.allow_pickle)
                kind, state = parts.of_dict(data, self.rank, self.world_size, job.keep_all_ranks)
        except Exception as error:  # the others are saving already
            self._manager._run.save_failed(str(error))
            raise
        user = None if checkpoint is None else checkpoint.get_metadata()
        notes = {parts.NOTES: {**self._notes, "kind": kind, "report": self._n}, "user": user or None}
        numbers_ = {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        ticket = self._manager.save(self._step, state, metrics=self._scored(row, numbers_), metadata=notes, force=True)
        self._ticket = ticket
        if wait and ticket is not None:
            left = self._watch.seconds_left
            ticket.wait(left if left is not None and self.stopping else None)

    def _scored(self, row: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        """The first worker's metrics count, so the others need not have the score."""
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
            (int(n or 0) if end is None else int(end), end is not None, 0, 0) for n, end in zip(at, done, strict=True)
        ]
        return (
            f"report {self._n}: not all {self.world_size} workers came to it within {self.job.report_timeout:g} s "
            f"(all must report equally often): {_pawl.group_late(rows, self._n)}"
        )


_here: Session | None = None


def _session(name: str = "this") -> Session:
    if _here is None:
        raise UsageError(f"{name} can be called in a train function only, which a trainer runs in its workers")
    return _here


def enter(session: Session | None) -> None:
    """The session of this process, or None at its end."""
    global _here
    _here = session


def report(metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None, *, wait: bool = False) -> None:
    """Reports metrics of the training, and with them a checkpoint, which may be None.

    All workers call it equally often, and meet in it; the metrics of the first one count. The caller is held while the
    checkpoint is copied, no longer; with ``wait`` until it is durable. Once the job was told to end (SIGTERM, SIGUSR1),
    the next report with a checkpoint is the last: it waits for that and raises Preempted.
    """
    _session("report").report(metrics, checkpoint, wait)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of the run, also after a failure; else the trainer's ``resume_from_checkpoint``; None where
    there is neither. One that is being saved is waited for."""
    return _session("get_checkpoint").get_checkpoint()


def get_context() -> TrainContext:
    """Who this worker is: its rank, the number of workers, the names of run and storage."""
    return _session("get_context").context


def save_checkpoint(**values: Any) -> None:
    """The older interface: saves a dict of these. The score attribute is one of them."""
    _session("save_checkpoint").save_checkpoint(values)


def load_checkpoint() -> dict[str, Any] | None:
    """The older interface: the dict of get_checkpoint, None where there is none."""
    checkpoint = get_checkpoint()
    return None if checkpoint is None else checkpoint.to_dict()


class Beat(threading.Thread):
    """Says that this process lives. Ends it where the driver is gone, and where the agent ends the group."""

    def __init__(self, job: Job, watch: _pawl.Watch, session: list[Session]) -> None:
        super().__init__(name="pawl-beat", daemon=True)
        self._job, self._watch, self._who = job, watch, session
        self._rank, self._parent = os.environ["RANK"], os.getppid()
        self._answered = False
        self._first: tuple[Any, float] = (None, 0.0)  # rank 0's last sign of life, and when it came
        self._over = threading.Event()

    def stop(self) -> None:
        """The training is over, the process goes on."""
        self._over.set()
        self.join()

    def run(self) -> None:
        try:
            channel = Channel.join(self._job.host, self._job.port, self._job.channel or self._job.attempt)
            while not self._over.is_set():
                channel.count(f"beat/{self._rank}")
                if not self._answered and channel.has("ask"):
                    self._answered = True
                    channel.put(f"where/{self._rank}", place_of(threading.main_thread()))
                self._end_if_told(channel)
                for _ in range(5):
                    if self._over.wait(0.1):
                        return
                    if not self._job.launched and self._watch.signal and self._watch.sender == self._parent:
                        for session in self._who:
                            session.settle(3)
                        os._exit(143)
        except RuntimeError:  # the store is gone, and with it the driver
            if not self._over.is_set():
                os._exit(1)

    def _end_if_told(self, channel: Channel) -> None:
        """Without an agent that ends processes each of them does so by itself."""
        if not self._job.launched:
            return
        if (why := channel.get("end")) is not None and why["rank"] != int(self._rank):
            _log.error("rank %s ends: %s", self._rank, why["words"])
            channel.put(f"heard/{self._rank}", 1)
            if self._rank == "0":  # with it goes the store
                channel.wait_heard(self._job.world_size, 3)
            for session in self._who:
                session.settle(3)
            os._exit(1)
        beat, now = channel.get("beat/0"), time.monotonic()
        if beat != self._first[0]:
            self._first = (beat, now)
        gone = beat is not None and now - self._first[1] > self._job.heartbeat_timeout
        if gone and not any(channel.has(f"{key}/0") for key in ("done", "left", "error")):
            _log.error("rank %s ends: rank 0 gave no sign of life for %g s", self._rank, self._job.heartbeat_timeout)
            os._exit(1)
        left = self._watch.seconds_left
        if self._watch.signal and left is not None and left < 0.5:
            os._exit(REQUEUE_EXIT_CODE)


def place_of(thread: threading.Thread) -> str:
    """Where a thread is: the innermost line of the program, that of a library if there is none."""
    frame = sys._current_frames().get(thread.ident or 0)
    frames = traceback.extract_stack(frame) if frame is not None else []
    own = [
        one
        for one in frames
        if not one.filename.startswith((sys.prefix, sys.base_prefix, os.path.dirname(__file__), "<"))
    ]
    if not frames:
        return ""
    at = (own or frames)[-1]
    return f"{at.name} ({os.path.basename(at.filename)}:{at.lineno})"


def start(job: Job) -> tuple[_pawl.Watch, Channel, list[Session], Beat]:
    watch = _signals.acquire(job.grace_seconds or 0.0)
    channel = Channel.join(job.host, job.port, job.channel or job.attempt)
    channel.put(f"pid/{os.environ['RANK']}", os.getpid())
    found: list[Session] = []
    beat = Beat(job, watch, found)
    beat.start()
    return watch, channel, found, beat


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
