# SPDX-License-Identifier: Apache-2.0
"""Engines start and stop workers: the interface between a trainer and what runs its processes.

An engine starts ``job.world_size`` processes. Each of them has RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, GROUP_RANK (its node), MASTER_ADDR and MASTER_PORT in its environment. It calls
``pawl.train._worker.run(job)``, which returns its exit status. Everything else goes through the
driver's store (``channel.py``): reports, heartbeats, errors, the agreement to end. An engine has
only these methods:

    available(scaling)  how many workers can be started now
    host()              the address under which workers reach the driver's store
    start(job)          starts all workers and returns
    poll()              None while they run, then an Outcome
    kill(rank, pid)     sends SIGKILL to a worker that hangs; poll then returns a failure
    stop()              kills all workers that still run; may be repeated
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol

from .._cores import count_cores
from ..loggers import Log
from ..rank import rank_identify
from .config import ScalingConfig


@dataclass(frozen=True)
class Job:
    """What a worker must know. It is pickled and passed to the worker."""

    payload: bytes  # the train function and its config, as _payload.pack made it
    world_size: int
    attempt: int  # of this fit, from 1
    token: str  # the same in all workers of an attempt, and in no other
    host: str  # of the driver's store
    port: int
    root: str  # the run's folder
    options: dict[str, Any]  # of the run's manager
    keep_all_ranks: bool
    allow_pickle: bool
    report_timeout: float
    grace_seconds: float
    backend: str | None  # of torch's process group: "gloo", "nccl"; None = no group
    resume: (
        tuple[str, int] | None
    )  # where the first checkpoint is: a run's folder and an id, or a checkpoint's folder and 0
    names: dict[str, str] = field(default_factory=dict)  # of experiment and trial, for get_context
    path: tuple[str, ...] = ()  # sys.path of the driver
    launched: bool = False  # started by mpirun, srun or the like: pawl does not start it again
    heartbeat_timeout: float = 60.0  # launched: the ranks end this long after rank 0's last heartbeat
    log: Log | bool = False  # logger of rank 0's scalars; True: that of the driver; False: none
    channel: str = ""  # prefix of the keys in the store; "" = the attempt


@dataclass(frozen=True)
class Outcome:
    """How a group has ended. reason: one line that names rank and cause; "" if all went well."""

    ok: bool
    rank: int | None = None
    reason: str = ""


class Reached(Protocol):
    """The address of the store."""

    host: str
    port: int


class Engine(Protocol):
    def available(self, scaling: ScalingConfig) -> int: ...
    def host(self) -> str: ...
    def start(self, job: Job) -> None: ...
    def poll(self) -> Outcome | None: ...
    def kill(self, rank: int, pid: int) -> None: ...
    def stop(self) -> None: ...


def name_of_engine(scaling: ScalingConfig) -> str:
    """The requested engine, else the one that fits the environment of this process."""
    if scaling.engine is not None:
        return scaling.engine
    if rank_identify().world_size > 1:
        return "launcher"
    ray = sys.modules.get("ray")
    return "ray" if ray is not None and ray.is_initialized() else "local"


def engine_of(scaling: ScalingConfig) -> Engine:
    """The engine that starts the workers: on Ray, or on this machine."""
    if name_of_engine(scaling) == "ray":
        from .ray_engine import RayEngine

        return RayEngine(scaling)
    return LocalEngine()


class LocalEngine:
    """Workers as processes of this machine, under torch's elastic agent.

    The agent starts the processes, assigns their ranks, provides a rendezvous and watches them.
    When one fails, it ends the others.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._folder = ""
        self._agent: Any = None

    def available(self, scaling: ScalingConfig) -> int:
        needs = dict(scaling.resources_per_worker or {})
        cores = float(needs.get("CPU", 0 if scaling.use_gpu else 1))
        found = int(count_cores() / cores) if cores > 0 else scaling.num_workers
        gpus = float(needs.get("GPU", 1 if scaling.use_gpu else 0))
        if gpus > 0:
            import torch

            found = min(found, int(torch.cuda.device_count() / gpus))
        return found

    def host(self) -> str:
        return "127.0.0.1"

    def start(self, job: Job) -> None:
        self._folder = tempfile.mkdtemp(prefix="pawl-train-")
        path = pathlib.Path(self._folder, "job")
        path.touch(mode=0o600)
        path.write_bytes(pickle.dumps(job))
        self._outcome = None
        words = ["-m", "pawl.train._worker", str(path)]
        self._thread = threading.Thread(target=self._run, args=(job.world_size, words), name="pawl-agent", daemon=True)
        self._thread.start()

    def poll(self) -> Outcome | None:
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        self._remove_folder()
        return self._outcome

    def kill(self, rank: int, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        agent, thread = self._agent, self._thread
        if thread is not None and thread.is_alive():
            context = getattr(agent, "_pcontext", None)
            for pid in (context.pids() if context is not None else {}).values():
                self.kill(0, pid)
            thread.join(60)
        self._remove_folder()  # poll is not called again if fit ends by an exception

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, world_size: int, words: list[str]) -> None:
        try:
            self._outcome = self._launch(world_size, words)
        except Exception as error:  # the agent itself has failed
            self._outcome = Outcome(False, None, f"the workers could not be started: {type(error).__name__}: {error}")

    def _launch(self, world_size: int, words: list[str]) -> Outcome:
        """Does the same as ``torchrun --standalone``, without a command line."""
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        for name in ("torch.distributed.elastic.multiprocessing.api", "torch.distributed.elastic.agent.server.api"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the Outcome has the same information
        where = RendezvousParameters("c10d", "localhost:0", uuid.uuid4().hex, 1, 1, local_addr="localhost", timeout=60)
        handler = get_rendezvous_handler(where)
        spec = WorkerSpec(
            role="trainer",
            local_world_size=world_size,
            rdzv_handler=handler,
            entrypoint=sys.executable,
            args=tuple(words),
            max_restarts=0,  # the trainer decides about a new start
            monitor_interval=0.05,
            local_addr="localhost",
        )
        logs = DefaultLogsSpecs(log_dir=os.path.join(self._folder, "logs"))
        self._agent = agent = LocalElasticAgent(spec, logs, start_method="spawn", shutdown_timeout=5)
        try:
            result = agent.run()
        finally:
            handler.shutdown()
        if not result.is_failed():
            return Outcome(True)
        ended = (-signal.SIGTERM, 128 + signal.SIGTERM)  # by the agent, after another had failed
        first = {rank: one for rank, one in result.failures.items() if one.exitcode not in ended} or result.failures
        # A killed worker comes first: its end is the cause of the others' errors.
        rank, failure = min(first.items(), key=lambda item: (item[1].exitcode >= 0, item[1].timestamp, item[0]))
        if failure.exitcode < 0:
            return Outcome(False, rank, f"rank {rank} was killed by {failure.signal_name()}")
        return Outcome(False, rank, f"rank {rank} ended with exit status {failure.exitcode}")
