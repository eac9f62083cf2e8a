# SPDX-License-Identifier: Apache-2.0
"""Leaving the ``with`` block by an exception, saves that must wait for their turn, and Ctrl+C while they do."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import threading
import time
from typing import Any

import pytest
import torch
from common import interpreter
from gated import gated
from waiting import wait_until

import pawl

PACKS = pawl.Packs(pack_bytes=1 << 20, block_bytes=1 << 16)
BIG = {"w": torch.ones(1 << 20)}


class Broken:
    """An object whose state cannot be had."""

    def state_dict(self) -> dict[str, Any]:
        raise ValueError("no state today")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_the_save_on_the_way_out_says_that_it_was_interrupted(tmp_path: pathlib.Path) -> None:
    """It is labelled with the last step that was offered, and holds the state as it was when the exception came."""
    state = {"count": torch.zeros(1)}
    with (
        pytest.raises(KeyError),
        pawl.CheckpointManager(tmp_path, save_interval="5ba", save_on_exception=True) as manager,
    ):
        for step in range(1, 9):
            state["count"] += 1
            if step == 8:
                raise KeyError("in the middle of step 8")
            manager.save(step, state, metadata={"mine": step}, metrics={"a": step}, progress={"batch": step})
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == [5, 7]
        restored = manager.restore()
        assert restored is not None
        assert (restored.step, restored.state["count"].item(), restored.interrupted) == (7, 8.0, True)
        assert restored.metadata == {"mine": 7, "interrupted": True}
        assert (restored.metrics, restored.progress["batch"]) == ({"a": 7}, 7)
        whole = manager.restore(step=5)
        assert whole is not None
        assert (whole.state["count"].item(), whole.interrupted) == (5.0, False)


def test_nothing_is_saved_on_the_way_out_when_the_last_step_has_been(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(KeyError),
        pawl.CheckpointManager(tmp_path, save_interval="5ba", save_on_exception=True) as manager,
    ):
        for step in range(1, 6):
            manager.save(step, {"step": step}, metadata=["a", "list"])
        raise KeyError
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == [5]
        assert manager.metadata(5) == ["a", "list"]


def test_metadata_that_is_no_dict_is_kept_on_the_way_out(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(KeyError),
        pawl.CheckpointManager(tmp_path, save_interval="5ba", save_on_exception=True) as manager,
    ):
        manager.save(1, {"step": 1}, metadata=["a", "list"])
        raise KeyError
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.metadata(1) == {"metadata": ["a", "list"], "interrupted": True}


def test_a_pending_error_does_not_keep_the_last_state_from_being_saved(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(KeyError) as caught,
        pawl.CheckpointManager(
            tmp_path,
            save_interval="5ba",
            save_on_exception=True,
            io=pawl.IO(fault=("publish", 1, -3, False)),
        ) as manager,
    ):
        ticket = manager.save(1, {"step": 1}, force=True)
        assert ticket is not None
        while not ticket.done():
            time.sleep(0.01)
        raise KeyError("mine")
    assert "a save in the background had failed: NotFoundError" in notes(caught.value)
    assert "a save in the background had failed: NotFoundError" in caplog.text
    assert repr(manager) == f"CheckpointManager('{tmp_path}', closed)"
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == [1]  # by the save on the way out
        restored = manager.restore()
        assert restored is not None
        assert restored.interrupted


@pytest.mark.parametrize("broken", [{"a": ...}, {"a": Broken()}], ids=["an ellipsis", "state_dict raises"])
def test_the_users_exception_comes_through_and_the_run_is_closed(
    tmp_path: pathlib.Path, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.ERROR, "pawl"),
        pytest.raises(KeyError, match="mine") as caught,
        pawl.CheckpointManager(tmp_path, save_interval="5ba", save_on_exception=True) as manager,
    ):
        manager.save(1, broken)
        raise KeyError("mine")
    assert "the save on the way out failed" in notes(caught.value)
    assert "the save on the way out failed" in caplog.text
    assert repr(manager) == f"CheckpointManager('{tmp_path}', closed)"
    pawl.CheckpointManager(tmp_path).close()  # the lease is free


def test_without_an_exception_in_flight_ours_is_raised(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(pawl.NotFoundError),
        pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=("finish", 1, -3, True))) as manager,
    ):
        manager.save(1, {"step": 1})
    assert repr(manager) == f"CheckpointManager('{tmp_path}', closed)"


# ---- saves that must not be skipped ----


@pytest.mark.parametrize("how", ["force", "wait"])
def test_a_save_that_must_be_made_waits_for_its_turn(how: str) -> None:
    manager, gate = gated(on_busy="skip")
    with manager:
        assert manager.save(1, BIG) is not None
        assert manager.save(2, BIG) is None
        threading.Timer(0, gate.set).start()
        assert manager.save(3, BIG, **{how: True}) is not None  # type: ignore[arg-type]
        manager.wait_until_finished()
        assert manager.all_steps() == [1, 3]


def test_R153_a_save_that_is_due_by_a_signal_is_not_skipped(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(
        tmp_path, on_busy="skip", signals=True, io=pawl.IO(write_bytes_per_second=1 << 20), packs=PACKS
    ) as manager:
        assert manager.save(1, BIG) is not None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert manager.preempted
        assert manager.save(2, BIG) is not None
        manager.wait_until_finished()
        assert manager.all_steps() == [1, 2]


def test_waiting_for_a_turn_raises_a_pending_error_once(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(
        tmp_path, io=pawl.IO(fault=("publish", 1, -3, False), write_bytes_per_second=1 << 20), packs=PACKS
    ) as manager:
        assert manager.save(1, BIG) is not None
        with pytest.raises(pawl.NotFoundError):
            manager.save(2, BIG, force=True)  # its turn comes when the first has failed
        assert manager.save(2, BIG, wait=True) is not None
        assert manager.all_steps() == [2]


@pytest.mark.parametrize(
    "options",
    [
        "",
        'on_busy="replace", staging=pawl.Staging(mode="ring")',
        'on_busy="replace", staging=pawl.Staging(arena_bytes="8MiB")',  # too little for the state
    ],
)
def test_R136_ctrl_c_is_heard_while_a_save_waits_for_another(tmp_path: pathlib.Path, options: str) -> None:
    program = f"""
