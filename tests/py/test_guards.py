# SPDX-License-Identifier: Apache-2.0
"""What pawl does not delete, accept or drop without a word."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from safetensors import safe_open

import pawl
from cli import run
from pawl import _reports

STATE = {"w": np.arange(100)}


def test_P8_overwrite_replaces_single_checkpoints_only(tmp_path: pathlib.Path) -> None:
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "t.txt").write_text("x")
    with pytest.raises(pawl.ExistsError, match="not a single checkpoint"):
        pawl.save({"a": 1}, home, overwrite=True)
    assert (home / "thesis" / "t.txt").read_text() == "x"

    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"w": np.zeros(3)}, wait=True)
        for place in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "checkpoint_000001"):
            with pytest.raises(pawl.ExistsError):
                pawl.save({"a": 1}, place, overwrite=True)
        assert manager.all_steps() == [1]
        manager.save(2, {"w": np.zeros(3)}, wait=True)

    pawl.save({"a": 1}, tmp_path / "single")
    pawl.save({"a": 2}, tmp_path / "single", overwrite=True)
    assert pawl.load(tmp_path / "single") == {"a": 2}


def test_R27_a_late_score_that_is_no_number_is_refused(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, score_attribute="a") as manager:
        manager.save(1, {"w": np.zeros(3)}, metrics={"a": 1.0}, wait=True)
        for value in ("x", None):
            with pytest.raises(pawl.UsageError, match="a received a value that is not a number"):
                manager.score(1, {"a": value})  # type: ignore[dict-item]
        assert manager.metrics(1) == {"a": 1.0}
        assert manager.best_step() == 1


@pytest.mark.parametrize("name", ["final model", "caf\u00e9", "a+b@c", "-x", "(1) [2]", ".hidden", "x" * 200])
def test_single_checkpoints_have_any_name(tmp_path: pathlib.Path, name: str) -> None:
    pawl.save({"a": np.arange(5)}, tmp_path / name)
    assert pawl.load(tmp_path / name)["a"].tolist() == [0, 1, 2, 3, 4]
    pawl.save({"a": np.arange(2)}, tmp_path / name, overwrite=True)
    assert pawl.load(tmp_path / name)["a"].tolist() == [0, 1]
    assert os.listdir(tmp_path) == [name]


def test_an_export_says_what_it_holds_once_or_otherwise(tmp_path: pathlib.Path) -> None:
    w = np.arange(6, dtype=np.float32)
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"a": w, "b": w, "c": np.array([1 + 2j, 3j])}, wait=True)
    run("export", tmp_path / "run", tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert set(file.keys()) == {"a", "c"}
        assert file.metadata() == {
            "format": "pt",
            "b": "a",
            "pawl.tensors": '{"c":{"dtype":"C128","shape":[2]}}',
        }


def test_latest_never_dangles_beside_a_training_that_keeps_one(tmp_path: pathlib.Path) -> None:
    done = threading.Event()
    dangling: list[str] = []
    latest = tmp_path / "latest"

    def look() -> None:
        while not done.is_set():
            target = os.readlink(latest) if latest.is_symlink() else None
            # replaced in between is fine; the same target twice and nothing behind it is not
            if target and not (tmp_path / target).exists() and os.readlink(latest) == target:
                dangling.append(target)

    with pawl.CheckpointManager(tmp_path, num_to_keep=1) as manager:
        thread = threading.Thread(target=look)
        thread.start()
        for step in range(60):
            manager.save(step, {"w": np.full(200_000, step)}, wait=True)
        done.set()
        thread.join()
    assert dangling == []


def test_save_interval_takes_several(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, save_interval="first,3ba") as manager:
        saved = [step for step in range(8) if manager.save(step, {"w": np.zeros(2)}, wait=True)]
    assert saved == [0, 3, 6]


def test_all_damaged_names_the_newest(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"w": np.full(50_000, step)}, wait=True)
    for path in tmp_path.glob("checkpoints/*/rank*"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    with pawl.CheckpointManager(tmp_path) as manager, pytest.raises(pawl.CorruptError, match="checkpoint_000003"):
        manager.restore()


def test_R155_an_evaluation_scores_and_pins_beside_the_training(tmp_path: pathlib.Path) -> None:
    """Another handle without the lease; the training's retention obeys what it said."""
    with (
        pawl.CheckpointManager(
            tmp_path, num_to_keep=2, score_attribute="accuracy", retention=pawl.Retention(keep_latest=True)
        ) as training,
        pawl.CheckpointManager(tmp_path, read_only=True) as evaluation,
    ):
        for step in range(3):
            training.save(step, STATE, metrics={"accuracy": 0.5}, wait=True)
            evaluation.reload()
            evaluation.score(step, {"accuracy": [0.1, 0.9, 0.2][step]})
        run("pin", f"{tmp_path}@step:2")
        for step in range(3, 6):
            training.save(step, STATE, metrics={"accuracy": 0.3}, wait=True)
        assert {1, 2} <= set(training.all_steps())
        assert training.best_step() == 1


