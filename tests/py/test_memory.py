# SPDX-License-Identifier: Apache-2.0
"""How much memory is taken in addition to the state: the peak of a process of its own during one call, from a mark that is set
just before it. The highest memory that getrusage tells is of no use here: it is inherited from the parent and never falls."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from common import run_program
from waiting import HANG_SECONDS

import pawl

pytestmark = pytest.mark.long

PAWL = os.environ.get("PAWL_BIN", "pawl")
MIB = 1 << 20
STATE = 192 * MIB

MEASURE = f"""
import json, pathlib, sys
import numpy as np
import pawl

def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))

def peak(call):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    before = memory("VmRSS")
    kept = call()
    return memory("VmHWM") - before

def filled(value):
    return {{"w": [np.full(4 * {MIB}, value + i, np.float32) for i in range({STATE} // (16 * {MIB}))]}}
"""


def measured(program: str) -> list[int]:
    """The list of figures that a program prints."""
    figures: list[int] = json.loads(run_program(MEASURE + program))
    return figures


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of two checkpoints with other bytes."""
    root = tmp_path_factory.mktemp("memory") / "run"
    with pawl.CheckpointManager(root, staging=pawl.Staging(mode="direct")) as manager:
        for step in range(2):
            state = {"w": [np.full(4 * MIB, step + i, np.float32) for i in range(STATE // (16 * MIB))]}
            manager.save(step, state, wait=True)
    return root


def test_R145_restoring_takes_little_memory_besides_the_state(runs: pathlib.Path) -> None:
    """At most 80 MiB, half of it pages of the files, into tensors that are there; as much above the state into new ones. 200
    more MiB taken by the same call are noticed."""
    in_place, besides, into_new = measured(f"""
root = {str(runs)!r}
with pawl.CheckpointManager(root, read_only=True) as manager:
    live = filled(-1)
    in_place = peak(lambda: manager.restore(live))
    assert [float(a[-1]) for a in live["w"]] == [1.0 + i for i in range(len(live["w"]))]
    besides = peak(lambda: (manager.restore(live), np.ones(200 * {MIB}, np.uint8)))
    into_new = peak(lambda: manager.restore())
print(json.dumps([in_place, besides, into_new]))
""")
    assert in_place <= 80 * MIB
    assert 150 * MIB <= besides <= 280 * MIB  # the control; the kernel may take back pages meanwhile
    assert STATE <= into_new <= STATE + 80 * MIB


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ("mode='snapshot'", STATE * 102 // 100 + 8 * MIB),
        ("mode='ring', ring_bytes=32 << 20", 48 * MIB),
        ("mode='direct', ring_bytes=32 << 20", 48 * MIB),
        ("arena_bytes=32 << 20", 48 * MIB),
    ],
)
def test_R145_saving_takes_the_declared_memory_besides_the_state(
    tmp_path: pathlib.Path, options: str, bound: int
) -> None:
    """A snapshot: a copy of the state, of which the first save uses as much as it needs; the rest is made ready after it.
    Through a ring, or directly: no more than the ring. The second save takes nothing more."""
    first, second, besides = measured(f"""
state = filled(0)
with pawl.CheckpointManager({str(tmp_path)!r}, staging=pawl.Staging({options}), packs=pawl.Packs(reuse=False), num_to_keep=1) as manager:
    first = peak(lambda: manager.save(0, state, wait=True))
    second = peak(lambda: manager.save(1, state, wait=True))
    besides = peak(lambda: (manager.save(2, state, wait=True), np.ones(200 * {MIB}, np.uint8)))
print(json.dumps([first, second, besides]))
""")
    assert first <= bound
    assert second <= 8 * MIB + ("snapshot" in options) * (bound - first)
    assert besides >= 150 * MIB


def peak_of_command(*args: str | pathlib.Path, expect: int = 0) -> int:
    """Peak memory of a program, started by a small process: it inherits the peak of its parent."""
    starter = """
import json, os, sys
devnull = os.open(os.devnull, os.O_WRONLY)
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, devnull, 1)])
_, status, usage = os.wait4(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024]))
"""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", starter, *map(str, args)],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    status, peak = json.loads(done.stdout)
    assert status == expect, done.stderr
    return int(peak)


def test_R150_verify_and_diff_take_little_memory_whatever_the_size_of_a_checkpoint(runs: pathlib.Path) -> None:
    """Checkpoints of 192 MiB in at most 96 MiB, with the file pages that are mapped; the measurement notices 200 MiB."""
    bound = 96 * MIB
    assert sum(f.stat().st_size for f in (runs / "checkpoints/checkpoint_000001").iterdir()) > STATE > bound
    assert peak_of_command(PAWL, "verify", runs) < bound
    assert peak_of_command(PAWL, "diff", f"{runs}@id:1", f"{runs}@id:2", expect=1) < bound
    assert peak_of_command(PAWL, "diff", f"{runs}@id:1", f"{runs}@id:1") < bound
    assert peak_of_command(sys.executable, "-c", f"b'x' * {200 * MIB}") > 200 * MIB
    inside, besides = measured(f"""
with pawl.CheckpointManager({str(runs)!r}, read_only=True) as manager:
    inside = peak(lambda: manager.verify())
    besides = peak(lambda: (manager.verify(), np.ones(200 * {MIB}, np.uint8)))
print(json.dumps([inside, besides]))
""")
    assert inside <= 80 * MIB
    assert besides >= 150 * MIB
