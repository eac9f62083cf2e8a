# SPDX-License-Identifier: Apache-2.0
"""Saving: tickets, waiting, busy runs, background errors, lazy saves, modes, what is not written again."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from common import run_program
from gated import gated
from waiting import HANG_SECONDS

import pawl
from pawl import _pawl

STATE: dict[str, Any] = {"w": torch.arange(10.0)}


def test_tickets_tell_how_far_a_save_is(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        ticket = manager.save(3, STATE)
        assert ticket is not None
        assert ticket.stage in ("staged", "written", "committed", "settled")
        ticket.wait(HANG_SECONDS)
        assert ticket.done()
        assert (ticket.stage, ticket.id, ticket.step, ticket.error) == ("settled", 1, 3, None)
        assert ticket.blocked_seconds > 0
        assert ticket.stats["nbytes"] >= 40
        assert ticket.stats["total_seconds"] > 0
        manager.wait_until_finished(HANG_SECONDS)
        assert not manager.is_saving
    assert ticket.done()  # also after the run is closed


def slow(root: pathlib.Path, **options: Any) -> pawl.CheckpointManager:
    """A manager whose saves of BIG take a while."""
    return pawl.CheckpointManager(
        root,
        io=pawl.IO(write_bytes_per_second=8 << 20),
        packs=pawl.Packs(pack_bytes=1 << 20, block_bytes=1 << 16),
        **options,
    )


BIG: dict[str, Any] = {"w": [torch.zeros(1 << 18) + i for i in range(4)]}  # 4 MiB: half a second


def test_P3_wait_durable_returns_when_the_checkpoint_is_there(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "a", retention=pawl.Retention(keep_last=1)) as manager:
        for step in range(3):
            ticket = manager.save(step, STATE)
            assert ticket is not None
            ticket.wait_durable(HANG_SECONDS)
            assert ticket.stage in ("committed", "settled")
            assert manager.latest_step() == step and (tmp_path / "a" / "checkpoints").is_dir()
        manager.wait_until_finished()
        assert manager.all_steps() == [2]
    manager = pawl.CheckpointManager(tmp_path / "b", io=pawl.IO(fault=("publish", 1, -8, True)))
    ticket = manager.save(0, STATE)
    assert ticket is not None
    with pytest.raises(OSError):
        ticket.wait_durable()
    manager.close()


def test_waiting_has_a_deadline() -> None:
    manager, gate = gated()
    with manager:
        ticket = manager.save(0, BIG)
        assert ticket is not None
        with pytest.raises(TimeoutError) as caught:
            manager.wait_until_finished(0.05)
        assert isinstance(caught.value, pawl.PawlError)
        with pytest.raises(pawl.TimeoutError):
            ticket.wait(0)
        assert manager.is_saving
        gate.set()
        ticket.wait()


@pytest.mark.parametrize(("policy", "steps"), [("wait", [0, 1, 2]), ("skip", [0]), ("replace", [0, 2])])
def test_a_save_while_another_one_runs(policy: Any, steps: list[int]) -> None:
    manager, gate = gated(on_busy=policy)
    with manager:
        tickets = [manager.save(0, BIG)]
        if policy == "wait":
            threading.Timer(0.1, gate.set).start()  # they take their turns
        tickets += [manager.save(step, BIG) for step in (1, 2)]
        gate.set()
        assert [t is None for t in tickets] == [False, policy == "skip", policy == "skip"]
        if policy == "replace":
            assert tickets[1] is not None
            assert isinstance(tickets[1].error, pawl.CancelledError)
        manager.wait_until_finished()
        assert manager.all_steps() == steps


def test_R146_many_threads_may_use_one_manager(tmp_path: pathlib.Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                manager.save(number * 100 + i, STATE)
                manager.all_steps()
                restored = manager.restore()
                assert restored is None or torch.equal(restored.state["w"], STATE["w"])
        except BaseException as error:
            errors.append(error)

    with pawl.CheckpointManager(tmp_path, num_to_keep=4) as manager:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manager.wait_until_finished()
        manager.prune()  # a restore may have held one beyond the last save
        assert len(manager.all_steps()) == 4
    assert errors == []


def test_ctrl_c_is_heard_while_waiting() -> None:
    manager, gate = gated()
    with manager:
        manager.save(0, BIG)
        earlier = signal.getsignal(signal.SIGALRM)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                manager.wait_until_finished()
            assert manager.is_saving
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                manager.close()
            gate.set()
            manager.wait_until_finished()  # it is still open
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, earlier)
        assert manager.all_steps() == [0]


def failing(root: pathlib.Path) -> pawl.CheckpointManager:
    return pawl.CheckpointManager(root, io=pawl.IO(fault=("publish", 2, -8, False)))


def test_background_errors_are_raised_by_the_next_call_and_never_lost(tmp_path: pathlib.Path) -> None:
    """P4: the failed save changes nothing."""
    for number, see in enumerate(
        [
            lambda m: m.save(2, STATE),
            lambda m: m.check_for_errors(),
            lambda m: m.wait_until_finished(),
            lambda m: m.close(),
        ]
    ):
        manager = failing(tmp_path / str(number))
        manager.save(0, STATE, wait=True)
        ticket = manager.save(1, STATE)
        assert ticket is not None
        while not ticket.done():
            time.sleep(0.001)
        assert ticket.stage == "failed"
        with pytest.raises(pawl.StorageError):
            see(manager)
        if number < 3:
            manager.check_for_errors()  # raised once
            assert manager.all_steps() == [0]
            manager.save(3, STATE, wait=True)
        manager.close()
        with pawl.CheckpointManager(tmp_path / str(number), read_only=True) as manager:
            assert manager.all_steps() == ([0, 3] if number < 3 else [0])


def test_an_error_seen_on_the_ticket_is_seen(tmp_path: pathlib.Path) -> None:
    with failing(tmp_path) as manager:
        manager.save(0, STATE, wait=True)
        ticket = manager.save(1, STATE)
        assert ticket is not None
        while not ticket.done():
            time.sleep(0.001)
        assert isinstance(ticket.error, pawl.StorageError)
        assert ticket.error is ticket.error
        with pytest.raises(pawl.StorageError):
            ticket.wait()
        manager.check_for_errors()
        with pytest.raises(pawl.StorageError):
            pawl.CheckpointManager(tmp_path / "b", io=pawl.IO(fault=("publish", 1, -8, True))).save(0, STATE, wait=True)


def test_an_exception_in_the_block_is_not_hidden_by_a_failed_save(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(KeyError, match="mine") as caught,
        pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=("publish", 1, -8, True))) as manager,
    ):
        manager.save(0, STATE)
        raise KeyError("mine")
    assert any("closing the run failed" in note for note in caught.value.__notes__)


def test_lazy_saves_need_a_fence_before_tensors_change(tmp_path: pathlib.Path) -> None:
    weights = torch.zeros(1 << 20)
    with pawl.CheckpointManager(tmp_path) as manager:
        for step in range(4):
            manager.before_step()
            weights.fill_(step)
            manager.save(step, {"w": weights, "long": str(step) * 5000}, lazy=True)
        manager.before_step(HANG_SECONDS)
        weights.fill_(-1)
        manager.wait_until_finished()
        for step in range(4):
            restored = manager.restore(step=step)
            assert restored is not None
            assert restored.state["w"].eq(step).all()
            assert restored.state["long"] == str(step) * 5000


def training() -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """A model of 9 MiB with buffers, and an optimizer that has stepped."""
    model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.BatchNorm1d(1500))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 1500)).square().mean().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("mode", ["snapshot", "ring"])
@pytest.mark.parametrize("form", ["objects", "dicts"])
def test_a_lazy_save_holds_the_buffers_of_its_call(tmp_path: pathlib.Path, mode: Any, form: str) -> None:
    model, optimizer = training()
    count = np.zeros(3)
    with pawl.CheckpointManager(tmp_path, staging=pawl.Staging(mode=mode, ring_bytes=8 << 20)) as manager:
        for step in range(3):
            given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            state = {"model": model, "optimizer": optimizer, "count": count}
            if form == "dicts":
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            manager.save(step, state, lazy=True)
            model(torch.randn(4, 1500)).square().mean().backward()  # the next forward pass changes the buffers
            count += 1
            manager.before_step()
            optimizer.step()
            restored = manager.restore(step=step) if manager.wait_until_finished() is None else None
            assert restored is not None
            assert all(torch.equal(restored.state["model"][name], tensor) for name, tensor in given.items())
            assert (restored.state["count"] == step).all()


def test_a_lazy_save_holds_a_frozen_parameter_that_the_forward_pass_changes(tmp_path: pathlib.Path) -> None:
    """As a codebook of averages is: the optimizer has it, but never updates it."""
    model = torch.nn.Linear(1500, 1500)
    code = torch.nn.Parameter(torch.zeros(64, 64), requires_grad=False)
    state = {"model": model, "code": code, "optimizer": torch.optim.AdamW([*model.parameters(), code])}
    with pawl.CheckpointManager(tmp_path) as manager:
        for step in range(3):
            manager.save(step, state, lazy=True)
            code.add_(1)
            manager.before_step()
        manager.wait_until_finished()
        for step in range(3):
            restored = manager.restore(step=step)
            assert restored is not None
            assert restored.state["code"].eq(step).all()


class ChangesWhenRead(dict[str, float]):
    """Metrics, which save reads when it has walked the state, and before it copies any of it."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__(loss=1.0)
        self.change = change

    def items(self) -> Any:
        self.change()
        return super().items()


