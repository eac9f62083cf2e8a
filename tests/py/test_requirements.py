# SPDX-License-Identifier: Apache-2.0
"""Requirements of the documents behind pawl that cross its parts, each by its number. What belongs to a later face (the names
of trainers, tuners and callbacks) is proven here as a rule of the manager; tests/requirements.md says which."""

from __future__ import annotations

import os
import pathlib
import pickle
import signal
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from common import interpreter, run_program, same
from safetensors.torch import load_file
from waiting import HANG_SECONDS

import pawl

PAWL = os.environ.get("PAWL_BIN", "pawl")


def pawl_names(root: pathlib.Path) -> list[str]:
    return sorted(path.name for path in root.glob("checkpoints/*"))


class Payload:
    """An object that is decoded by a function of its own."""

    def __init__(self, values: dict[str, Any], log: list[str], root: pathlib.Path) -> None:
        self.values, self.log, self.root = values, log, root

    def state_dict(self) -> dict[str, Any]:
        self.log.append(f"decoded, {len(list((self.root / 'checkpoints').glob('*')))} on disk")
        if "fails" in self.values:
            raise RuntimeError("cannot be decoded")
        return self.values


def test_R22_R23_a_payload_is_decoded_first_then_kept_in_memory_then_written(tmp_path: pathlib.Path) -> None:
    """R22: by the caller's own function. R23: when that fails nothing has happened; what is written is what was in memory at
    the call; then the id advances."""
    log: list[str] = []
    with pawl.CheckpointManager(tmp_path) as manager:
        with pytest.raises(RuntimeError, match="cannot be decoded"):
            manager.save(0, {"p": Payload({"fails": True}, log, tmp_path)})
        assert manager.all_steps() == []
        weights = torch.zeros(4)
        ticket = manager.save(1, {"p": Payload({"w": weights}, log, tmp_path)})
        weights += 1
        assert ticket is not None
        ticket.wait()
        assert (ticket.id, log) == (1, ["decoded, 0 on disk", "decoded, 0 on disk"])
        restored = manager.restore()
        assert restored is not None
        assert restored.state["p"]["w"].tolist() == [0.0] * 4


@pytest.mark.parametrize("operation", ["create", "write", "finish", "publish"])
@pytest.mark.parametrize("num_to_keep", [1, 0])
def test_R23_after_a_failed_write_the_older_one_is_the_newest_still(
    tmp_path: pathlib.Path, operation: str, num_to_keep: int
) -> None:
    """R23, on disk and in memory only: a write that fails raises and replaces nothing; its number is used up (E1: numbers
    never repeat), as that of a skipped save is, and the next save continues."""
    per_save = {"publish": 1}.get(operation, 2)  # the pack and the manifest
    storage_error = pawl.StorageError.__name__
    failed = []
    for nth in range(per_save + 1, 2 * per_save + 1):
        root = tmp_path / str(nth)
        with pawl.CheckpointManager(
            root, num_to_keep=num_to_keep, io=pawl.IO(fault=(operation, nth, -8, False))
        ) as manager:
            manager.save(0, {"s": 0}, wait=True)
            try:
                manager.save(1, {"s": 1}, wait=True)
            except pawl.PawlError as error:
                failed.append(type(error).__name__)
            restored = manager.restore()
            assert restored is not None
            assert (restored.state, restored.id, manager.all_steps()) == ({"s": 0}, 1, [0])
            ticket = manager.save(2, {"s": 2}, wait=True)
            assert ticket is not None
            assert ticket.id == 3
            assert manager.latest_step() == 2
            assert pawl_names(root) == ([] if num_to_keep == 0 else ["checkpoint_000003"])
    assert failed == [storage_error] * per_save


