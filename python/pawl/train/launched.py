# SPDX-License-Identifier: Apache-2.0
"""``fit`` in processes that mpirun, srun, torchrun or the like have started: each of them is a
worker.

Rank 0 holds the store through which they communicate, and watches the others during its own
training. torchrun already has a store. None of these processes can restart another: when one fails,
all end. The user or a scheduler starts the program again, which resumes from the newest checkpoint.
Failures are therefore raised, so that the exit status reports them.

The processes find each other by MASTER_ADDR and MASTER_PORT, if these are set. Otherwise rank 0
writes a small file: into the folder for temporary files on one node, or into the storage path on
several.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError

from .. import _checks
from .._pawl import TimeoutError, UsageError
from ..rank import Rank, rank_identify
from . import _payload, _worker
from .channel import Channel
from .engine import Job
from .group import Look, Trouble, said
from .result import Result, TrainingFailedError
from .session import Preempted

if TYPE_CHECKING:
    from .trainer import DataParallelTrainer

_MEET_SECONDS = 300.0  # for all processes to call fit
_END_SECONDS = 60.0  # for the other ranks to confirm the end
_SETTLE_SECONDS = 3.0  # for running saves when the group ends
_SILENT_SECONDS = 10.0  # after an error: a rank without a heartbeat for this time may be the cause


class _Place:
    """The rendezvous of the processes of this job, shared by all calls of fit."""

    def __init__(self, who: Rank, folder: str | None) -> None:
        self.who, self.number = who, itertools.count(1)
        self.prefix = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if who.launcher == "torchrun" else "0"
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if address and port:
            held = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            wait = timedelta(seconds=_MEET_SECONDS)
            self.store = TCPStore(address, int(port), None, held, wait, False)
            self.host, self.port = address, int(port)
            return
        if folder is None:
            raise UsageError(
                "the processes of this job are on several nodes and the storage path is a URL, so they cannot find "
                "each other: set MASTER_ADDR (of rank 0's node) and MASTER_PORT (one that is free there)"
            )
        text = "\n".join((who.launcher, who.attempt, str(who.world_size), str(os.geteuid())))
        path = os.path.join(folder, f".pawl-meet-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        if who.rank == 0:
            self._invite(path)
        else:
            self._find(path)

    def _invite(self, path: str) -> None:
        self.host = "127.0.0.1" if self.who.local_world_size == self.who.world_size else _address()
        self.store = TCPStore(self.host, 0, None, True, timedelta(seconds=_MEET_SECONDS), False)
        self.port, token = int(self.store.port), uuid.uuid4().hex
        self.store.set("pawl/token", token)
        descriptor, part = tempfile.mkstemp(prefix=".pawl-meet-", dir=os.path.dirname(path))
        with os.fdopen(descriptor, "w") as file:
            json.dump({"host": self.host, "port": self.port, "token": token}, file)
        os.replace(part, path)
        until = time.monotonic() + _MEET_SECONDS
        while len(missing := self._missing()) and time.monotonic() < until:
            time.sleep(0.02)
        os.unlink(path)
        if missing:
            raise TimeoutError(
                f"fit: ranks {', '.join(map(str, missing[:8]))} of {self.who.world_size} have not called it within "
                f"{_MEET_SECONDS:g} s"
            )

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self.who.world_size) if not self.store.check([f"pawl/joined/{rank}"])]

    def _find(self, path: str) -> None:
        """Connects to rank 0 through its file.

        An earlier start may have left the file. Then no process answers, or a wrong one.
        """
        until = time.monotonic() + _MEET_SECONDS
        while time.monotonic() < until:
            _check_owner(path)
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                with open(path) as file:
                    invitation = json.load(file)
                store = TCPStore(invitation["host"], int(invitation["port"]), None, False, timedelta(seconds=5), False)
                if store.get("pawl/token").decode() == invitation["token"]:
                    store.set_timeout(timedelta(seconds=_MEET_SECONDS))  # the process group uses it, too
                    store.set(f"pawl/joined/{self.who.rank}", "1")
                    self.store, self.host, self.port = store, invitation["host"], int(invitation["port"])
                    return
            time.sleep(0.05)
        why = f"no answer at the address in {path}" if os.path.exists(path) else f"{path} does not exist"
        raise TimeoutError(f"fit: rank 0 has not called it within {_MEET_SECONDS:g} s ({why})")


def _check_owner(path: str) -> None:
    with contextlib.suppress(OSError):  # there is no file yet
        if os.stat(path).st_uid != os.geteuid():
            raise UsageError(f"{path} belongs to another user")


_places: list[_Place] = []  # at most one, since a store is held until the process ends


def _address() -> str:
    """The address of this node, as the other nodes reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1"), 9))  # sends nothing
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


