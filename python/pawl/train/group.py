# SPDX-License-Identifier: Apache-2.0
"""Runs and watches a group of workers: collects their reports, detects problems, and answers
whether they start again.

This module reads the channel and the clock. ``workers`` decides from that what is wrong, and
whether to start again.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from .. import _checks, _pawl
from ..loggers import Log, Scalars
from . import parts, workers
from .channel import Channel, Host
from .config import FailureConfig, RunConfig
from .engine import Engine, Job, Outcome
from .result import TrainingFailedError
from .session import Preempted

_log = logging.getLogger("pawl")
_LOOK_SECONDS = 0.05
_CLASH_SECONDS = 60.0  # for saving a checkpoint with conflicting files, so that none is lost
_ANSWER_SECONDS = 10.0  # for workers to answer where they are


class Group:
    """Runs one group of workers after the other, and collects what they report."""

    def __init__(self, engine: Engine, host: Host, run: RunConfig, watch: _pawl.Watch) -> None:
        self._engine, self._host, self._config, self._watch = engine, host, run.failure_config, watch
        self._log = None if run.logger is None else Scalars(run.logger).log
        self.attempt = 0
        self.rows: list[dict[str, Any]] = []
        self.reasons: list[str] = []  # of all failures
        self._outcome: Outcome | None = None
        self._trace = ""
        self._cause: Exception | None = None  # why the workers could not start again
        self._left = self._wrong = False

    def run(self, job: Job) -> None:
        """Starts a group and waits for its end."""
        self.attempt = job.attempt
        channel = self._host.attempt(job.attempt)
        look = Look(channel, job, self._config, self.rows, self._log)
        try:
            self._engine.start(job)
        except Exception as error:
            if not self.reasons:
                raise
            self.start_failed(error)
            return
        told: Trouble | None = None
        deadline: float | None = None
        stop_at: float | None = None
        while (outcome := self._engine.poll()) is None:
            time.sleep(_LOOK_SECONDS)
            look.take_rows()
            if self._watch.signal and deadline is None:
                channel.put("preempt", self._watch.signal)
                deadline = time.monotonic() + (_checks.limit(self._config.grace_seconds) or float("inf"))
            if deadline is not None and time.monotonic() > deadline - 0.5:
                self._left = True
                self._engine.stop()
                deadline = float("inf")
            if told is None and (told := look.problem()) is not None:
                if told.rank is not None:
                    told.words += ", and was killed"
                    self._engine.kill(told.rank, look.pid(told.rank))
                elif told.settle_seconds:
                    channel.put("end", told.end())
                    stop_at = time.monotonic() + told.settle_seconds
                else:
                    self._engine.stop()
            if stop_at is not None and time.monotonic() > stop_at:
                self._engine.stop()
                stop_at = None
        look.take_rows()
        if outcome.ok and told is None:
            told = look.disagreement()
        self._end(outcome, channel, job, told)

    def _end(self, outcome: Outcome, channel: Channel, job: Job, told: Trouble | None) -> None:
        left = [one for one in channel.get_all("left", job.world_size) if one is not None]
        self._left = self._left or bool(left)
        self._outcome, self._trace, self._wrong = outcome, "", False
        errors = {r: e for r, e in enumerate(channel.get_all("error", job.world_size)) if e is not None}
        if outcome.ok and told is None:
            return
        reason = outcome.reason
        if told is not None:
            reason, self._wrong = told.words, told.wrong
        elif errors and (outcome.rank is None or outcome.rank in errors):  # else they are only consequences
            rank = channel.get("cause")  # the first; if several end at once, the agent may name another
            if rank not in errors:
                rank = min(errors) if outcome.rank is None else outcome.rank
            reason, self._trace, self._wrong = said(rank, errors[rank])
        self._outcome = Outcome(False, outcome.rank, reason)
        self.reasons.append(reason)

    def start_failed(self, error: Exception) -> None:
        """Ends the group with its last failure, since the workers could not start again after it."""
        self.reasons[-1] += f"; the workers could not start again: {error}"
        self._outcome, self._cause = Outcome(False, None, self.reasons[-1]), error

    def again(self) -> bool:
        """Whether to start the group again."""
        outcome, most = self._outcome, self._config.max_failures
        if outcome is None or outcome.ok or self._cause is not None:
            return False
        told = self._left or self._watch.signal
        end = workers.End.TOLD if told else workers.End.WRONG if self._wrong else workers.End.FAILED
        if not workers.may_start_again(end, len(self.reasons), most):
            return False
        allowed = "without end" if most < 0 else f"of {most}"
        _log.warning("failure %d %s: %s; the workers start again", len(self.reasons), allowed, outcome.reason)
        return True

    def raise_if_preempted(self) -> None:
        if self._left or (self._watch.signal and self._outcome is not None and not self._outcome.ok):
            raise Preempted("the job was asked to end; started again, it continues from its newest checkpoint")

    def error(self) -> TrainingFailedError | None:
        if self._outcome is None or self._outcome.ok:
            return None
        error = TrainingFailedError(self._outcome.reason, list(self.reasons), self._trace)
        error.__cause__ = self._cause
        return error


def said(rank: int, error: dict[str, Any]) -> tuple[str, str, bool]:
    """A worker's error in one line, its traceback, and whether the program itself is wrong."""
    return f"rank {rank} raised {error['type']}: {error['message']}", error["traceback"], error["kind"] == "usage"