import threading, torch, pawl
state = {{"w": torch.ones(4 << 20)}}
manager = pawl.CheckpointManager({str(tmp_path)!r}, io=pawl.IO(write_bytes_per_second=1 << 12), packs=pawl.Packs(pack_bytes=1 << 20, block_bytes=1 << 16), {options})
threading.Thread(target=manager.save, args=(1, state), daemon=True).start()
while not manager.is_saving:
    pass
try:
    print("waiting", flush=True)
    manager.save(2, state)
except KeyboardInterrupt:
    print("heard", flush=True)
    import os
    os._exit(0)
"""
    process = interpreter(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    wait_until(lambda: pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
    process.send_signal(signal.SIGINT)
    try:
        assert process.stdout.readline() == "heard\n"
        assert not list((tmp_path / "checkpoints").glob("checkpoint_*"))  # the first save takes more than an hour
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("staging", [pawl.Staging(mode="ring", ring_bytes="8MiB"), pawl.Staging(arena_bytes="8MiB")])
def test_R136_ctrl_c_is_heard_while_a_save_waits_for_room_in_its_ring(staging: pawl.Staging) -> None:
    state = {"w": torch.ones(8 << 20)}  # 32 MiB
    manager, gate = gated(staging=staging, packs=PACKS, io=pawl.IO(threads=1))

    def interrupt() -> None:
        wait_until(lambda: manager.is_saving)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with manager:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, state)
        thread.join()
        gate.set()
        manager.save(2, state, wait=True)
        assert manager.all_steps() == [2]


def test_R136_ctrl_c_is_heard_while_a_save_writes_from_the_live_tensors(tmp_path: pathlib.Path) -> None:
    io = pawl.IO(threads=1, write_bytes_per_second=1 << 16)  # the save would take half an hour
    with pawl.CheckpointManager(tmp_path, staging=pawl.Staging(mode="direct"), packs=PACKS, io=io) as manager:

        def interrupt() -> None:
            wait_until(lambda: manager.is_saving)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, {"w": [torch.ones(1 << 18) for _ in range(128)]})
        thread.join()
        manager.save(2, {"w": torch.ones(4)}, wait=True)
        assert manager.all_steps() == [2]


def test_other_threads_run_while_a_save_waits() -> None:
    """The save ends because they do. The time in which it waits for its turn counts: one time of many shows it, since a
    thread may also be slow to begin."""
    for _ in range(100):
        manager, gate = gated()
        thread = threading.Timer(0.2, gate.set)
        with manager:
            manager.save(1, BIG)
            thread.start()
            ticket = manager.save(2, BIG)
        assert ticket is not None and gate.is_set()
        if ticket.blocked_seconds > 0.1:
            return
    raise AssertionError("a wait for a turn does not count")