@pytest.mark.parametrize("form", ["objects", "data"])
def test_a_lazy_save_fails_by_name_when_a_parameter_changes_before_its_copy(tmp_path: pathlib.Path, form: str) -> None:
    """Torch counts writes to p.data apart from those to p."""
    model, optimizer = training()
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if form == "data":
        state["model"] = {name: parameter.data for name, parameter in model.named_parameters()}
    with pawl.CheckpointManager(tmp_path) as manager:
        ticket = manager.save(0, state, metrics=ChangesWhenRead(lambda: model[0].weight.detach().add_(1)), lazy=True)
        assert ticket is not None
        with pytest.raises(pawl.UsageError, match=r"tensor 'model/0\.weight' changed .* before_step\(\)"):
            ticket.wait()
        assert manager.checkpoints() == []
        manager.save(1, state, lazy=True, wait=True)
        assert manager.latest_step() == 1


def test_a_lazy_save_fails_when_a_buffer_changes_while_it_is_copied(tmp_path: pathlib.Path) -> None:
    model, optimizer = training()
    state = {"model": model, "optimizer": optimizer}
    with pawl.CheckpointManager(tmp_path) as manager:
        with pytest.raises(
            pawl.UsageError, match=r"tensor 'model/1\.num_batches_tracked' was changed by another thread"
        ):
            manager.save(0, state, metrics=ChangesWhenRead(lambda: model(torch.randn(4, 1500))), lazy=True)
        assert manager.checkpoints() == []


