# SPDX-License-Identifier: Apache-2.0
"""A rank that hangs costs a save, never the job: however the others wait for it, they learn it in time."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from test_ranks import environment
from waiting import HANG_SECONDS

pytestmark = pytest.mark.long

# All ranks of a run, open, with one checkpoint. How long they take until then does not count.
HEAD = """
import contextlib, os, signal, sys, time
import numpy as np, pawl
root, away, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rank = int(os.environ["RANK"])

def meet(place):
    open(f"{root}.{place}.{rank}", "w").close()
    while not all(os.path.exists(f"{root}.{place}.{other}") for other in range(3)):
        time.sleep(0.01)

meet("begun")
with pawl.CheckpointManager(root, timeouts=pawl.Timeouts(commit=900), signals=False) as m:
    m.save(0, {"x": np.ones(10)}, wait=True)
    meet("saved")
meet("closed")
m = None
while m is None:
    with contextlib.suppress(pawl.TimeoutError):  # rank 0 takes longer than that to open the run
        m = pawl.CheckpointManager(root, timeouts=pawl.Timeouts(commit=10), signals=False)
meet("open")
"""

WORKER = """
if rank == away:
    os.kill(os.getpid(), signal.SIGSTOP)
way = words[rank]
try:
    ticket = m.save(1, {"x": np.ones(10)})
    if way == "wait":
        ticket.wait()
    elif way == "wait long":
        ticket.wait(100_000)
    elif way == "durable":
        ticket.wait_durable()
    elif way == "finished":
        m.wait_until_finished()
    elif way == "next":
        m.save(2, {"x": np.ones(10)})
        m.wait_until_finished()
    elif way == "with":
        with m:
            pass
    else:
        m.close()
    print("no error")
except pawl.PawlError as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


@contextmanager
def ranks(tmp_path: pathlib.Path, code: str, world: int, arguments: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    env = environment(tmp_path / "answers")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "run"), *arguments],
            env=dict(env, RANK=str(rank), WORLD_SIZE=str(world)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def seconds_waited(said: str) -> float:
    found = re.search(r"within ([0-9.]+) s", said)
    assert found, said
    return float(found[1])


@pytest.mark.parametrize("stopped", [2, 0])
@pytest.mark.parametrize("ways", [["wait", "wait long"], ["durable", "finished"], ["close", "with"], ["next", "next"]])
def test_P11_R147_whoever_waits_for_a_save_of_a_rank_that_hangs_is_told(
    tmp_path: pathlib.Path, stopped: int, ways: list[str]
) -> None:
    of_rank = ways + ["-"] if stopped == 2 else ["-"] + ways
    with ranks(tmp_path, HEAD + WORKER, 3, [str(stopped), *of_rank]) as processes:
        for rank, process in enumerate(processes):
            if rank == stopped:
                continue
            said = process.communicate(timeout=HANG_SECONDS)[0]
            assert said.startswith("TimeoutError save of step 1: "), (of_rank[rank], said)
            assert re.search(rf"ranks? ([12], )*{stopped}\b", said), said  # and others that are slow
            assert seconds_waited(said) > 8, said  # of 10 s


RESTORE = """
if rank == away:
    os.kill(os.getpid(), signal.SIGSTOP) if words == ["stopped"] else time.sleep(100_000)
try:
    m.restore({"x": np.zeros(10)})
    print("no error")
except pawl.PawlError as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("away", "way"), [(2, "stopped"), (0, "stopped"), (2, "elsewhere")])
def test_P11_R147_a_restore_that_a_rank_does_not_join_says_so(tmp_path: pathlib.Path, away: int, way: str) -> None:
    with ranks(tmp_path, HEAD + RESTORE, 3, [str(away), way]) as processes:
        for rank, process in enumerate(processes):
            if rank == away:
                continue
            said = process.communicate(timeout=HANG_SECONDS)[0]
            # Of all that are late, rank 0 names the others; rank 1 may give up first, and names rank 0.
            whom = "rank 0" if away == 0 else r"ranks? (1, )?2 of 3" if rank == 0 else r"(ranks? (1, )?2 of 3|rank 0)"
            assert said.startswith("TimeoutError "), said
            assert re.search(f"{whom} did not join the restore within ", said), said
            assert "every rank must call restore, as often as the others" in said
            assert seconds_waited(said) > 5, said


ALONE = """
import os, sys
import numpy as np, pawl
m = pawl.CheckpointManager(sys.argv[1], timeouts=pawl.Timeouts(commit=10_000), ranks=pawl.Ranks(rank=0, world_size=2), signals=False)
ticket = m.save(0, {"x": np.ones(10)})
for wait in (ticket.wait, ticket.wait_durable, m.wait_until_finished):
    while True:
        try:
            wait(0.1)
        except pawl.TimeoutError as error:
            if "waiting for" in str(error):  # else it is being written
                print(error, flush=True)
                break
os._exit(0)
"""


def test_R147_whoever_waits_for_a_run_that_only_one_rank_has_opened_is_told_when_his_own_time_is_over(
    tmp_path: pathlib.Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "run")],
        env=environment(tmp_path / "answers"),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    why = " within 0.1 seconds; waiting for rank 1 of 2, which has not opened this run"
    assert done.stdout.splitlines() == [
        "the save of step 0 was not settled" + why,
        "the save of step 0 was not durable" + why,
        f"the saves of {tmp_path / 'run'} were not settled" + why,
    ], done.stderr