class Trouble:
    """A problem of a group.

    rank: the worker to kill; None: all of them. wrong: a new start would fail in the same way.
    settle_seconds: how long running saves may take before all workers end; 0: they end at once.
    """

    def __init__(self, words: str, rank: int | None = None, wrong: bool = False, settle_seconds: float = 0.0) -> None:
        self.words, self.rank, self.wrong, self.settle_seconds = words, rank, wrong, settle_seconds

    def end(self, cause: int = -1) -> dict[str, Any]:
        """The value of the key "end". cause: the rank that failed, which ends by itself."""
        return {"words": self.words, "rank": cause, "seconds": self.settle_seconds}


class Look:
    """Observes a group from outside, and finds out what is wrong."""

    def __init__(
        self, channel: Channel, job: Job, limits: FailureConfig, rows: list[dict[str, Any]], log: Log | None = None
    ) -> None:
        self._channel, self._world_size, self._keep_all_ranks = channel, job.world_size, job.keep_all_ranks
        self._silent_ms = int(_checks.seconds("heartbeat_timeout", limits.heartbeat_timeout) * 1000)
        self._still_ms = int((_checks.limit(limits.progress_timeout) or 0) * 1000)
        self._seen: dict[str, tuple[Any, float]] = {}  # the last value of a key, and when it was first seen
        self._checked, self._next = 1, 0.0
        self._rows, self._n_rows = rows, 0
        self._log, self._n_logged = log, 0

    def pid(self, rank: int) -> int:
        return int(self._channel.get(f"pid/{rank}") or 0)

    def take_rows(self) -> None:
        """Collects the metrics of reports that all ranks have reached.

        The logger gets its scalars first.
        """
        self._take_logs()
        while (row := self._channel.get(f"row/{self._n_rows + 1}")) is not None:
            if self._world_size > 1 and int(self._channel.get("all") or 0) <= self._n_rows:
                return
            self._n_rows += 1
            self._channel.drop(f"row/{self._n_rows}")
            self._rows.append(row["metrics"])

    def _take_logs(self) -> None:
        while self._log is not None and (found := self._channel.get(f"log/{self._n_logged + 1}")) is not None:
            self._n_logged += 1
            self._channel.drop(f"log/{self._n_logged}")
            self._log(found["scalars"], found["step"])

    def problem(self) -> Trouble | None:
        """The present problem, or None."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + 0.2
        found, rank, words = workers.look(self._workers(now), self._silent_ms, self._still_ms)
        if found is workers.Trouble.STUCK:
            words = f"{words}{self._where()}"
        if found is not workers.Trouble.WELL:
            return Trouble(words, rank, found is workers.Trouble.UNEQUAL)
        return self._clash()

    def disagreement(self) -> Trouble | None:
        """The problem of workers that have all ended, or None."""
        found, _, words = workers.look(self._workers(time.monotonic()), 0, 0)
        return Trouble(words, None, True) if found is workers.Trouble.UNEQUAL else self._clash()

    def _workers(self, now: float) -> list[workers.Worker]:
        found = []
        for rank in range(self._world_size):
            beat, at = self._channel.get(f"beat/{rank}"), self._channel.get(f"at/{rank}") or 0
            done = self._channel.get(f"done/{rank}")
            ended = done is not None or self._channel.has(f"left/{rank}")
            begun = self._channel.get(f"on/{rank}")  # put first when the train function begins
            got_on = (at, begun) if begun is not None else None
            silent, still = self._age(f"beat/{rank}", beat, now), self._age(f"on/{rank}", got_on, now)
            found.append(workers.Worker(at if done is None else int(done), ended, silent, still))
        return found

    def _age(self, key: str, value: Any, now: float) -> int:
        """For how many ms the key has had this value; 0 before the first value."""
        if value is None:
            return 0
        was = self._seen.get(key)
        if was is None or was[0] != value:
            self._seen[key] = was = (value, now)
        return int((now - was[1]) * 1000)

    def _where(self) -> str:
        """Asks the workers where their train functions are. "" if none answers."""
        self._channel.put("ask", 1)
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            places = self._channel.get_all("where", self._world_size)
            if all(one is not None for one in places) or time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        words = [f"rank {rank} in {place}" for rank, place in enumerate(places[:8]) if place]
        return f" ({'; '.join(words)})" if words else ""

    def _clash(self) -> Trouble | None:
        """Finds a file that several ranks report with different contents.

        The checkpoint holds all versions, but a reader would have to choose one.
        """
        while self._checked <= self._n_rows:
            n = self._checked
            if self._channel.has(f"folder/{n}") and not self._keep_all_ranks:
                rows = self._channel.get_all(f"files/{n}", self._world_size)
                if any(row is None for row in rows):
                    return None
                if (found := parts.conflicts(rows)) is not None:
                    words = f"report {n}: {found}; name it after the rank, or give it on one worker only"
                    return Trouble(words, None, True, _CLASH_SECONDS)
            self._checked += 1
        return None