def test_lazy_saves_keep_tensors_alive_that_nobody_else_holds(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        for step in range(3):
            manager.save(step, {"w": torch.full((1 << 20,), float(step)), "n": np.full(1 << 18, step)}, lazy=True)
        manager.wait_until_finished()
        for step in range(3):
            restored = manager.restore(step=step)
            assert restored is not None
            assert restored.state["w"].eq(step).all()
            assert (restored.state["n"] == step).all()


@pytest.mark.parametrize("mode", ["snapshot", "ring", "direct"])
def test_R145_modes_write_the_same(tmp_path: pathlib.Path, mode: Any) -> None:
    state = {"w": [torch.randn(1 << 18) for _ in range(20)], "small": torch.arange(5), "t": torch.randn(300, 200).t()}
    with pawl.CheckpointManager(tmp_path, staging=pawl.Staging(mode=mode, ring_bytes=8 << 20)) as manager:
        manager.save(0, state, wait=True)
        restored = manager.restore()
        assert restored is not None
        assert all(torch.equal(a, b) for a, b in zip(state["w"], restored.state["w"], strict=True))
        assert torch.equal(restored.state["t"], state["t"])


def test_the_arena_is_shared_by_all_managers_of_a_process(tmp_path: pathlib.Path) -> None:
    state = {"w": torch.zeros(4 << 20)}
    with pawl.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, state, wait=True)
        held = _pawl.arena_bytes()
        assert held >= 16 << 20
    with pawl.CheckpointManager(tmp_path / "b") as manager:
        ticket = manager.save(0, state, wait=True)
        assert ticket is not None
        assert _pawl.arena_bytes() == held
        assert ticket.stats["minor_faults"] < 8  # a region that is new has at least one for each 2 MiB