def _place(trainer: DataParallelTrainer) -> _Place:
    if not _places:
        who = rank_identify()
        if who.world_size == 1:
            raise UsageError('engine="launcher", but no launcher of several processes has started this one')
        base = _checks.path("storage_path", trainer._run.storage_path or os.path.expanduser("~/ray_results"))
        folder = tempfile.gettempdir() if who.local_world_size == who.world_size else None
        if folder is None and "://" not in base:
            os.makedirs(base, exist_ok=True)
            folder = os.path.abspath(base)
        _places.append(_Place(who, folder))
    who, asked = _places[0].who, trainer._scaling.num_workers
    if asked not in (1, who.world_size):
        raise UsageError(
            f"num_workers={asked}, but {who.launcher or 'the launcher'} has started {who.world_size} processes"
        )
    return _places[0]


def _failed(why: dict[str, Any], trace: str = "") -> TrainingFailedError:
    """The error that the group ends with.

    Its result has the rows so far; ``_fit`` adds the rest.
    """
    error, rows = TrainingFailedError(why["words"], [why["words"]], trace), why.get("rows", [])
    error.result = Result(None, [], rows[-1] if rows else None, "", error, rows, error.reasons)
    return error


def _wait(channel: Channel, key: str, seconds: float, rank: int = 0) -> Any:
    """Waits for a value of another rank. Raises an error if the group ends instead."""
    until = time.monotonic() + seconds
    while (found := channel.get(key)) is None:
        if (why := channel.get("end")) is not None:
            channel.put(f"heard/{rank}", 1)
            raise _failed(why)
        if time.monotonic() > until:
            raise TimeoutError(f"fit: no answer from the other processes within {seconds:g} s ({key})")
        time.sleep(0.02)
    return found


class _Driver(threading.Thread):
    """The thread of rank 0 that watches all ranks, its own worker included."""

    def __init__(self, trainer: DataParallelTrainer, job: Job) -> None:
        super().__init__(name="pawl-driver", daemon=True)
        self._channel = Channel.join(job.host, job.port, job.channel)
        self._world_size = job.world_size
        self.rows: list[dict[str, Any]] = []
        self._look = Look(self._channel, job, trainer._run.failure_config, self.rows)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            self._look.take_rows()
            if (rank := self._channel.get("cause")) is not None:
                words = said(rank, _wait(self._channel, f"error/{rank}", _END_SECONDS))[0]
                if silent := self._silent():
                    words = f"rank {', '.join(map(str, silent[:8]))} gives no sign of life, killed or lost; {words}"
                self._end(words, rank)
                return
            if (trouble := self._look.problem()) is not None:
                self._end_with(trouble)
                return

    def _end(self, words: str, rank: int) -> None:
        self._put_end(Trouble(words, settle_seconds=_SETTLE_SECONDS).end(rank))

    def _silent(self) -> list[int]:
        """The ranks that send no heartbeat and have reported no end.

        The errors of the other ranks are then consequences.
        """
        silent = list(range(1, self._world_size))  # rank 0 is this process
        beats, until = self._channel.get_all("beat", self._world_size), time.monotonic() + _SILENT_SECONDS
        while silent and time.monotonic() < until:
            silent = [n for n in silent if self._channel.get(f"beat/{n}") == beats[n] and not self._channel.ended(n)]
            time.sleep(0.05)
        return silent

    def stop(self) -> None:
        self._over.set()
        self.join()

    def finish(self) -> None:
        """Waits for all ranks to end.

        Raises an error that names the ranks that did not end well.
        """
        for rank in range(self._world_size):
            _wait(self._channel, f"done/{rank}", float("inf"))
        self.stop()
        self._look.take_rows()
        if (trouble := self._look.disagreement()) is not None:
            self._end_with(trouble)
            self._channel.wait_heard(self._world_size)
            raise _failed({"words": trouble.words, "rows": self.rows})

    def _end_with(self, trouble: Trouble) -> None:
        trouble.settle_seconds = max(trouble.settle_seconds, _SETTLE_SECONDS)
        self._put_end(trouble.end())

    def _put_end(self, why: dict[str, Any]) -> None:
        """Puts "end", with the metrics reported so far for the result of each rank's error."""
        self._look.take_rows()
        self._channel.put("end", {**why, "rows": self.rows})


