# SPDX-License-Identifier: Apache-2.0
"""pawl.huggingface below the real Trainer of transformers and the real Accelerate."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest
from frameworks import run

import pawl

pytestmark = pytest.mark.framework

WORKER = "huggingface_worker.py"


def test_a_killed_trainer_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "kill", expect=-signal.SIGKILL)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        steps = manager.all_steps()
        assert steps in ([3], [3, 6])
        assert manager.verify() == []
    run("huggingface", WORKER, tmp_path, "resume")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [6, 9, 12]
        assert manager.metrics(12)["eval_loss"] > 0 and manager.metrics(9) == {}


def test_a_second_training_with_the_same_saver_saves_the_step_that_the_first_one_saved(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "twice")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [(info.id, info.step) for info in manager.checkpoints()] == [(1, 12), (2, 12)]


def test_a_save_waits_for_all_data_sets_of_an_evaluation_and_the_scheduler(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "evaluated")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [3, 6, 9, 12]
        for step in manager.all_steps():
            assert {"eval_a_loss", "eval_b_loss"} <= set(manager.metrics(step))


def test_a_second_training_opens_the_run_of_one_that_has_failed(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "fails")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [3, 6, 9, 12]


def test_a_training_that_fails_in_a_block_of_the_saver_saves_once_more_and_releases_the_run(
    tmp_path: pathlib.Path,
) -> None:
    run("huggingface", WORKER, tmp_path, "leaves")


def test_the_scaler_of_fp16_is_saved(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "scaler")


def test_arguments_with_which_nothing_would_be_saved_or_found_are_refused(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "refused")


def test_a_killed_loop_of_accelerate_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "loop-kill", expect=-signal.SIGKILL)
    with pawl.CheckpointManager(tmp_path / "loop", read_only=True) as manager:
        assert manager.latest_step() == 6
    run("huggingface", WORKER, tmp_path, "loop")


def test_accumulation_of_accelerate_continues_as_after_its_own_load_state(tmp_path: pathlib.Path) -> None:
    run("huggingface", WORKER, tmp_path, "accumulated")


def test_without_the_library_the_error_says_what_to_install() -> None:
    program = "import pawl.huggingface; pawl.huggingface.Saver('runs/none')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'libpawl[huggingface]'" in done.stderr
