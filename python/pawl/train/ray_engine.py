# SPDX-License-Identifier: Apache-2.0
"""Workers as actors of a Ray cluster: ``ScalingConfig(engine="ray")``.

Ray only places, starts and ends them. The trainer handles reports, checkpoints and failures, as on
one machine. All nodes need this package and the same storage.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import socket
import time
from typing import Any

from .._pawl import UsageError
from .config import ScalingConfig
from .engine import Job, Outcome

try:
    import ray
    from ray.exceptions import RayActorError, RayError
    from ray.util import get_node_ip_address, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError(f"ScalingConfig(engine=\"ray\") needs Ray: pip install 'libpawl[ray]' ({error})") from None

_START_SECONDS = 120.0  # until all actors are placed
_CAUSE_SECONDS = 5.0  # after the first failure, since Ray may report its cause later
_FREE_SECONDS = 10.0  # until Ray has noticed that earlier workers have ended


class _Worker:
    """One actor: a separate process that only runs the train function."""

    def where(self) -> tuple[str, str, int]:
        """Node, address, and a port that is free there."""
        with socket.socket() as one:
            one.bind(("", 0))
            return ray.get_runtime_context().get_node_id(), get_node_ip_address(), int(one.getsockname()[1])

    def run(self, job: bytes, environment: dict[str, str]) -> int:
        os.environ.update(environment)
        from . import _worker

        return _worker.run(pickle.loads(job))


class RayEngine:
    """Starts workers on a Ray cluster.

    It is the cluster that this process is connected to. Otherwise it is the cluster of RAY_ADDRESS,
    or one that is started on this machine.
    """

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        self._group: Any = None
        self._actors: list[Any] = []
        self._calls: dict[Any, int] = {}  # call -> rank
        self._failures: list[tuple[bool, int, str]] = []  # was not killed, rank, reason
        self._decide_at = math.inf
        self._outcome: Outcome | None = None
        if not ray.is_initialized():
            ray.init()

    def available(self, scaling: ScalingConfig) -> int:
        until = time.monotonic() + _FREE_SECONDS
        while True:
            free = ray.available_resources()
            wanted = [(name, count) for name, count in self._needs().items() if count > 0]
            found = min((math.floor(free.get(name, 0) / count + 1e-6) for name, count in wanted), default=1 << 15)
            if found >= scaling.num_workers or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def host(self) -> str:
        return str(get_node_ip_address())

    def start(self, job: Job) -> None:
        self._outcome = None
        self._failures, self._decide_at = [], math.inf
        needs = self._needs()
        self._group = placement_group([needs] * job.world_size, strategy=self._scaling.placement_strategy)
        if not self._group.wait(_START_SECONDS):
            self.stop()
            raise UsageError(f"Ray has found no place for {job.world_size} workers with {needs} each")
        more = {name: count for name, count in needs.items() if name not in ("CPU", "GPU")}
        strategy = PlacementGroupSchedulingStrategy(self._group)
        kind = ray.remote(_Worker).options(
            num_cpus=needs.get("CPU", 0),
            num_gpus=needs.get("GPU", 0),
            resources=more or None,
            scheduling_strategy=strategy,
            max_restarts=0,
        )
        actors = [kind.remote() for _ in range(job.world_size)]
        self._actors = actors
        places = ray.get([actor.where.remote() for actor in actors], timeout=_START_SECONDS)
        order = sorted(range(job.world_size), key=lambda n: (places[n][0] != places[0][0], places[n][0], n))
        nodes = list(dict.fromkeys(places[n][0] for n in order))
        self._actors = [actors[n] for n in order]
        packed = pickle.dumps(job)
        for rank, n in enumerate(order):
            node = places[n][0]
            beside = [m for m in order if places[m][0] == node]
            environment = {
                "RANK": rank,
                "WORLD_SIZE": job.world_size,
                "LOCAL_RANK": beside.index(n),
                "LOCAL_WORLD_SIZE": len(beside),
                "GROUP_RANK": nodes.index(node),
                "MASTER_ADDR": places[order[0]][1],
                "MASTER_PORT": places[order[0]][2],
            }
            call = actors[n].run.remote(packed, {name: str(value) for name, value in environment.items()})
            self._calls[call] = rank

    def poll(self) -> Outcome | None:
        if self._outcome is None and self._calls:
            done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for call in done:
                rank = self._calls.pop(call)
                was_killed, reason = self._reason(call, rank)
                if reason:
                    self._failures.append((not was_killed, rank, reason))
                    self._decide_at = min(self._decide_at, time.monotonic() + _CAUSE_SECONDS)
            if self._failures and (not self._calls or not self._failures[-1][0] or time.monotonic() > self._decide_at):
                _, rank, reason = min(self._failures)
                self._outcome = Outcome(False, rank, reason)
            elif not self._calls:
                self._outcome = Outcome(True)
        if self._outcome is not None:
            self._release()
        return self._outcome

    def kill(self, rank: int, pid: int) -> None:
        with contextlib.suppress(RayError, IndexError):
            ray.kill(self._actors[rank])

    def stop(self) -> None:
        if self._outcome is None and self._calls:
            self._outcome = Outcome(False, None, "the workers were stopped")
        self._release()

    def _needs(self) -> dict[str, float]:
        given = {name: float(count) for name, count in (self._scaling.resources_per_worker or {}).items()}
        gpu = self._scaling.use_gpu
        return {"CPU": 0.0 if gpu else 1.0, **({"GPU": 1.0} if gpu else {}), **given}

    @staticmethod
    def _reason(call: Any, rank: int) -> tuple[bool, str]:
        """Whether the worker was killed, and the reason of its failure; "" if it succeeded."""
        try:
            status = ray.get(call)
        except RayActorError as error:
            cause = str(error).strip().splitlines()[0]
            return True, f"rank {rank} was killed, or its node was lost: {cause}"
        except RayError as error:
            return False, f"rank {rank} has failed: {error}"
        return False, f"rank {rank} ended with exit status {status}" if status != 0 else ""

    def _release(self) -> None:
        actors, self._actors, self._calls = self._actors, [], {}
        for actor in actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RayError):
                remove_placement_group(group)
