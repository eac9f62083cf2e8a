# SPDX-License-Identifier: Apache-2.0
"""What type checkers must find about pawl; test_typing.py runs them on this file, which is never run itself."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

import numpy as np
import torch

import pawl
import pawl.train
import pawl.tune


@dataclass
class State:
    step: int


def saving(root: pathlib.Path, state: State) -> None:
    with pawl.CheckpointManager(root) as manager:
        assert_type(manager, pawl.CheckpointManager[pawl.Ticket])
        assert_type(manager.save(1, state), pawl.Ticket)
        assert_type(manager.save(1, state).result(), int | None)
    with pawl.CheckpointManager(root, num_to_keep=3, on_busy="replace") as manager:
        assert_type(manager.save(1, state, wait=True), pawl.Ticket)
    with pawl.CheckpointManager(root, save_interval="5min") as rare:
        assert_type(rare.save(1, state), pawl.Ticket | None)
    with pawl.CheckpointManager(root, on_busy="skip") as skipping:
        assert_type(skipping.save(1, state), pawl.Ticket | None)


def annotated(manager: pawl.CheckpointManager) -> None:
    assert_type(manager.save(1, {}), pawl.Ticket | None)


async def waiting(ticket: pawl.Ticket) -> None:
    assert_type(await ticket, int | None)
    assert_type(ticket.result(timeout="5min"), int | None)
    assert_type(ticket.done(), bool)
    assert_type(ticket.exception(), pawl.PawlError | None)


def restoring(manager: pawl.CheckpointManager, state: State) -> None:
    assert_type(manager.restore(state), pawl.Restored[State] | None)
    if restored := manager.restore(state):
        assert_type(restored.state, State)
        assert_type(restored.path, pathlib.Path | str)
    if anything := manager.restore():
        assert_type(anything.state, Any)


def casting(manager: pawl.CheckpointManager, state: State, some: dict[str, torch.dtype]) -> None:
    for cast in ("float32", torch.bfloat16, np.float32, np.dtype("float32"), None):
        assert_type(manager.restore(state, cast=cast), pawl.Restored[State] | None)
        pawl.load("runs/demo@400", cast=cast)
    manager.restore(state, cast=some)
    pawl.load("runs/demo@400", cast=some)
    pawl.load("runs/demo@400", cast={"model/*": torch.float32, "ema/*": np.float16, "*": "bfloat16"})


def sizes_and_durations_as_text(trainable: Any) -> None:
    pawl.SyncConfig(sync_period="5min", sync_timeout=timedelta(hours=1))
    pawl.train.FailureConfig(heartbeat_timeout="2min", grace_seconds=timedelta(seconds=30))
    pawl.tune.run(trainable, time_budget_s="12h", grace_s="1min", heartbeat_s="5min")
    pawl.convert("runs/demo@400", "hub", to="hf", max_shard_bytes="5GB")


def looking(manager: pawl.CheckpointManager, checkpoint: pawl.Checkpoint, event: pawl.Event) -> None:
    assert_type(manager.root, pathlib.Path | str)
    assert_type(manager[400], pawl.Checkpoint)
    assert_type(manager.all_steps(), list[int])
    for info in manager.checkpoints():
        assert_type(info, pawl.CheckpointInfo)
        assert_type(info.path, pathlib.Path | str)
        assert_type(info.time, datetime)
    assert_type(checkpoint.path, pathlib.Path | str | None)
    assert_type(checkpoint.to_directory(), pathlib.Path)
    with checkpoint.as_directory() as folder:
        assert_type(folder, pathlib.Path)
    assert_type(event.time, datetime)
    for row in pawl.diff("a", "b"):
        assert_type(row.max_abs, float | None)
    for finding in pawl.verify("runs/demo"):
        assert_type(finding.root, pathlib.Path | str)
