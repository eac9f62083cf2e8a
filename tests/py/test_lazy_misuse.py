# SPDX-License-Identifier: Apache-2.0
"""Lazy saves in programs that use them rightly and wrongly: whatever is committed is the state at the call.

200 small training runs, drawn by seed, each with its own mixture of optimizer, form of the state, mode, place of the fence
(right, forgotten, late), moving averages, hooks and threads that write in every way torch and NumPy have. The oracle
is a copy of the state made right before each call of save: a save either fails and names a tensor, or restores to
exactly that copy. How the threads of a program and those of the library meet is left to chance; the oracle is not."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from waiting import HANG_SECONDS

import pawl
from cli import BUILD

pytestmark = pytest.mark.long

PROGRAMS, GROUPS, STEPS = 200, 10, 4


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}/{index}")
    else:
        yield path, value


def copy_of(state: Any) -> dict[str, Any]:
    return {
        path: value.detach().clone() if isinstance(value, torch.Tensor) else np.copy(value)
        for path, value in leaves(state)
    }


def differences(manager: pawl.CheckpointManager, given: dict[int, dict[str, Any]]) -> list[str]:
    """Where a committed checkpoint is not what the state was at the call of save."""
    found = []
    for info in manager.checkpoints():
        restored = manager.restore(id=info.id)
        assert restored is not None
        saved = dict(leaves(restored.state))
        for path, value in given[info.step].items():
            same = torch.equal(saved[path], value) if isinstance(value, torch.Tensor) else np.all(saved[path] == value)
            if not same:
                found.append(f"step {info.step}: {path}")
    return found


def by_torch(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.add_(1)


def by_numpy(tensor: torch.Tensor) -> None:
    tensor.detach().numpy()[...] += 1


def by_inference(tensor: torch.Tensor) -> None:
    with torch.inference_mode():
        tensor.detach().mul_(1.5)


def by_rows(tensor: torch.Tensor) -> None:
    """One row after the other, which nothing counts."""
    for row in tensor.data:
        row.add_(1)


WRITES: list[Callable[[torch.Tensor], None]] = [by_torch, by_data, by_numpy, by_inference, by_rows]


class Program:
    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        torch.manual_seed(seed)
        width = draw.randrange(600, 900)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))
        if draw.random() < 0.2:
            self.model[0].weight = nn.Parameter(self.model[0].weight.detach().t())
        self.batch = torch.randn(8, width)
        make: Callable[..., torch.optim.Optimizer] = draw.choice([torch.optim.SGD, torch.optim.AdamW])
        words: dict[str, Any] = {"lr": 0.01, "fused": draw.random() < 0.5}
        if make is torch.optim.SGD:
            words["momentum"] = 0.9
        self.optimizer = make(self.model.parameters(), **words)
        self.write = draw.choice(WRITES)
        self.fence = draw.choice(["right", "forgotten", "late", "random"])
        self.average = [p.detach().clone() for p in self.model.parameters()] if draw.random() < 0.4 else []
        self.counts = np.zeros(1000)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        if draw.random() < 0.3:
            self.state["model"] = self.model.state_dict()
        if draw.random() < 0.2:
            self.state["optimizer"] = self.optimizer.state_dict
        self.hooks = draw.random() < 0.3
        self.thread = draw.random() < 0.4
        self.saved, self.idle, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.idle.set()
        if self.hooks:  # an optimizer in the backward pass
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(self.write)

    def current(self) -> dict[str, Any]:
        made = self.state["optimizer"]
        return {**self.state, "optimizer": made() if callable(made) else made, "counts": self.counts}

    def forward_and_backward(self) -> None:
        self.optimizer.zero_grad()
        with contextlib.suppress(RuntimeError):  # a thread has changed what autograd still needs
            self.model(self.batch).square().mean().backward()
        self.counts += 1

    def change(self) -> None:
        if not self.hooks:
            self.optimizer.step()
        if self.draw.random() < 0.3:
            self.write(self.draw.choice(list(self.model.parameters())))
        for average, parameter in zip(self.average, self.model.parameters(), strict=False):
            average.mul_(0.9).add_(parameter.detach(), alpha=0.1)

    def disturb(self) -> None:
        """A thread that writes once between a call of save and the next one."""
        while self.saved.wait() and not self.ended.is_set():
            self.saved.clear()
            for parameter in self.model.parameters():
                self.write(parameter)
            self.idle.set()

    def wake(self) -> None:
        if self.thread:
            self.idle.clear()
        self.saved.set()


def shielded(call: Callable[[], object], errors: list[str]) -> None:
    try:
        call()
    except pawl.UsageError as error:
        errors.append(str(error))


def run(program: Program, root: str) -> tuple[list[str], list[str], int]:
    """What is wrong, the errors, and how many checkpoints were committed."""
    draw = program.draw
    mode = draw.choice(["snapshot", "ring"])
    words: dict[str, Any] = {"on_busy": draw.choice(["wait", "replace"])}
    if mode == "ring":
        words["staging"] = pawl.Staging(mode="ring", ring_bytes=8 << 20)
        words["io"] = pawl.IO(write_bytes_per_second=draw.choice([0, 100 << 20]))
    if draw.random() < 0.2:
        words["compression"] = "zst"
    given: dict[int, dict[str, Any]] = {}
    errors: list[str] = []
    thread = threading.Thread(target=program.disturb)
    if program.thread:
        thread.start()
    with pawl.CheckpointManager(root, **words) as manager:
        try:
            for step in range(STEPS):
                program.forward_and_backward()
                early = program.fence == "right" or (program.fence == "random" and draw.random() < 0.5)
                if early:
                    shielded(partial(manager.before_step, HANG_SECONDS), errors)
                program.change()
                if program.fence == "late" or (program.thread and early):
                    shielded(partial(manager.before_step, HANG_SECONDS), errors)
                shielded(manager.check_for_errors, errors)
                assert program.idle.wait(HANG_SECONDS)
                state = program.current()
                given[step] = copy_of(state)
                shielded(partial(manager.save, step, state, lazy=True), errors)
                program.wake()
        finally:
            program.ended.set()
            program.saved.set()
            if program.thread:
                thread.join(HANG_SECONDS)
        for _ in range(STEPS + 1):
            shielded(partial(manager.wait_until_finished, HANG_SECONDS), errors)
        assert manager.verify() == []
        return differences(manager, given), errors, len(manager.checkpoints())


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_lazy_save_commits_a_mixture(tmp_path: pathlib.Path, group: int) -> None:
    n_committed, names = 0, []
    for seed in range(group, PROGRAMS, GROUPS):
        root = "mem:" if seed % 20 else str(tmp_path / str(seed))
        wrong, errors, n = run(Program(seed), root)
        assert wrong == [], f"program {seed}"
        n_committed += n
        names += errors
    assert n_committed > 0
    assert all("tensor '" in name and "nothing was saved" in name for name in names), names


BLIND = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pawl._pawl", sys.argv[1])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import test_lazy_misuse as test
for seed in range(test.PROGRAMS):
    wrong, _, _ = test.run(test.Program(seed), "mem:")
    if wrong:
        print(f"program {seed}: {wrong}")
        break
"""


def test_negative_control_without_the_comparison_the_oracle_finds_a_mixture() -> None:
    """The same programs with an extension that compares nothing after the copy, up to the first mixture. About a
    quarter of the programs commit one."""
    [blind] = (BUILD / "tests").glob("_blind*.so")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BLIND, str(blind)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("program "), "no mixture was committed"


def test_the_oracle_finds_a_state_that_changed_after_the_call(tmp_path: pathlib.Path) -> None:
    program = Program(1)
    program.write = by_data
    program.forward_and_backward()
    state = program.current()
    given = {0: copy_of(state)}
    begun, ended = threading.Event(), threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            for parameter in program.model.parameters():
                program.write(parameter)
            begun.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    assert begun.wait(HANG_SECONDS)
    with pawl.CheckpointManager(tmp_path, staging=pawl.Staging(mode="ring", ring_bytes=8 << 20)) as manager:
        manager.save(0, state, wait=True)  # not lazy: that no thread writes is the caller's part
        ended.set()
        thread.join(HANG_SECONDS)
        assert manager.verify() == []
        assert differences(manager, given)