def fit(trainer: DataParallelTrainer) -> Result:
    """Trains as one of the workers; all processes call it.

    Raises TrainingFailedError if one of them fails.
    """
    place = _place(trainer)
    try:
        return _fit(trainer, place)
    except DistError as error:
        raise _lost(place, error) from error


def _fit(trainer: DataParallelTrainer, place: _Place) -> Result:
    who, number = place.who, next(place.number)
    prefix = f"{place.prefix}.{number}"
    channel = Channel.join(place.host, place.port, prefix)
    if who.local_world_size != who.world_size and trainer._run.checkpoint_config.num_to_keep == 0:
        raise UsageError(
            "num_to_keep=0 keeps the checkpoint in the memory of one node, but the processes are on several"
        )
    with contextlib.ExitStack() as after:
        resume, first = trainer._resumed(after)
        if who.rank == 0:
            channel.put("plan", trainer._folder(after))
        root, memory = _wait(channel, "plan", _MEET_SECONDS, who.rank)
        for name, value in (
            ("RANK", who.rank),
            ("WORLD_SIZE", who.world_size),
            ("LOCAL_RANK", who.local_rank or 0),
            ("LOCAL_WORLD_SIZE", who.local_world_size or 1),
            ("GROUP_RANK", who.node_rank or 0),
        ):
            os.environ[name] = str(value)
        attempt = int(place.prefix) + 1
        job = trainer._job(b"", who.world_size, attempt, place, root, resume, first, True, prefix)
        driver = None
        if who.rank == 0:
            driver = _Driver(trainer, job)
            driver.start()
        try:
            meeting = PrefixStore(f"pawl-group/{prefix}", place.store)
            ended = _worker.work(job, _payload.bind(trainer._function, trainer._config), meeting)
            _leave_group()
            if ended is not None:
                _part(channel, driver, who, ended)
            if driver is not None:
                driver.finish()
                channel.put("rows", driver.rows)
            rows = _wait(channel, "rows", float("inf"), who.rank)
        except (TrainingFailedError, DistError) as caught:
            cause = caught if isinstance(caught, DistError) else caught.__cause__
            error = _lost(place, caught) if isinstance(caught, DistError) else caught
            so_far = [] if error.result is None else error.result.metrics_history
            raise trainer._with_result(error, root, memory, so_far) from cause
        result = trainer._result(root, memory, rows, None, [])
        channel.put(f"bye/{who.rank}", 1)
        if driver is not None:  # the store must live until all ranks have read their results
            with contextlib.suppress(TimeoutError):
                for rank in range(who.world_size):
                    _wait(channel, f"bye/{rank}", _END_SECONDS)
        return result


def _lost(place: _Place, error: DistError) -> TrainingFailedError:
    words = f"rank {place.who.rank} lost the connection to {place.host}, where all ranks meet: {error}"
    return TrainingFailedError(words, [words])


def _leave_group() -> None:
    from torch import distributed

    if distributed.is_initialized():
        with contextlib.suppress(RuntimeError):  # the others may be gone
            distributed.destroy_process_group()


def _part(channel: Channel, driver: _Driver | None, who: Rank, ended: BaseException) -> None:
    """Raises the error that ended the worker.

    Rank 0 stays until the others know, since it holds the store.
    """
    if isinstance(ended, Preempted):
        if driver is not None:
            with contextlib.suppress(TimeoutError, TrainingFailedError, DistError):
                for rank in range(who.world_size):
                    _wait(channel, f"left/{rank}", _END_SECONDS)
            driver.stop()
        raise ended
    try:
        why = _wait(channel, "end", _END_SECONDS)
    except TimeoutError:  # rank 0 no longer watches
        why = {"words": said(who.rank, channel.get(f"error/{who.rank}"))[0], "rank": who.rank}
    error = channel.get(f"error/{why['rank']}")
    channel.put(f"heard/{who.rank}", 1)  # now the store may end
    if driver is not None:
        driver.stop()
        channel.wait_heard(who.world_size)
    trace = said(why["rank"], error)[1] if error is not None else ""
    raise _failed(why, trace) from ended
