# SPDX-License-Identifier: Apache-2.0
"""A call for a checkpoint waits for the saves that its own manager has begun."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gated import gated
from waiting import HANG_SECONDS, wait_until

import pawl


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((64,), float(step))}


def opened_later(gate: threading.Event) -> None:
    """Lets the save be written once the caller waits, or long after it should have waited."""
    thread = threading.Timer(0.2, gate.set)
    thread.daemon = True
    thread.start()


CALLS: dict[str, Callable[[pawl.CheckpointManager], object]] = {
    "restore": lambda m: m.restore().step,  # type: ignore[union-attr]
    "restore of a step": lambda m: m.restore(step=2).step,  # type: ignore[union-attr]
    "manager[2]": lambda m: int(m[2].to_dict()["w"][0]),
    "in": lambda m: 2 * (2 in m),
    "checkpoint": lambda m: int(m.checkpoint().to_dict()["w"][0]),
    "metrics": lambda m: int(m.metrics(2)["a"]),
    "metadata": lambda m: m.metadata(2)["a"],
    "which='best'": lambda m: m.restore(which="best").step,  # type: ignore[union-attr]
    "pin": lambda m: 2 * m.pin(2),
    "unpin": lambda m: 2 * (not m.unpin(2)),
    "score": lambda m: m.score(2, {"b": 1.0}) or 2,
    "delete": lambda m: m.delete(2, force=True) or 2,  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("lazy", [False, True], ids=["copied", "lazy"])
def test_a_call_right_after_a_save_sees_it(call: Callable[[pawl.CheckpointManager], object], lazy: bool) -> None:
    """Also a lazy one, without before_step()."""
    manager, gate = gated(score_attribute="a")
    with manager:
        gate.set()
        manager.save(1, state(1), metrics={"a": 1}, wait=True)
        gate.clear()
        manager.save(2, state(2), metrics={"a": 2}, metadata={"a": 2}, lazy=lazy)
        assert (manager.all_steps(), len(manager), len(list(manager))) == ([1], 1, 1)  # lists never wait
        assert manager.latest_step() == manager.best_step() == 1
        opened_later(gate)
        assert call(manager) == 2


def test_a_restore_in_place_waits_until_a_lazy_save_has_copied_what_it_overwrites() -> None:
    manager, gate = gated()
    live = state(1)
    with manager:
        manager.save(1, live, lazy=True)
        opened_later(gate)
        restored = manager.restore(live)
        assert restored is not None and restored.step == 1 and (live["w"] == 1).all()


def test_after_a_failed_save_a_restore_gives_the_newest_and_the_error_is_raised_later(tmp_path: pathlib.Path) -> None:
    lost = ("publish", 2, -3, True)
    with pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=lost)) as manager:
        manager.save(1, state(1), wait=True)
        manager.save(2, state(2))
        restored = manager.restore()
        assert restored is not None and restored.step == 1
        with pytest.raises(pawl.NotFoundError, match=r"no checkpoint has the step 2; the only one is 1"):
            manager.pin(2)
        with pytest.raises(pawl.PawlError, match="injected fault, call 2"):
            manager.wait_until_finished()


def test_a_hook_may_restore_while_the_next_save_is_written() -> None:
    seen: list[int] = []

    def look(event: pawl.Event) -> None:
        restored = manager.restore()
        assert restored is not None
        seen.append(restored.step)

    manager, gate = gated(on_durable=look)
    gate.set()
    with manager:
        ticket = manager.save(1, state(1))
        assert ticket is not None
        ticket.wait_durable(HANG_SECONDS)
        gate.clear()
        manager.save(2, state(2))  # calls the hook of step 1 first, or poll does
        opened_later(gate)
        manager.poll()
        manager.wait_until_finished()
    assert seen in ([1, 2], [2, 2])


def test_a_rule_of_retention_may_ask_for_metrics_while_the_next_save_waits_for_its_thread(
    tmp_path: pathlib.Path,
) -> None:
    """It runs on the thread that would write that save, so that it must not wait for it."""
    asked, more = threading.Event(), threading.Event()
    seen: list[float] = []

    def rule(candidates: list[pawl.Candidate]) -> list[int]:
        asked.set()
        assert more.wait(HANG_SECONDS)
        seen.append(manager.metrics(candidates[-1].step)["a"])
        return [c.id for c in candidates]

    with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=rule)) as manager:
        manager.save(1, state(1), metrics={"a": 1})
        assert asked.wait(HANG_SECONDS)
        manager.save(2, state(2), metrics={"a": 2})
        more.set()
        manager.wait_until_finished()
        manager.save(3, state(3), metrics={"a": 3})
        manager.prune()  # calls the rule on this thread
        manager.wait_until_finished()
    assert seen[:2] == [1, 2] and seen[-1] == 3


def test_ctrl_c_ends_the_wait(tmp_path: pathlib.Path) -> None:
    manager, gate = gated()
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with manager:
        manager.save(1, state(1))
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            manager.restore()
        gate.set()
        interrupt.join()
        wait_until(lambda: not manager.is_saving)
        assert manager.all_steps() == [1]


def test_a_manager_that_only_reads_does_not_wait_for_a_training() -> None:
    """It sees what is durable."""
    training, gate = gated()
    gate.set()
    with training:
        training.save(1, state(1), wait=True)
        gate.clear()
        training.save(2, state(2))
        with pawl.CheckpointManager("gated://there/run", read_only=True) as reader:
            restored = reader.restore()
            assert restored is not None and restored.step == 1
        gate.set()