PREPARE = """
import torch
import pawl
from pawl import _pawl
root, how, step = %r
state = {"w": torch.arange(24 << 20, dtype=torch.int32), "epoch": 3}
with pawl.CheckpointManager(root) as manager:
    before = _pawl.arena_bytes()
    if how == "prepare":
        manager.prepare(state)
    else:
        assert manager.restore(state).step == 1
    held = _pawl.arena_bytes()
    assert before == 0 and 96 << 20 <= held <= 104 << 20, (before, held)
    state["w"] += 1
    manager.save(step, state, wait=True)
    assert _pawl.arena_bytes() == held
    assert torch.equal(manager.restore().state["w"], state["w"])
try:
    manager.prepare(state)
except pawl.UsageError:
    print("done")
"""


def test_R145_the_memory_of_the_first_save_is_made_ready(tmp_path: pathlib.Path) -> None:
    for step, how in enumerate(["prepare", "restore"], start=1):
        assert run_program(PREPARE % ((str(tmp_path), how, step),)).strip() == "done"
    with pawl.CheckpointManager(tmp_path) as manager, pytest.raises(pawl.UnsupportedError):
        manager.prepare({"a": ...})


def test_R140_unchanged_packs_are_not_written_again(tmp_path: pathlib.Path) -> None:
    frozen, moving = torch.randn(1 << 19), torch.zeros(1 << 18)
    with pawl.CheckpointManager(tmp_path, packs=pawl.Packs(pack_bytes=1 << 20)) as manager:
        for step in range(2):
            moving.fill_(step)
            ticket = manager.save(step, {"frozen": frozen, "moving": moving}, wait=True)
        assert ticket is not None
        assert ticket.stats["reused_bytes"] >= frozen.nbytes
        assert ticket.stats["written_bytes"] < frozen.nbytes
        manager.delete(0)
        restored = manager.restore()
        assert restored is not None
        assert torch.equal(restored.state["frozen"], frozen)
    with pawl.CheckpointManager(tmp_path / "b", packs=pawl.Packs(pack_bytes=1 << 20, reuse=False)) as manager:
        for step in range(2):
            ticket = manager.save(step, {"frozen": frozen}, wait=True)
        assert ticket is not None
        assert ticket.stats["reused_bytes"] == 0


def test_R157_states_with_nan_are_flagged_or_refused_and_the_last_good_one_is_found(tmp_path: pathlib.Path) -> None:
    """Flagged: the last good one is the last without the flag. Refused: it is the newest."""
    good, bad = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, float("nan")])}
    with pawl.CheckpointManager(tmp_path / "flag", nonfinite="flag") as manager:
        for step, state in enumerate([good, {"w": torch.full((2,), 5.0)}, bad, bad]):
            manager.save(step, state, wait=True)
        assert manager.latest_step() == 3
    with pawl.CheckpointManager(tmp_path / "flag", nonfinite="flag") as manager:
        assert [info.nonfinite for info in manager.checkpoints()] == [False, False, True, True]
        live = {"w": torch.tensor([1.0, float("nan")])}
        restored = manager.restore(live, which="good")
        assert restored is not None
        assert restored.step == 1
        assert live["w"].tolist() == [5.0, 5.0]
    with pawl.CheckpointManager(tmp_path / "refuse", nonfinite="refuse") as manager:
        manager.save(0, good, wait=True)
        with pytest.raises(pawl.PawlError, match="w"):
            manager.save(1, bad, wait=True)
        assert manager.all_steps() == [0]
        restored = manager.restore()  # the last good one
        assert restored is not None
        assert restored.step == 0