def test_R17_R18_the_latest_is_the_newest_by_number_or_none(tmp_path: pathlib.Path) -> None:
    """R17, R18: whatever the steps and scores, on disk and in memory only."""
    for num_to_keep in (None, 0):
        with pawl.CheckpointManager(
            tmp_path / str(num_to_keep), num_to_keep=num_to_keep, score_attribute="a"
        ) as manager:
            assert manager.latest_step() is None
            assert manager.restore() is None
            with pytest.raises(pawl.NotFoundError, match="no checkpoint"):
                manager.checkpoint()
            for step, score in [(30, 0.9), (10, 0.5), (20, 0.1)]:
                manager.save(step, {"step": step}, metrics={"a": score}, wait=True)
                assert manager.latest_step() == step
            assert [info.id for info in manager.checkpoints() if info.latest] == [3]
            restored = manager.restore()
            assert restored is not None
            assert (restored.id, restored.state) == (3, {"step": 20})
    with pawl.CheckpointManager(tmp_path / "None") as manager:
        assert manager.latest_step() == 20
        manager.delete(20, force=True)
        assert manager.latest_step() == 10


def test_R24_where_there_is_nothing_nothing_is_loaded(tmp_path: pathlib.Path) -> None:
    state = {"w": torch.ones(2), "epoch": 3}
    with pawl.CheckpointManager(tmp_path) as manager:
        assert manager.restore() is None
        assert manager.restore(state) is None
        assert manager.latest_step() is None
    assert state["epoch"] == 3


def test_R25_a_dict_is_loaded_as_the_same_dict() -> None:
    data = {"epoch": 3, "nested": {"list": [1, (2.5, None)], "w": np.arange(3)}, "note": "x"}
    loaded = pawl.Checkpoint.from_dict(data).to_dict()
    assert same({key: loaded[key] for key in data}, data)


def test_R26_a_path_is_loaded_with_its_tilde_expanded_and_a_missing_one_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pawl.save({"epoch": 3}, "~/one.ckpt")
    assert (tmp_path / "one.ckpt" / "manifest.json").exists()
    assert pawl.load("~/one.ckpt") == {"epoch": 3}
    assert pawl.load(tmp_path / "one.ckpt") == {"epoch": 3}
    assert pawl.Checkpoint("~/one.ckpt").path == tmp_path / "one.ckpt"
    with pawl.CheckpointManager("~/run") as manager:
        assert manager.root == tmp_path / "run"
    for missing in ("~/two.ckpt", tmp_path / "two.ckpt"):
        with pytest.raises(pawl.NotFoundError, match="two.ckpt"):
            pawl.load(missing)


def test_R41_what_checkpoints_are_for(tmp_path: pathlib.Path) -> None:
    """R41: pausing and continuing under a scheduler, long runs on preemptible machines, weights for serving, and any
    artifact of a model."""
    trial = {"w": torch.arange(4.0), "artifact": b"\x00anything", "epoch": 1}
    with pawl.CheckpointManager(tmp_path / "trial") as manager:  # a scheduler pauses a trial ...
        manager.save(1, trial, wait=True)
    with pawl.CheckpointManager(tmp_path / "trial") as manager:  # ... and lets it continue, perhaps elsewhere
        restored = manager.restore({"w": torch.zeros(4), "artifact": b"", "epoch": 0})
        assert restored is not None
        assert restored.state["artifact"] == b"\x00anything"
        with pawl.CheckpointManager(tmp_path / "clone") as clone:
            clone.save(restored.step, restored.state, wait=True)
            assert clone.latest_step() == 1
    model = tmp_path / "model.safetensors"  # for serving: no pawl needed
    subprocess.run([PAWL, "export", tmp_path / "trial", model], check=True, capture_output=True)
    assert torch.equal(load_file(model)["w"], trial["w"])
    program = f"""
import os, pawl, signal, sys
with pawl.CheckpointManager({str(tmp_path / "long")!r}, save_interval="1000000ba", timeouts=pawl.Timeouts(grace=30)) as manager:
    for step in range(1, 100000):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)  # the machine is taken away
        stop = manager.preempted
        manager.save(step, {{"step": step}}, force=stop)
        if stop:
            break
print(step)
"""
    stopped_at = int(run_program(program))
    assert pawl.load(tmp_path / "long" / "latest") == {"step": stopped_at}