PINNER = """
import sys, pawl
with pawl.CheckpointManager(sys.argv[1], read_only=True) as reader:
    print("ready", flush=True)
    while sys.stdin.readable():
        reader.reload()
        step = reader.latest_step()
        try:
            reader.pin(step)
        except (pawl.NotFoundError, KeyError):
            continue
        print(step, flush=True)
        if step >= 60:
            break
"""


def test_P6_what_was_pinned_in_time_is_never_deleted(tmp_path: pathlib.Path) -> None:
    """A pin of another process either fails or holds, however it meets the retention."""
    with pawl.CheckpointManager(tmp_path, num_to_keep=1) as training:
        training.save(0, STATE, wait=True)
        with subprocess.Popen(
            [sys.executable, "-c", PINNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as pinner:
            assert pinner.stdout and pinner.stdout.readline() == "ready\n"
            for step in range(1, 61):
                training.save(step, STATE, wait=True)
            pinned = {int(line) for line in pinner.stdout}
        training.reload()
        assert 60 in pinned
        assert pinned <= set(training.all_steps())


# ---- the lease of a process that cannot be asked


def leave_lease(root: pathlib.Path, ahead_seconds: float = 0.0, **changed: object) -> None:
    """The lease of a process that was killed in another container on this machine; its clock may have been ahead."""
    with pawl.CheckpointManager(root):
        lease = json.loads((root / ".lease").read_text())
    boot = lease["boot"].partition("/")[0]
    renewed = lease["renewed_unix_ns"] + int(ahead_seconds * 1e9)
    (root / ".lease").write_text(json.dumps(lease | {"boot": f"{boot}/1", "renewed_unix_ns": renewed} | changed))


@pytest.mark.parametrize("ahead_seconds", [0.0, 1e6])
def test_P10_a_container_that_was_killed_is_succeeded_after_a_wait_that_is_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, ahead_seconds: float
) -> None:
    leave_lease(tmp_path, ahead_seconds)
    with pawl.CheckpointManager(tmp_path, timeouts=pawl.Timeouts(lease=1)) as manager:
        manager.save(1, STATE, wait=True)
        assert manager.all_steps() == [1]
    [line] = [r.getMessage() for r in caplog.records if "waiting for the lease" in r.getMessage()]
    assert f"process {os.getpid()} on host" in line and "timeouts.lease)" in line


def test_P10_without_a_wait_the_error_says_what_to_do(tmp_path: pathlib.Path) -> None:
    leave_lease(tmp_path)
    with pytest.raises(
        pawl.BusyError, match=r"timeouts\.lease_wait.*delete \.lease there if that process is dead"
    ) as caught:
        pawl.CheckpointManager(tmp_path, timeouts=pawl.Timeouts(lease_wait=0))
    assert str(tmp_path) in str(caught.value)
    (tmp_path / ".lease").unlink()
    pawl.CheckpointManager(tmp_path, timeouts=pawl.Timeouts(lease_wait=0)).close()


def test_P10_a_machine_with_the_same_name_is_not_taken_for_dead(tmp_path: pathlib.Path) -> None:
    for changed in ({"boot": "another/4026531836", "machine": "0" * 32}, {"boot": "another/4026531836", "machine": ""}):
        leave_lease(tmp_path, **changed)
        with pytest.raises(pawl.BusyError):
            pawl.CheckpointManager(tmp_path, timeouts=pawl.Timeouts(lease_wait=0))
        (tmp_path / ".lease").unlink()


def test_P10_a_wait_for_a_living_process_ends_when_it_closes_the_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = pawl.CheckpointManager(tmp_path)
    with pytest.raises(pawl.BusyError, match="this process has the run open"):
        pawl.CheckpointManager(tmp_path)
    monkeypatch.setattr(_reports, "waits", lambda root, why: holder.close())
    pawl.CheckpointManager(tmp_path, timeouts=pawl.Timeouts(lease_wait=600, lease=1)).close()


def test_P10_a_wait_for_the_lease_can_be_interrupted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_lease(tmp_path)
    monkeypatch.setattr(_reports, "waits", lambda root, why: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        pawl.CheckpointManager(tmp_path)
    assert (tmp_path / ".lease").exists()