@pytest.mark.parametrize("mode", ["snapshot", "ring", "direct"])
def test_R157_nan_in_files_that_are_linked_again_counts_in_every_mode(tmp_path: pathlib.Path, mode: str) -> None:
    """Without a copy in memory unchanged files are linked before the state is copied."""
    frozen, other = np.ones(1 << 18, dtype=np.float32), np.zeros(1 << 18, dtype=np.float32)
    options: dict[str, Any] = {"staging": pawl.Staging(mode=mode), "packs": pawl.Packs(pack_bytes=1 << 20)}
    with pawl.CheckpointManager(tmp_path, num_to_keep=1, nonfinite="flag", **options) as manager:
        for step in range(1, 5):
            other += 1
            if step == 2:
                frozen[7] = np.nan
            ticket = manager.save(step, {"frozen": frozen, "other": other}, wait=True)
        assert ticket is not None
        assert ticket.stats["reused_bytes"] >= frozen.nbytes
        assert [(info.step, info.nonfinite) for info in manager.checkpoints()] == [(1, False), (4, True)]
        restored = manager.restore(which="good")
        assert restored is not None
        assert restored.step == 1
    with pawl.CheckpointManager(tmp_path, nonfinite="refuse", **options) as manager:
        with pytest.raises(pawl.UsageError, match="frozen"):
            manager.save(5, {"frozen": frozen, "other": other}, wait=True)
        assert manager.all_steps() == [1, 4]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "checkpoint_000001",
        "checkpoint_000004",
    ]


def test_the_failure_of_each_save_is_raised_also_if_an_earlier_one_was_handled(tmp_path: pathlib.Path) -> None:
    manager = slow(tmp_path, on_busy="replace")
    for name in ("checkpoint_000001", "checkpoint_000002"):  # in the way
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "file").touch()
    first = manager.save(1, BIG)
    try:
        manager.save(2, BIG)
    except pawl.PawlError:  # this machine is so slow that the first one has failed already
        manager.save(2, BIG)
    assert first is not None
    assert first.exception(HANG_SECONDS) is not None
    with pytest.raises(pawl.PawlError, match="checkpoint_00000"):
        manager.wait_until_finished()
    manager.close()


def test_an_exception_that_is_not_the_saves_is_never_taken_for_it(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        ticket = manager.save(0, {"w": torch.ones(2)}, wait=True)
        assert ticket is not None
        assert ticket.exception() is None
        with pytest.raises(pawl.UsageError, match="timeout"):
            ticket.exception(timeout="abc")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ticket.exception(bogus=1)  # type: ignore[call-arg]


def test_a_signal_that_ends_the_program_while_a_ticket_waits_ends_it(tmp_path: pathlib.Path) -> None:
    waits, handled = threading.Event(), threading.Event()

    def keep(candidates: list[Any]) -> list[bool]:
        waits.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        handled.wait()
        return [True] * len(candidates)

    def end(number: int, frame: Any) -> None:
        handled.set()
        ticket.wait(HANG_SECONDS)  # the save has succeeded when the wait ends
        raise SystemExit("now")

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=keep)) as manager:
            ticket = manager.save(0, STATE)
            assert ticket is not None
            with pytest.raises(SystemExit, match="now"):
                waits.set()
                ticket.exception()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_manager_that_is_dropped_finishes_its_saves(tmp_path: pathlib.Path) -> None:
    manager = slow(tmp_path)
    manager.save(0, BIG)
    del manager
    with pawl.CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [0]


def test_a_process_that_ends_without_closing_finishes_its_saves(tmp_path: pathlib.Path) -> None:
    program = f"import pawl; m = pawl.CheckpointManager({str(tmp_path)!r}, io=pawl.IO(write_bytes_per_second=8 << 20)); m.save(0, {{'b': b'x' * (2 << 20)}})"
    run_program(program)
    with pawl.CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [0]


