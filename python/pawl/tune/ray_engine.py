# SPDX-License-Identifier: Apache-2.0
"""Trials as actors of a Ray cluster: ``tune.run(.., engine="ray")``.

Ray only places, starts and ends them. As with processes of this machine, the experiment decides
which trials run, with which resources, and for how long. Its files are the same.

RayRunner has the methods of _pawl.TrialRunner. An actor is placed first (``prepare``). Then the
trial runs, and calls of ``talk`` return its messages, one call at a time. At the end the actor is
killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .. import _files, _pawl
from .._pawl import PawlError, UsageError
from ..syncer import Syncer
from . import _json, elsewhere, ray_actor
from .ray_actor import About, Start
from .ray_clones import Clones
from .spec import Plan

try:
    import ray
    from ray.exceptions import RayActorError, RayError
except ImportError as error:
    raise ImportError(f"tune.run(engine=\"ray\") needs Ray: pip install 'libpawl[ray]' ({error})") from None

_NAMESPACE = "pawl-tune"
_TALK_SECONDS = 20.0  # a call of talk returns after this time, even without a message
_GONE_SECONDS = 60.0  # until an actor of an earlier driver has ended
_LOOK_SECONDS = 2.0  # between two queries of the nodes
_SHARED_SECONDS = 60.0  # until files that a node wrote into a shared folder are visible here
_SLICE_SECONDS = 0.02
_AWAY_SECONDS = 1.0  # between two checks of timeouts; longer gaps do not count, as the driver was busy
_FINISHED, _FAILED, _LOST = 0, 1, 2  # of enum tune_end
_HOW = ("finished", "failed", "lost")
_VERDICTS = ("continue", "pause", "stop", "exploit")
_PAUSE = 1

Event = tuple[str, int, str | None, str | None, int, str, bool]


def connect(address: str | None = None, **options: Any) -> None:
    """Joins a cluster, unless this process is in one.

    Without an address it joins the one of RAY_ADDRESS, or starts one here.
    """
    if not ray.is_initialized():
        ray.init(address=address, **options)


@dataclass
class _Trial:
    """A trial that runs."""

    number: int
    folder: str
    checkpoint: str | None
    place: str | None = None  # where the checkpoint is stored, if it is not here
    actor: Any = None  # None while the checkpoint that it begins with is being copied
    about: About | None = None
    call: Any = None  # the call of Ray that returns the next messages
    work: Future[None] | None = None  # on a thread here; then() is called after it
    then: Callable[[], None] | None = None
    deadline: float = math.inf
    asked: bool = False  # it was asked to save and end at its next report
    told: bool = False  # it has received its verdict
    verdict: int = 0
    heard: float = math.inf  # time of its last message; inf: no message is expected now
    lost: bool = False  # its end is not a failure
    failure: str | None = None
    unheard: deque[dict[str, Any]] = field(default_factory=deque)


class RayRunner:
    """The trials of an experiment on the cluster that this process has joined."""

    def __init__(self, experiment: _pawl.Experiment, plan: Plan, payload: Callable[[], bytes]) -> None:
        connect()
        self._experiment, self._plan, self._payload = experiment, plan, payload
        self._spec = json.loads(experiment.about()[0])
        self._needs = _needs(plan)
        self._running: dict[int, _Trial] = {}
        self._events: deque[Event] = deque()
        self._stopping = self._started_all = False
        self._packed: tuple[bytes, Any] = (b"", None)
        self._room, self._looked = 0, -math.inf
        self._checked = time.monotonic()
        self._token = json.loads(_read(os.path.join(plan.folder, "experiment.json"))).get("token", plan.folder)
        self._mark = ray_actor.mark(plan.folder)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="pawl-tune")
        self._clones = Clones(experiment, plan, self._threads, self._notice)
        if self.room() == 0 and not plan.document["max_concurrent"]:
            raise UsageError(f"no node of the cluster has what a trial needs: {self._needs} ({_shown_nodes()})")

    # ---- the interface ----

    def poll(self, timeout_ms: int) -> Event | None:
        until = time.monotonic() + timeout_ms / 1000
        while True:
            if self._events:
                return self._events.popleft()
            self._check_times()
            self._start_some()
            if self._events:
                continue
            if not self._running and (self._stopping or self._started_all):
                return "done", 0, None, None, 0, "finished", False
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._listen(left)

    def _notice(self, number: int, text: str) -> None:
        self._events.append(("notice", number, text, "", 0, "finished", False))

    def stop(self, now: bool) -> None:
        self._stopping = True
        for one in self._running.values():
            self._ask(one)
            if now:
                one.deadline = 0.0

    def stop_trial(self, number: int, why: str) -> None:
        self._experiment.stop_trial(number, why)
        if number in self._running:
            self._ask(self._running[number])

    def close(self) -> None:
        for one in self._running.values():
            _kill(one.actor)
        self._running.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._plan.folder, ray_actor.MARK))

    def room(self) -> int:
        """How many trials the cluster can run at a time, with its present nodes."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            wanted = {name: count for name, count in self._needs.items() if count > 0} or {"CPU": 1e-3}
            self._room = sum(
                min(math.floor(node.get(name, 0) / count + 1e-6) for name, count in wanted.items()) for node in nodes
            )
        return self._room

    # ---- starting ----

    def _start_some(self) -> None:
        # With a limit, that many actors are requested: a cluster that grows by demand must see the
        # demand.
        while not self._stopping and len(self._running) < (self._plan.document["max_concurrent"] or self.room()):
            found = self._experiment.next()
            self._started_all = found == "done"
            if isinstance(found, str):
                return
            self._clones.look()
            number, _, _, folder, _, checkpoint, _ = found
            one = _Trial(number, os.path.abspath(folder), checkpoint)
            self._running[number] = one
            self._start(one, *found)

    def _start(
        self,
        one: _Trial,
        number: int,
        attempt: int,
        name: str,
        folder: str,
        config: str,
        checkpoint: str | None,
        iteration: int,
    ) -> None:
        copy = self._clones.wanted(name)
        if copy is not None:
            again = functools.partial(self._start, one, number, attempt, name, folder, config, checkpoint, iteration)
            one.work, one.then = copy, again
            return
        note = None if checkpoint is None else elsewhere.note_of(os.path.join(one.folder, checkpoint))
        one.place = None if note is None else str(note["place"])
        row = self._experiment.trial(number)
        start = Start(
            self._mark,
            self._plan.local or self._plan.folder,
            self._plan.sync,
            name,
            row["id"],
            config,
            checkpoint,
            one.place,
            self._plan.given,
            iteration,
            self._plan.document.get("env", {}),
        )
        self._end_earlier(number, attempt)
        options: dict[str, Any] = {"num_cpus": self._needs.get("CPU", 0), "num_gpus": self._needs.get("GPU", 0)}
        more = {name: count for name, count in self._needs.items() if name not in ("CPU", "GPU", "memory")}
        if more:
            options["resources"] = more
        if "memory" in self._needs:
            options["memory"] = int(self._needs["memory"])
        one.actor = (
            ray.remote(ray_actor.Actor)
            .options(
                name=self._name(number, attempt),
                namespace=_NAMESPACE,
                max_restarts=0,
                max_concurrency=4,
                **options,
            )
            .remote()
        )
        one.call = one.actor.prepare.remote(start, self._job())
        self._events.append(("started", number, checkpoint, "", 0, "finished", False))

    def _job(self) -> Any:
        """The job of all trials, stored once in Ray's object store."""
        payload = self._payload()
        if payload is not self._packed[0]:
            self._packed = payload, ray.put(payload)
        return self._packed[1]

    def _name(self, number: int, attempt: int) -> str:
        return f"{self._token}-{number}-{attempt}"

    def _end_earlier(self, number: int, attempt: int) -> None:
        """Ends the actor of an earlier driver, which may outlive a killed driver for a moment.

        Two actors of a trial would write into one folder.
        """
        until = time.monotonic() + _GONE_SECONDS
        while attempt > 1 and time.monotonic() < until:
            try:
                earlier = ray.get_actor(self._name(number, attempt - 1), namespace=_NAMESPACE)
            except ValueError:
                return
            _kill(earlier)
            time.sleep(_SLICE_SECONDS)

    def _begin(self, one: _Trial, about: About) -> None:
        """Runs a trial whose actor was placed. First copies its checkpoint there, if necessary."""
        one.about = about
        self._experiment.runs(one.number, about.pid, about.host)
        name, source = one.checkpoint, self._plan.given
        if name is not None:
            source = os.path.join(one.folder, name)
        elif source is not None:
            name = ".given"
        there = about.how == "shared" or one.place is not None
        if there or name is None or source is None:
            self._run(one)
            return
        self._start_work(one, lambda: self._push(one, str(source), str(name)), lambda: self._run(one))

    @staticmethod
    def _run(one: _Trial) -> None:
        one.heard = time.monotonic()
        one.actor.run.remote()
        one.call = one.actor.talk.remote(None, _TALK_SECONDS)

    # ---- messages ----

    def _listen(self, seconds: float) -> None:
        works = [one for one in self._running.values() if one.work is not None]
        calls = {one.call: one for one in self._running.values() if one.call is not None}
        if works:
            seconds = min(seconds, _SLICE_SECONDS)
        if calls:
            done, _ = ray.wait(list(calls), num_returns=1, timeout=seconds)
            more, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0) if done else ([], [])
            for call in more or done:
                self._hear(calls[call], call)
        else:
            time.sleep(min(seconds, _SLICE_SECONDS))
        for one in works:
            if one.work is not None and one.work.done():
                self._finish_work(one)

    def _hear(self, one: _Trial, call: Any) -> None:
        one.call = None
        try:
            found = ray.get(call)
        except RayActorError as error:
            self._end_dead(one, error)
            return
        except RayError as error:
            one.failure = one.failure or _last_line(error)
            self._end(one)
            return
        if isinstance(found, About):
            self._begin(one, found)
            return
        if found:
            one.heard = time.monotonic()
        one.unheard.extend(found)
        self._take_messages(one)

    def _end_dead(self, one: _Trial, error: RayActorError) -> None:
        """Ends a trial whose actor has died."""
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if one.told:
            pass  # its last message was handled
        elif one.asked or getattr(error, "preempted", False):
            one.lost = True
        else:
            one.failure = one.failure or f"its process was killed, or its node was lost: {cause}"
        self._end(one)

    def _take_messages(self, one: _Trial) -> None:
        """Handles the trial's messages one by one, then asks for more."""
        while one.unheard:
            message = one.unheard.popleft()
            if "over" in message:
                if message["over"] and one.failure is None and not one.told:
                    one.failure = message["text"] or "it failed"
                self._end(one)
                return
            if message.get("checkpoint") is not None:
                self._bring_first(one, message)
                return
            self._take_one(one, message)
        if one.call is None:
            one.call = one.actor.talk.remote(None, _TALK_SECONDS)

    def _bring_first(self, one: _Trial, message: dict[str, Any]) -> None:
        def then() -> None:
            self._take_one(one, message)
            self._take_messages(one)

        self._start_work(one, lambda: self._bring(one, message), then)

    def _take_one(self, one: _Trial, message: dict[str, Any]) -> None:
        if "report" in message:
            answer = self._report(one, message)
            answer["keep"] = [name for name, *_ in self._experiment.checkpoints(one.number)]
            one.call = one.actor.talk.remote(answer, _TALK_SECONDS)
        elif "checkpoint" in message:
            try:
                self._experiment.checkpoint(one.number, message["checkpoint"])
            except UsageError as error:  # a wrong message; the trial continues
                self._notice(one.number, str(error))
                return
            self._events.append(("checkpoint", one.number, message["checkpoint"], "", 0, "finished", False))
        elif "error" in message:
            one.failure = one.failure or str(message["error"])

    def _report(self, one: _Trial, message: dict[str, Any]) -> dict[str, Any]:
        if one.told or one.failure is not None:
            return {"verdict": _VERDICTS[one.verdict or 2], "save": False}
        try:
            verdict, save, stop_all, result, reason = self._experiment.report(
                one.number, _json.dumps(message["report"]), message.get("checkpoint")
            )
        except UsageError as error:
            one.failure = str(error)
            one.deadline = time.monotonic() + self._grace()
            return {"error": str(error)}
        self._events.append(("report", one.number, result, reason, verdict, "finished", False))
        if verdict == 0 and one.asked:
            one.lost, verdict, save = True, _PAUSE, True
        if verdict != 0:
            one.told, one.verdict = True, verdict
            one.deadline = min(one.deadline, time.monotonic() + self._grace())
        if stop_all:
            self._stop_others()
        return {"verdict": _VERDICTS[verdict], "save": save}

    def _stop_others(self) -> None:
        for number in range(self._experiment.counts()["trials"]):
            if self._experiment.trial(number)["state"] not in ("TERMINATED", "ERROR"):
                self.stop_trial(number, "the experiment is stopped")

    # ---- copying checkpoints ----

    def _start_work(self, one: _Trial, work: Callable[[], None], then: Callable[[], None]) -> None:
        one.work, one.then = self._threads.submit(work), then

    def _finish_work(self, one: _Trial) -> None:
        work, then, one.work, one.then = one.work, one.then, None, None
        if work is None or then is None:
            return
        error = work.exception()
        if math.isfinite(one.heard):
            one.heard = time.monotonic()
        if error is None:
            then()
            return
        if isinstance(error, RayActorError):
            one.lost = one.lost or one.told  # the checkpoint of its last result is missing
            self._end_dead(one, error)
            return
        one.failure = one.failure or f"its checkpoint could not be copied: {_last_line(error)}"
        self._end(one)

    def _bring(self, one: _Trial, message: dict[str, Any]) -> None:
        """Makes sure that the checkpoint of a message is in the experiment's folder here.

        Runs on a thread.
        """
        name = os.path.basename(str(message["checkpoint"]))
        target = os.path.join(one.folder, name)
        how = one.about.how if one.about else "shared"
        if how == "remote":
            elsewhere.stand_in(target, message["place"], self._plan.sync)
        elif how == "copied":
            partial = _files.hidden(target)
            self._pull(one, name, partial)
            _files.publish(partial, target)
        else:
            until = time.monotonic() + _SHARED_SECONDS
            while not os.path.isdir(target) and time.monotonic() < until:
                time.sleep(0.05)

    def _by_program(self) -> bool:
        """Whether a command or a function copies the checkpoints (R118, R119)."""
        return self._plan.sync.upload_dir is None and self._plan.sync.syncer != "auto"

    def _pull(self, one: _Trial, name: str, partial: str) -> None:
        shutil.rmtree(partial, ignore_errors=True)  # an earlier driver may have left files
        os.makedirs(partial)
        if self._by_program() and one.about is not None:
            elsewhere.fetch(self._plan.sync, f"{one.about.where}/{name}", partial)
            return
        for path, size in ray.get(one.actor.files.remote(name)):
            target = _inside(partial, path)
            if size < 0:
                os.makedirs(target, exist_ok=True)
                continue
            with open(target, "wb") as file:
                while file.tell() < size:
                    data = ray.get(one.actor.read.remote(name, path, file.tell()))
                    if not data:
                        raise PawlError(f"{name}/{path} on {one.about.host if one.about else '?'} became shorter")
                    file.write(data)

    def _push(self, one: _Trial, source: str, name: str) -> None:
        if self._by_program() and one.about is not None:
            syncer = Syncer(source, self._plan.sync, remote=f"{one.about.where}/{name}")
            try:
                syncer.up()
            finally:
                syncer.close()
            return
        for path, size in elsewhere.files_of(source):
            if path == elsewhere.NOTE:
                continue
            if size < 0:
                ray.get(one.actor.write.remote(name, path, 0, None))
                continue
            with open(os.path.join(source, path), "rb") as file:
                while True:
                    offset = file.tell()
                    data = file.read(ray_actor.BLOCK)
                    if data or offset == 0:
                        ray.get(one.actor.write.remote(name, path, offset, data))
                    if len(data) < ray_actor.BLOCK:
                        break

    # ---- how it ends ----

    def _grace(self) -> float:
        return float(self._spec.get("grace_s", 30))

    def _ask(self, one: _Trial) -> None:
        if not one.asked:
            one.asked = True
            one.deadline = min(one.deadline, time.monotonic() + self._grace())

    def _check_times(self) -> None:
        now = time.monotonic()
        heartbeat = float(self._spec.get("heartbeat_s") or 0)
        away, self._checked = max(0.0, now - self._checked - _AWAY_SECONDS), now
        for one in list(self._running.values()):
            one.heard += away
            hangs = heartbeat > 0 and now - one.heard > heartbeat and not (one.asked or one.told or one.failure)
            if hangs and one.work is None:
                where = f" (process {one.about.pid} on {one.about.host})" if one.about else ""
                one.failure = f"no sign of life for {heartbeat:g} s{where}"
                self._end(one)
                continue
            if now >= one.deadline and one.work is None:
                one.lost = one.lost or (one.asked and not one.told and one.failure is None)
                self._end(one)
        budget = float(self._spec.get("time_budget_s") or 0)
        if budget > 0 and not self._stopping and self._experiment.counts()["time_s"] >= budget:
            self._notice(0, f"the time budget of {budget:g} s is spent")
            self.stop(False)

    def _end(self, one: _Trial) -> None:
        del self._running[one.number]
        _kill(one.actor)
        how = _FAILED if one.failure is not None else _LOST if one.lost else _FINISHED
        why = one.failure or "" if how == _FAILED else ""
        again = self._experiment.ended(one.number, how, why)
        self._events.append(("ended", one.number, why, "", one.verdict, _HOW[how], again))


def _needs(plan: Plan) -> dict[str, float]:
    """The resources of a trial, by Ray's names."""
    given = plan.document["resources"]
    found = {"CPU": float(given.get("cpu", 1)), "GPU": float(given.get("gpu", 0))}
    if given.get("memory_bytes"):
        found["memory"] = float(given["memory_bytes"])
    return found | plan.custom


def _shown_nodes() -> str:
    names = ("CPU", "GPU", "memory")
    alive = [node for node in ray.nodes() if node["Alive"]]
    shown = [", ".join(f"{name} {node['Resources'].get(name, 0):g}" for name in names) for node in alive]
    return f"{len(alive)} nodes: {'; '.join(shown[:10])}"


def _inside(folder: str, path: str) -> str:
    """Joins a folder and a path from another machine. Raises an error if it leads outside."""
    found = os.path.normpath(os.path.join(folder, path))
    if found != folder and not found.startswith(folder + os.sep):
        raise UsageError(f"expected a path in {folder}, found {path!r}")
    return found


def _kill(actor: Any) -> None:
    if actor is None:
        return
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