def test_R43_a_save_takes_metrics_and_they_may_be_empty(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(0, {"epoch": 0}, metrics={}, wait=True)
        manager.save(1, {"epoch": 1}, metrics={"mean_accuracy": 0.5}, wait=True)
        assert manager.metrics(0) == {}
        assert manager.metrics(1) == {"mean_accuracy": 0.5}


TRAINING = """
import glob, os, pawl, signal, torch
state = {"model": torch.nn.Linear(30, 30), "epoch": -1}
with pawl.CheckpointManager(root, io=pawl.IO(write_bytes_per_second=100_000)) as manager:
    restored = manager.restore(state)
    first = restored.step + 1 if restored else 0
    for epoch in range(first, 4):
        if epoch != kill_at:
            manager.save(epoch, {"model": state["model"], "epoch": epoch}, wait=True)
            continue
        manager.save(epoch, {"model": state["model"], "large": torch.zeros(6_000_000)})  # takes minutes
        while not glob.glob(root + "/checkpoints/.*.partial/*"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    print(first, manager.latest_step())
"""


def test_R55_the_newest_saved_one_is_found_also_after_a_worker_was_killed(tmp_path: pathlib.Path) -> None:
    """R55: and none in a run without any."""

    def train(kill_at: int) -> tuple[int, str]:
        process = interpreter(f"root, kill_at = {str(tmp_path / 'run')!r}, {kill_at}\n{TRAINING}")
        out, _ = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, out.strip()

    assert train(kill_at=2) == (-signal.SIGKILL, "")
    assert list((tmp_path / "run" / "checkpoints").glob(".*.partial")), "it was not killed in the middle of a save"
    assert train(kill_at=-1) == (0, "2 3")
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    with pawl.CheckpointManager(tmp_path / "fresh") as manager:
        assert not manager.restore()


def test_R56_a_run_can_begin_from_a_checkpoint_of_an_earlier_one(tmp_path: pathlib.Path) -> None:
    model = torch.nn.Linear(3, 2)
    with pawl.CheckpointManager(tmp_path / "earlier") as manager:
        manager.save(4, {"model": model, "epoch": 4}, wait=True)
        checkpoint = manager.checkpoint()
    other = torch.nn.Linear(3, 2)
    assert checkpoint.path is not None
    with pawl.CheckpointManager(tmp_path / "later") as manager:
        assert manager.restore() is None
        data = pawl.load(checkpoint.path, state={"model": other, "epoch": -1})
        assert torch.equal(other.weight, model.weight)
        assert data["epoch"] == 4
        manager.save(data["epoch"] + 1, {"model": other, "epoch": 5}, wait=True)
        assert manager.all_steps() == [5]
    with pawl.CheckpointManager(tmp_path / "earlier", read_only=True) as manager:
        assert manager.all_steps() == [4]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch exploded",))


def test_R149_no_code_is_executed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R149: objects are refused by path and type; a pickle goes in and comes out as bytes; loading runs nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pawl.UnsupportedError, match=r"deep/0.*Bomb"):
        pawl.save({"deep": [Bomb()]}, "refused")
    assert not (tmp_path / "refused").exists()
    payload = pickle.dumps(Bomb())
    pawl.save({"payload": payload, "arrays": [torch.ones(2), np.ones(2)], "os.system": "touch exploded"}, "kept")
    events = "('pickle.find_class', 'os.system', 'subprocess.Popen', 'os.exec', 'marshal.loads', 'compile', 'exec')"
    watched = run_program(
        "import sys, numpy, pawl, torch\n"
        "seen = []\n"
        f"hook = lambda event, args: seen.append(event) if event in {events} else None\n"
        "pawl.load('kept')\n"  # what is imported late is imported now
        "sys.addaudithook(hook)\n"
        "tree = pawl.load('kept')\n"
        "print(seen, tree['payload'] == pawl.load('kept')['payload'])\n"
        "exec('pass')\n"
        "print(len(seen) > 0)\n"
    )
    assert watched.split("\n")[:2] == ["[] True", "True"], "nothing is run, and the control is seen"
    assert pawl.load("kept")["payload"] == payload
    assert not (tmp_path / "exploded").exists()
    assert pickle.loads(payload) == 0  # the control: unpickling it does run code
    assert (tmp_path / "exploded").exists()
