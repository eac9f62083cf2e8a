# SPDX-License-Identifier: Apache-2.0
"""R146: the interpreter lock is free while the library works, no collective is called, nothing is pickled."""

from __future__ import annotations

import ctypes
import pathlib
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from common import interpreter
from waiting import wait_until

import pawl

BIG: dict[str, Any] = {
    "w": [np.full(1 << 18, i, np.float32) for i in range(4)]
}  # 4 MiB: half a second at 8 MiB a second
HUGE: dict[str, Any] = {"w": [np.full(1 << 24, i, np.float32) for i in range(4)]}  # 256 MiB


def slow(root: pathlib.Path, **options: Any) -> pawl.CheckpointManager:
    """A manager that writes 8 MiB a second."""
    packs = pawl.Packs(pack_bytes=1 << 20, block_bytes=1 << 16, reuse=False)
    return pawl.CheckpointManager(root, io=pawl.IO(write_bytes_per_second=8 << 20), packs=packs, **options)


class Ticker:
    """Another Python thread that takes the interpreter lock several times a millisecond."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.stop = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop:
            self.times.append(time.perf_counter())
            time.sleep(0.0002)

    def during(self, call: Callable[[], Any]) -> tuple[int, float, float]:
        """How often the thread came to run during a call, the longest time in which it did not, and how long all took."""
        wait_until(lambda: len(self.times) >= 2)
        begin = time.perf_counter()
        call()
        end = time.perf_counter()
        inside = [begin, *(t for t in self.times if begin < t < end), end]
        return len(inside) - 2, max(b - a for a, b in zip(inside, inside[1:], strict=False)), end - begin


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    ticker = Ticker()
    yield ticker
    ticker.stop = True
    ticker.thread.join()


def goes_on(ticker: Ticker, call: Callable[[int], Any], prepare: Callable[[int], Any] = lambda n: None) -> bool:
    """One time of many is enough: on a busy machine the thread may not run although it could, but while the lock is held it
    never does. Each time has a number."""
    for n in range(200):
        prepare(n)
        ticks, longest, whole = ticker.during(partial(call, n))
        if ticks >= 20 and longest < whole / 2:
            return True
    return False


def test_R146_the_measurement_notices_a_held_lock(ticker: Ticker) -> None:
    """The control of the tests below: the same sleep in C with and without the lock."""
    _, longest, _ = ticker.during(lambda: ctypes.PyDLL(None).usleep(300_000))
    assert longest >= 0.3
    assert goes_on(ticker, lambda n: ctypes.CDLL(None).usleep(300_000))


def test_R146_another_thread_goes_on_during_a_save_that_holds_its_caller(
    tmp_path: pathlib.Path, ticker: Ticker
) -> None:
    with slow(tmp_path, staging=pawl.Staging(mode="direct")) as manager:
        assert goes_on(ticker, lambda n: manager.save(n, BIG), lambda n: manager.wait_until_finished())
        manager.wait_until_finished()


def test_R146_another_thread_goes_on_during_every_wait(tmp_path: pathlib.Path, ticker: Ticker) -> None:
    manager = slow(tmp_path)
    tickets: list[Any] = []

    def save(n: int) -> None:
        tickets.append(manager.save(len(tickets), BIG))

    def open_and_save(n: int) -> None:
        nonlocal manager
        manager.close()
        manager = slow(tmp_path / str(n))
        save(n)

    assert goes_on(ticker, lambda n: tickets[-1].wait(), save)
    assert goes_on(ticker, lambda n: manager.wait_until_finished(), save)
    assert goes_on(ticker, save, save)  # waits for the one before
    assert goes_on(ticker, lambda n: manager.close(), open_and_save)


def test_R146_another_thread_goes_on_while_a_snapshot_is_taken(tmp_path: pathlib.Path, ticker: Ticker) -> None:
    with pawl.CheckpointManager(tmp_path, staging=pawl.Staging(copy_threads=1)) as manager:
        assert goes_on(ticker, lambda n: manager.save(n, HUGE), lambda n: manager.wait_until_finished())


def test_R146_another_thread_goes_on_during_a_restore(tmp_path: pathlib.Path, ticker: Ticker) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(0, BIG, wait=True)
    live = {"w": [np.zeros(1 << 18, np.float32) for _ in range(4)]}
    with pawl.CheckpointManager(tmp_path, read_only=True, io=pawl.IO(read_bytes_per_second=8 << 20)) as manager:
        assert goes_on(ticker, lambda n: manager.restore(live))
        assert float(live["w"][3][-1]) == 3.0
        assert goes_on(ticker, lambda n: manager.restore())
        assert goes_on(ticker, lambda n: manager.verify())


def test_R146_nothing_is_pickled_by_a_save_or_a_restore(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = {"model": model, "optimizer": optimizer, "a": np.ones(3), "rest": [1, (2.5, None), {"x": b"y"}]}
    with pawl.CheckpointManager(tmp_path) as manager:
        for name in ("dumps", "dump", "loads", "load", "Pickler", "Unpickler"):
            monkeypatch.setattr(pickle, name, forbidden)
        for name in ("save", "load"):
            monkeypatch.setattr(torch, name, forbidden)
        with pytest.raises(AssertionError, match="pickle was used"):
            torch.save({"the": "control"}, tmp_path / "control")
        manager.save(0, state, metrics={"a": 1.0}, metadata={"note": "x"}, wait=True)
        manager.restore(state)
        restored = manager.restore()
    assert restored is not None
    assert restored.metadata == {"note": "x"}


RANK = """
import datetime, sys
import torch, torch.distributed as dist
import pawl
rank, place, root = int(sys.stdin.readline()), sys.stdin.readline().strip(), sys.stdin.readline().strip()
dist.init_process_group(
    "gloo", init_method=f"file://{place}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=1800)
)
if rank == 0:
    state = {"w": torch.arange(1000.0), "step": 7}
    with pawl.CheckpointManager(root) as manager:
        manager.save(7, state, metrics={"a": 1.0}, wait=True)
        restored = manager.restore(state)
        assert restored.step == 7
    assert dist.is_initialized() and dist.get_world_size() == 2
    print("saved", flush=True)
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    except RuntimeError:
        print("a collective would not have ended", flush=True)
else:
    print("idle", flush=True)
sys.stdin.readline()
"""


def test_R146_a_rank_saves_and_restores_alone_while_another_one_calls_nothing(tmp_path: pathlib.Path) -> None:
    """No collectives: the other rank of the group only waits for its input. A barrier in its place does fail."""
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            ranks.append(interpreter(RANK))
            pipe = ranks[rank].stdin
            assert pipe is not None
            pipe.write(f"{rank}\n{tmp_path / 'group'}\n{tmp_path / 'run'}\n")
            pipe.flush()
        assert ranks[1].stdout is not None
        assert ranks[0].stdout is not None
        assert ranks[1].stdout.readline() == "idle\n"
        assert ranks[0].stdout.readline() == "saved\n"
        assert ranks[1].poll() is None, "it is still there, and still idle"
        assert ranks[0].stdout.readline() == "a collective would not have ended\n"
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [7]
