# SPDX-License-Identifier: Apache-2.0
"""Other processes that read a run while it is being written (R156)."""

from __future__ import annotations

import pathlib
import threading

import pytest
import torch
from common import interpreter
from waiting import HANG_SECONDS

import pawl


def test_R156_a_consumer_waits_for_the_next_checkpoint(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    program = f"""
import pawl
seen = 0
for _ in range(2):
    seen = pawl.wait_for_new({str(root)!r}, after=seen, timeout={HANG_SECONDS})
    with pawl.hold({str(root)!r}, seen) as checkpoint:
        print(seen, checkpoint.to_dict()["step"], flush=True)
"""
    consumer = interpreter(program)  # the run does not exist yet
    assert consumer.stdout is not None
    with pawl.CheckpointManager(root) as manager:
        for step in (10, 20):
            manager.save(step, {"step": step}, wait=True)
            assert consumer.stdout.readline() == f"{step // 10} {step}\n"
    consumer.communicate()
    assert consumer.returncode == 0


def test_waiting_ends_at_its_deadline(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TimeoutError):
        pawl.wait_for_new(tmp_path / "nowhere", timeout=0.15)
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {}, wait=True)
        assert pawl.wait_for_new(tmp_path / "run") == 1
        with pytest.raises(TimeoutError):
            pawl.wait_for_new(tmp_path / "run", after=1, timeout=0.15)
        with pytest.raises(TimeoutError):
            pawl.wait_for_new(tmp_path / "run", after=1, timeout=0)
    assert not (tmp_path / "nowhere").exists()


def test_R156_other_threads_run_while_one_waits(tmp_path: pathlib.Path) -> None:
    found: list[int] = []
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {}, wait=True)
        thread = threading.Thread(
            target=lambda: found.append(pawl.wait_for_new(tmp_path / "run", after=1, timeout=HANG_SECONDS))
        )
        thread.start()
        manager.save(1, {}, wait=True)
        thread.join()
    assert found == [2]


def test_R142_R156_a_held_checkpoint_is_not_deleted_by_retention_nor_by_hand(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root, num_to_keep=1) as manager:
        manager.save(0, {"w": torch.ones(10)}, wait=True)
        with pawl.hold(root, 1) as checkpoint:
            manager.save(1, {}, wait=True)
            manager.save(2, {}, wait=True)
            manager.reload()
            assert manager.all_steps() == [0, 2]
            assert [info.held for info in manager.checkpoints()] == [True, False]
            with pytest.raises(pawl.BusyError):
                manager.delete(0, force=True)
            assert checkpoint.to_dict()["w"].sum() == 10
        manager.save(3, {}, wait=True)
        assert manager.all_steps() == [3]


def test_R142_a_hold_dies_with_its_process(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root, num_to_keep=1) as manager:
        manager.save(0, {}, wait=True)
        consumer = interpreter(
            f"import pawl, sys\nwith pawl.hold({str(root)!r}, 1):\n    print('held', flush=True)\n    sys.stdin.read()"
        )
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "held\n"
        manager.save(1, {}, wait=True)
        assert manager.all_steps() == [0, 1]
        consumer.kill()
        consumer.communicate()
        manager.save(2, {}, wait=True)
        assert manager.all_steps() == [2]


def test_holding_what_is_not_there(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {}, wait=True)
        with pytest.raises(LookupError), pawl.hold(tmp_path / "run", 9):
            pass
    with pytest.raises(LookupError), pawl.hold(tmp_path / "nowhere", 1):
        pass


def test_R150_looking_at_a_run_loads_no_tensors(tmp_path: pathlib.Path) -> None:
    """Everything but the manifests may be gone: steps, metrics, metadata and decisions are still known."""
    root = tmp_path / "run"
    with pawl.CheckpointManager(root) as manager:
        for step in range(3):
            manager.save(step, {"w": torch.ones(100)}, metrics={"a": step}, metadata={"n": step}, wait=True)
    for pack in root.rglob("*.safetensors"):
        pack.unlink()
    with pawl.CheckpointManager(root, read_only=True, num_to_keep=1) as manager:
        assert manager.all_steps() == [0, 1, 2]
        assert manager.metrics(1) == {"a": 1}
        assert manager.metadata(2) == {"n": 2}
        assert [d.keep for d in manager.prune(dry_run=True)] == [False, False, True]
        assert [info.n_tensors for info in manager.checkpoints()] == [1, 1, 1]
