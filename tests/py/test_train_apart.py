# SPDX-License-Identifier: Apache-2.0
"""Workers that are a report apart: none waits for the others, and what they do not agree on is said later."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import tempfile
from typing import Any

import cloudpickle
import pytest
import torch
import waiting
from common import result_of_failure
from waiting import HANG_SECONDS, wait_until

import pawl
from pawl import train
from pawl.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

for module in (sys.modules[__name__], waiting):
    cloudpickle.register_pickle_by_value(module)


def fit(function: Any, folder: pathlib.Path) -> train.Result:
    run = RunConfig(
        "run", folder, FailureConfig(max_failures=-1, report_timeout=HANG_SECONDS, heartbeat_timeout=HANG_SECONDS)
    )
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1})
    return DataParallelTrainer(
        function, train_loop_config={"folder": str(folder)}, scaling_config=scaling, run_config=run
    ).fit()


def apart(config: dict[str, Any]) -> None:
    """Rank 1 comes to a report when rank 0 has returned from it; rank 0 is asked to end when it is one ahead."""
    rank, folder = train.get_context().get_world_rank(), pathlib.Path(config["folder"])
    for n in range(1, 100):
        if rank == 1 and n < 4:
            wait_until((folder / f"0-{n}").exists)
        values = {"n": n, "rank": rank, "part": pawl.Shard(torch.full((2,), float(n)), (4,), (2 * rank,))}
        train.report({"n": n}, checkpoint=Checkpoint.from_dict(values))
        if rank == 0 and n == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        (folder / f"{rank}-{n}").touch()


def test_R41_R153_workers_do_not_wait_for_each_other_and_end_with_the_same_report(tmp_path: pathlib.Path) -> None:
    with pytest.raises(train.Preempted):
        fit(apart, tmp_path)
    returned = [{int(path.name[2:]) for path in tmp_path.glob(f"{rank}-*")} for rank in range(2)]
    last = len(returned[0]) + 1  # the signal is heard by a thread of its own, maybe when the fourth had begun
    assert last >= 4
    assert returned == [set(range(1, last))] * 2
    with pawl.CheckpointManager(tmp_path / "run", read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)) as manager:
        assert manager.all_steps() == list(range(1, last + 1))
        for n in range(1, last + 1):
            state = manager.restore(step=n)
            assert state is not None
            assert (state.state["n"], state.state["rank"], state.state["part"].tolist()) == (n, 0, [n] * 4)


def only_the_second(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    train.report({}, checkpoint=None if rank == 0 else Checkpoint.from_dict({"a": 1}))


def folder_and_dict(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as made:
        pathlib.Path(made, "a.txt").write_text("a")
        mine = train.get_context().get_world_rank() == 1
        train.report({}, checkpoint=Checkpoint.from_directory(made) if mine else Checkpoint.from_dict({"a": 1}))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (only_the_second, "report 1: rank 0 gave no checkpoint, but 1 of 2 workers did; the first worker's counts"),
        (folder_and_dict, "report 1: 1 of the 2 workers with a checkpoint gave a folder, the others a dict"),
    ],
)
def test_P4_checkpoints_that_do_not_fit_together_are_named_and_not_kept(
    tmp_path: pathlib.Path, function: Any, words: str
) -> None:
    """One worker had begun to save before it could know; nothing is started again."""
    result = result_of_failure(fit, function, tmp_path)
    assert result.error is not None
    assert result.error.reason in [f"rank {rank} raised MismatchError: {words}" for rank in range(2)]
    assert len(result.failures) == 1
    assert result.checkpoint is None
