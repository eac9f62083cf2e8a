# SPDX-License-Identifier: Apache-2.0
"""pawl.tune with trials that are actors of a real Ray cluster, and pawl.ray in Ray Tune's own Tuner."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import types
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest
from frameworks import run
from object_env import keys_for
from s3_fake import Fake

import pawl
from pawl import tune

pytestmark = pytest.mark.framework


def facts_of(out: str) -> dict[str, Any]:
    """What a worker has told, an object a line."""
    found: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def test_R106_R107_R110_R115_R116_R122_R125_R133_a_cluster_that_loses_processes_nodes_and_its_driver(
    tmp_path: pathlib.Path,
) -> None:
    # A cluster is noted in Ray's folder, and ray.init() finds it there: this one has a folder of its own,
    # with a name that leaves room for those of sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own:
        out = run("ray", "tune_ray_worker.py", tmp_path, RAY_TMPDIR=own)
    facts = facts_of(out)
    rows = facts["killed"]
    assert sorted(rows) == ["1", "2"]
    for (
        row
    ) in rows.values():  # all came to the end, whatever was lost: from the last checkpoint on, none from the start
        assert (row["status"], row["iteration"], row["step"]) == ("TERMINATED", 4, "4")
        assert row["kept"] == ["checkpoint_000003", "checkpoint_000004"]  # here, wherever they were made
        # Ray may place one on a node that has gone: that costs a failure before it starts.
        assert row["starts"][0] == "0" and 0 < len(row["starts"]) <= row["failures"] + 1
    assert rows["1"]["starts"][:2] == ["0", "2"]  # its process was killed after its second report
    assert sum(row["failures"] for row in rows.values()) >= 2
    assert facts["best"] == 1

    assert facts["status"] == -signal.SIGKILL  # of the first driver
    assert facts["resumed"] == {"1": ["TERMINATED", 4], "2": ["TERMINATED", 1], "3": ["TERMINATED", 1]}
    assert facts["before"] == [".elsewhere.json"] and facts["step"] == "4"  # fetched when it was asked for
    assert facts["remote"] == 6


def test_R158_clones_of_trials_in_a_bucket_are_copied_there_and_a_trial_that_hangs_starts_again(
    tmp_path: pathlib.Path,
) -> None:
    """The loser continues from files of its own, which the bucket made; a process that is stopped is named."""
    with (
        contextlib.closing(Fake()) as fake,
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own,
    ):
        env = {"RAY_TMPDIR": own, **keys_for(fake.endpoint)}
        facts = facts_of(run("ray", "tune_ray_clones_worker.py", tmp_path, **env))
        kept = fake.state()
        copied = [
            row
            for row, headers in zip(fake.requests, fake.headers, strict=True)
            if row.startswith("PUT ") and "x-amz-copy-source" in headers
        ]
    assert facts["population"] == [[4, "TERMINATED"]] * 2
    winner, loser = facts["ids"]
    clones = [start for start in facts["starts"] if start[0] != start[3]]
    assert clones and all(start in ([loser, ["deep"], step, winner] for step in (2, 4)) for start in clones)
    places = [key for key in kept if "_of_" in key and key.endswith("/deep/state")]
    assert places and all(json.loads(kept[place]) in ([2, winner], [4, winner]) for place in places)
    assert all(any(place.split("/")[-3] in row for row in copied) for place in places)
    assert facts["begun"] is True
    status, words, (pid, host) = facts["hung"]
    # a start that takes as long is ended, too
    assert status == "TERMINATED" and f"no sign of life for 15 s (process {pid} on {host})" in words
    assert facts["moved"] == ["RuntimeError: this is no actor", "ERROR", "TERMINATED"]
    assert facts["busy"] == ["TERMINATED", 0]


def test_R105_R107_pauses_and_clones_of_ray_tune_itself_are_checkpoints_of_pawl(tmp_path: pathlib.Path) -> None:
    out = run("ray", "tune_peer_worker.py", tmp_path, RAY_AIR_NEW_OUTPUT="0")
    facts = facts_of(out)
    # Of each start that was not the first: is the checkpoint its own, of which step, is it complete?
    assert sorted(facts["population"]) == [[False, 2, True], [True, 2, True]]
    assert facts["population steps"] == [3, 3]
    assert facts["bands"] and all(row == [True, 1, True] for row in facts["bands"])
    assert max(facts["bands steps"]) == 2


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module of the engine, with a library of ours in place of Ray."""
    library, errors = types.ModuleType("ray"), types.ModuleType("ray.exceptions")
    error = type("RayError", (Exception,), {"preempted": False})
    vars(errors).update(RayError=error, RayActorError=type("RayActorError", (error,), {}))
    path = pathlib.Path(str(tune.__file__)).with_name("ray_engine.py")
    found = importlib.util.spec_from_file_location("pawl.tune.engine_of_a_test", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    for one in (library, errors, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("state", "how", "why"),
    [
        ("preempted", 2, ""),  # lost: it is started again, and has not failed
        ("asked", 2, ""),
        ("told", 2, ""),
        ("", 1, "its process was killed, or its node was lost: gone"),
        ("full", 1, "its checkpoint could not be copied: gone"),
    ],
)
def test_P11_a_node_that_is_removed_while_a_checkpoint_is_copied_costs_no_failure(
    engine: types.ModuleType, state: str, how: int, why: str
) -> None:
    error = OSError("gone") if state == "full" else engine.RayActorError("gone")
    ends: list[tuple[int, int, str]] = []
    trial = engine._Trial(3, "folder", None)
    if state == "preempted":
        error.preempted = True
    elif state in ("asked", "told"):
        setattr(trial, state, True)
    runner = engine.RayRunner.__new__(engine.RayRunner)
    runner._experiment = types.SimpleNamespace(ended=lambda *end: ends.append(end))
    runner._running, runner._events = {3: trial}, deque()
    trial.work, trial.then = Future(), lambda: None
    trial.work.set_exception(error)
    runner._finish_work(trial)
    assert ends == [(3, how, why)] and not runner._running


def test_what_ray_is_asked_for_is_checked_before() -> None:
    with pytest.raises(pawl.UsageError, match='engine must be "local", "ray" or None'):
        tune.run(len, engine="spark")
    with pytest.raises(pawl.UsageError, match="resources_per_trial: extra must be a number"):
        tune.run(lambda config: None, engine="ray", resources_per_trial={"extra": -1})


def test_without_the_library_the_error_says_what_to_install() -> None:
    program = "from pawl import tune; tune.init(address='auto')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'libpawl[ray]'" in done.stderr
