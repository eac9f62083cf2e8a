# SPDX-License-Identifier: Apache-2.0
"""A rank that hangs costs a save, never the job: however the others wait for it, they are told, in time."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest
from test_ranks import environment

WORKER = """
import os, signal, sys, time
import numpy as np, pawl
root, stopped, ways = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rank = int(os.environ["RANK"])
m = pawl.CheckpointManager(root, commit_timeout=3, signals=False)
m.save(0, {"x": np.ones(10)}, wait=True)
if rank == stopped:
    os.kill(os.getpid(), signal.SIGSTOP)
way = ways[rank]
begin = time.monotonic()
try:
    ticket = m.save(1, {"x": np.ones(10)})
    if way == "wait":
        ticket.wait()
    elif way == "wait 60":
        ticket.wait(60)
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
    print(type(error).__name__, error, int(time.monotonic() - begin))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("stopped", [2, 0])
@pytest.mark.parametrize("ways", [["wait", "wait 60"], ["durable", "finished"], ["close", "with"], ["next", "next"]])
def test_P11_P16_whoever_waits_for_a_save_of_a_rank_that_hangs_is_told(
    tmp_path: pathlib.Path, stopped: int, ways: list[str]
) -> None:
    of_rank = ways + ["-"] if stopped == 2 else ["-"] + ways
    env = environment(tmp_path / "answers")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "run"), str(stopped), *of_rank],
            env=dict(env, RANK=str(rank), WORLD_SIZE="3"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for rank, process in enumerate(processes):
            if rank == stopped:
                continue
            said = process.communicate(timeout=60)[0]
            assert said.startswith("TimeoutError save of step 1: "), (of_rank[rank], said)
            assert f"rank {stopped}" in said
            assert int(said.split()[-1]) < 30, said  # 3 s and what the others wait longer; the machine may be busy
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
