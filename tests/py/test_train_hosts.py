# SPDX-License-Identifier: Apache-2.0
"""pawl.train on two hosts: this one and a network namespace, with a cable between them that can be pulled. Real torchrun
on both, one folder that both can reach."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from ports import free_port
from ssh_servers import namespace, run
from test_train_failures import alive
from test_train_launched import no_launcher  # noqa: F401 - whatever started the tests has no say in them
from waiting import HANG_SECONDS, wait_until

import pawl

pytestmark = [pytest.mark.launcher, pytest.mark.root]

PROGRAM = """
import pathlib, sys, time
import torch
import pawl
from pawl import train
from pawl.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig, TorchTrainer

folder, goal, hold = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["hold"]

def train_func(config):
    context = train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    part = pawl.Shard(torch.zeros(12 // world), (12,), (12 // world * rank,))
    checkpoint = train.get_checkpoint()
    start, state = 0, {"epoch": 0, "part": part}
    if checkpoint:
        start = checkpoint.to_dict()["epoch"] + 1
        checkpoint.restore(state)
    with open(folder / f"log{rank}", "a") as log:
        log.write(f"{start} of {world} on {context.get_node_rank()}\\n")
    for epoch in range(start, goal):
        if hold and rank == 1 and epoch == 3:
            (folder / "held").touch()
            time.sleep(100_000)  # until its host is lost; the other one is on its way to the next line, or waits in it
        one = torch.ones(1)
        torch.distributed.all_reduce(one)
        part.tensor.add_(one / world)  # the same whatever the number of workers
        values = {"epoch": epoch, "part": part}
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict(values), wait=True)
        if rank == 0:
            print("epoch", epoch, flush=True)
        time.sleep(0.05)

result = TorchTrainer(
    train_func,
    run_config=RunConfig("run", folder / "runs", FailureConfig(heartbeat_timeout=30)),
).fit()
last = result.checkpoint.to_dict()
print("ended", last["epoch"], last["part"].tolist(), flush=True)
"""


class Hosts:
    """This one is 0, and holds the rendezvous."""

    def __init__(self, folder: pathlib.Path, name: str, far: str) -> None:
        self.folder, self.name = folder, name
        self.addresses = [far.rpartition(".")[0] + ".1", far]
        self.interfaces = [name, "far0"]
        self.jobs: list[subprocess.Popen[bytes]] = []  # of the last start, one for each host
        self.started: list[subprocess.Popen[bytes]] = []
        (folder / "program.py").write_text(PROGRAM)

    def start(self, number_of_hosts: int, goal: int, *words: str) -> list[subprocess.Popen[bytes]]:
        """torchrun on each of them, with one process. "hold": rank 1 stops before it begins epoch 3."""
        rendezvous = f"{self.addresses[0]}:{free_port()}"
        self.jobs = [
            self._launch(host, number_of_hosts, rendezvous, str(goal), *words) for host in range(number_of_hosts)
        ]
        self.started += self.jobs
        return self.jobs

    def _launch(self, host: int, number_of_hosts: int, rendezvous: str, *more: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={number_of_hosts}", "--nproc-per-node=1"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={rendezvous}", "--rdzv-id=mine", "--max-restarts=0"]
        words += [f"--rdzv-conf=is_host={1 - host}", f"--local-addr={self.addresses[host]}"]
        words += [str(self.folder / "program.py"), str(self.folder), *more]
        inside = ["ip", "netns", "exec", self.name] if host else []
        env = {
            "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent),
            "GLOO_SOCKET_IFNAME": self.interfaces[host],
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PAWL_TEST_OF": str(self.folder),
        }
        with (self.folder / f"out{host}").open("w") as out:
            return subprocess.Popen(
                [*inside, *words], env=os.environ | env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def out(self, host: int) -> str:
        return (self.folder / f"out{host}").read_text()

    def wait_for_line(self, line: str, host: int = 0) -> None:
        self.wait_for(lambda: line in self.out(host).splitlines(), host)

    def wait_for(self, ready: Callable[[], bool], host: int) -> None:
        def is_over() -> bool:
            assert self.jobs[host].poll() is None, self.out(0) + self.out(1)
            return ready()

        wait_until(is_over)

    def link(self, state: str) -> None:
        """The cable: "up" or "down"."""
        run("ip", "link", "set", self.name, state)

    def kill(self, host: int) -> None:
        """All of its processes at once: those of the namespace, or those outside of it that this test has started."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        far = set(found.stdout.split())
        mine = far if host else set(alive(self.folder)) - far
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def logs(self) -> list[list[str]]:
        return [(self.folder / f"log{rank}").read_text().splitlines() for rank in range(2)]


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> Iterator[Hosts]:
    with namespace() as (name, far):
        if name is None:
            pytest.skip("a network namespace takes the rights of root")
        both = Hosts(tmp_path, name, far)
        yield both
        for host in range(2):
            both.kill(host)
        for job in both.started:
            job.wait(HANG_SECONDS)


def newest(folder: pathlib.Path) -> int:
    with pawl.CheckpointManager(
        folder / "runs" / "run", read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)
    ) as manager:
        assert manager.checkpoints()[-1].world_size == 2 and manager.verify() == []
        return (manager.latest_step() or 0) - 1


def finish(hosts: Hosts, number_of_hosts: int, goal: int) -> None:
    """The same program again, on so many hosts; what it ends with."""
    for job in hosts.start(number_of_hosts, goal):
        assert job.wait(HANG_SECONDS) == 0, hosts.out(0)
    assert f"ended {goal - 1} {[float(goal)] * 12}" in hosts.out(0).splitlines()


def test_P11_R55_a_host_that_is_lost_is_named_and_one_host_goes_on(hosts: Hosts) -> None:
    """All processes of the second host are killed. The pieces of both workers are one worker's then, and two's again."""
    jobs = hosts.start(2, 100_000, "hold")
    hosts.wait_for((hosts.folder / "held").exists, 1)
    hosts.kill(1)
    assert jobs[0].wait(HANG_SECONDS) == 1
    assert "rank 1 gives no sign of life, killed or lost; rank 0 raised RuntimeError" in hosts.out(0)
    first = newest(hosts.folder)
    finish(hosts, 1, first + 3)
    finish(hosts, 2, first + 5)
    near, far = hosts.logs()
    assert near == ["0 of 2 on 0", f"{first + 1} of 1 on 0", f"{first + 3} of 2 on 0"]
    assert far == ["0 of 2 on 1", f"{first + 3} of 2 on 1"]


def test_P11_P16_a_pulled_cable_ends_both_sides_and_each_names_the_other(hosts: Hosts) -> None:
    jobs = hosts.start(2, 100_000)
    hosts.wait_for_line("epoch 2")
    hosts.link("down")
    assert jobs[0].wait(HANG_SECONDS) == 1
    assert "rank 0 ends: rank 1 gave no sign of life for 30 s" in hosts.out(0)
    hosts.wait_for_line(f"rank 1 ends: it lost the connection to {hosts.addresses[0]}, where all ranks meet", 1)
    hosts.kill(1)  # torchrun itself waits for longer
    jobs[1].wait(HANG_SECONDS)
    hosts.link("up")
    first = newest(hosts.folder)
    finish(hosts, 2, first + 3)
    assert hosts.logs() == [[f"{start} of 2 on {host}" for start in (0, first + 1)] for host in range(2)]
