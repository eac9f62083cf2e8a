# SPDX-License-Identifier: Apache-2.0
"""From memory into a bucket over a link that is as fast as the disk: pawl straight into the bucket, against those that
save first and upload then. Disk and link are both held to one rate, so that neither hides behind the other. And the
memory that an upload takes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import peers
import workloads

RATE_BYTES = 100e6  # a second, of the disk and of the link: what the server takes easily


class SlowFile:
    """A file that takes so many bytes a second."""

    def __init__(self, path: pathlib.Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.begin, self.taken = time.perf_counter(), 0

    def write(self, data: Any) -> int:
        n = self.file.write(data)
        self.taken += n
        ahead = self.taken / RATE_BYTES - (time.perf_counter() - self.begin)
        if ahead > 0:
            time.sleep(ahead)
        return n

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


Upload = Callable[[pathlib.Path], dict[str, float]]


def save_then_boto3(upload: Upload, state: workloads.State, folder: pathlib.Path) -> dict[str, float]:
    import torch

    begin = time.perf_counter()
    file = SlowFile(folder / "state.pt")
    torch.save(state, file)
    file.close()
    saved = time.perf_counter() - begin
    figures = upload(folder)
    return {"saved": saved, "seconds": saved + figures["seconds"]}


def run(*command: str) -> int:
    """The most memory that it held. Its resource usage would say that of this process, of which it was a fork."""
    process = subprocess.Popen(["pawl", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most = 0
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        found = [line for line in status.splitlines() if line.startswith("VmHWM:")]  # none when it has just ended
        most = max([most, *(int(line.split()[1]) * 1024 for line in found)])
        time.sleep(0.01)
    assert process.stderr
    if process.returncode != 0:
        raise RuntimeError(f"pawl {command[0]} failed: {process.stderr.read()[-500:]}")
    return most


def save_then_copy(server: Any, state: workloads.State, folder: pathlib.Path) -> dict[str, float]:
    begin = time.perf_counter()
    with peers.pawl.CheckpointManager(
        folder / "run", io=peers.pawl.IO(write_bytes_per_second=int(RATE_BYTES))
    ) as manager:
        manager.save(1, state).wait_durable()
        saved = time.perf_counter() - begin
    target = f"{server.url}/copied-{time.monotonic_ns()}"
    most = run("cp", "--bwlimit", str(int(RATE_BYTES)), str(folder / "run"), target)
    seconds = time.perf_counter() - begin
    run("rm", "--force", f"{target}@latest")
    return {"saved": saved, "seconds": seconds, "bytes": most}


def straight(manager: Any, step: int, state: workloads.State) -> dict[str, float]:
    begin = time.perf_counter()
    manager.save(step, state).wait_durable()
    seconds = time.perf_counter() - begin
    manager.wait_until_finished()
    return {"seconds": seconds}


def case(setting: Any, result: Any, server: Any, state: workloads.State, rounds: Any, boto3: Upload | None) -> None:
    with tempfile.TemporaryDirectory(dir=setting.folder) as memory:
        folder = pathlib.Path(memory)
        manager = peers.pawl.CheckpointManager(
            f"{server.url}/linked",
            num_to_keep=1,
            packs=peers.pawl.Packs(reuse=False),
            io=peers.pawl.IO(write_bytes_per_second=int(RATE_BYTES)),
        )
        steps = iter(range(1, 1000))

        def turn(run: Callable[[pathlib.Path], dict[str, float]]) -> Callable[[], dict[str, float]]:
            def one() -> dict[str, float]:
                workloads.change(state)
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    return run(pathlib.Path(place))

            return one

        turns = {"pawl": turn(lambda _: straight(manager, next(steps), state))}
        if boto3:
            turns["torch.save, boto3"] = turn(lambda place: save_then_boto3(boto3, state, place))
        turns["pawl, pawl cp"] = turn(lambda place: save_then_copy(server, state, place))
        rounds(result, "W1 to a bucket as fast as the disk", setting.rounds, turns)
        manager.close()