def test_a_child_of_fork_leaves_the_run_of_its_parent_alone(tmp_path: pathlib.Path) -> None:
    """Neither its exit nor its garbage collection waits for threads that it does not have, or gives up a hold."""
    run_program(
        f"""
import gc, os, sys, warnings
import pawl
warnings.simplefilter("ignore")
root = {str(tmp_path / "run")!r}
manager = pawl.CheckpointManager(root, num_to_keep=1)
manager.save(0, {{"a": b"x" * 100_000}}, wait=True)
with pawl.hold(root, 1):
    child = os.fork()
    if child == 0:
        try:
            manager.all_steps()
        except pawl.UsageError as error:
            assert "fork" in str(error)
            with pawl.CheckpointManager(root + "2") as own:
                own.save(0, {{"b": b"y" * 100_000}}, wait=True)
            manager.close()
            del manager
            gc.collect()
            sys.exit(7)
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        manager.save(1, {{}}, wait=True)
        assert manager.all_steps() == [0, 1]
manager.save(2, {{}}, wait=True)
assert manager.all_steps() == [2]
manager.close()
assert pawl.CheckpointManager(root + "2").all_steps() == [0]
"""
    )


def test_a_child_of_fork_ends_while_its_parent_copies_a_lazy_save(tmp_path: pathlib.Path) -> None:
    """The copy needs the ring's memory, which takes hours to be written. The parent ends before that."""
    run_program(
        f"""
import os, sys, warnings
import torch
import pawl
warnings.simplefilter("ignore")
model = torch.nn.Linear(3000, 3000)
state = {{"model": model, "optimizer": torch.optim.SGD(model.parameters())}}
manager = pawl.CheckpointManager(
    {str(tmp_path)!r},
    staging=pawl.Staging(mode="ring", ring_bytes=8 << 20),
    io=pawl.IO(write_bytes_per_second=1 << 10),
)
ticket = manager.save(1, state, lazy=True)
child = os.fork()
if child == 0:
    try:
        ticket.wait()
    except pawl.UsageError as error:
        assert "fork" in str(error)
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os._exit(0 if ticket.stage == "staging" else 1)
"""
    )


def test_a_ticket_is_a_future(tmp_path: pathlib.Path) -> None:
    seen: list[int | None] = []
    called = threading.Event()

    def note(ticket: pawl.Ticket) -> None:
        seen.append(ticket.id)
        called.set()

    async def save(manager: pawl.CheckpointManager) -> int | None:
        ticket = manager.save(2, STATE)
        assert ticket is not None
        return await ticket

    with pawl.CheckpointManager(tmp_path) as manager:
        ticket = manager.save(1, STATE)
        assert ticket is not None
        ticket.add_done_callback(note)
        assert ticket.result(timeout=HANG_SECONDS) == 1
        assert called.wait(HANG_SECONDS) and seen == [1]
        assert ticket.done() and not ticket.running() and not ticket.cancel() and not ticket.cancelled()
        assert ticket.exception() is None
        assert asyncio.run(save(manager)) == 2


def test_a_ticket_that_fails_is_a_future_that_fails(tmp_path: pathlib.Path) -> None:
    called = threading.Event()

    async def wait(ticket: pawl.Ticket) -> None:
        await ticket

    manager = pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=("publish", 1, -3, False)))
    ticket = manager.save(1, STATE)
    assert ticket is not None
    ticket.add_done_callback(lambda _: called.set())
    error = ticket.exception()
    assert isinstance(error, pawl.PawlError) and called.wait(HANG_SECONDS)
    with pytest.raises(type(error)):
        ticket.result()
    with pytest.raises(type(error)):
        asyncio.run(wait(ticket))
    manager.close()


def test_a_done_callback_leaves_the_error_of_the_save_to_be_raised(tmp_path: pathlib.Path) -> None:
    called = threading.Event()
    manager = pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=("publish", 1, -3, False)))
    ticket = manager.save(1, STATE)
    ticket.add_done_callback(lambda _: called.set())
    assert called.wait(HANG_SECONDS)
    with pytest.raises(pawl.NotFoundError):
        manager.check_for_errors()
    manager.close()
