# SPDX-License-Identifier: Apache-2.0
"""checkpoint_periodically: a save_interval as a function."""

from __future__ import annotations

import os
import pathlib
import subprocess
import types
from datetime import timedelta

import pytest
import torch
from composer_venv import composer_python
from waiting import HANG_SECONDS

import pawl
from pawl.composer import BATCH_CHECKPOINT, CheckpointSaver, checkpoint_periodically

HERE = pathlib.Path(__file__).parent


@pytest.mark.framework
def test_R92_checkpoint_periodically_gives_the_answers_of_composers_rule() -> None:
    path = os.pathsep.join([str(pathlib.Path(pawl.__file__).parent.parent), str(HERE)])
    command = [str(composer_python()), str(HERE / "periodic_worker.py")]
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[0]) > 50


def test_R92_R93_checkpoint_periodically_in_a_loop_of_ones_own(tmp_path: pathlib.Path) -> None:
    for at_end, expected in ((True, [4, 8, 10]), (False, [4, 8])):
        folder = tmp_path / str(at_end)
        rule = checkpoint_periodically("4ba", save_end_of_training=at_end)
        with CheckpointSaver(folder, "ba{batch}.pt", None, None, None, save_interval=rule) as saver:
            for batch in range(1, 11):
                saver.step({"run_name": "a", "batch": batch, "fraction": batch / 10}, {"w": torch.ones(2)})
        assert sorted(path.name for path in folder.glob("*.pt")) == sorted(f"ba{batch}.pt" for batch in expected)
    every = checkpoint_periodically("3sec")
    seconds = [every({"batch": n, "total_wct": timedelta(seconds=n)}, BATCH_CHECKPOINT) for n in range(7)]
    assert [n for n, due in enumerate(seconds) if due] == [3, 6]


class State:
    """What a rule reads of Composer's State."""

    def __init__(self, batch: int, n: int) -> None:
        self.timestamp = types.SimpleNamespace(epoch=0, batch=batch)
        self.previous_timestamp = types.SimpleNamespace(epoch=0, batch=batch - 1)
        self.fraction = batch / n

    def get_elapsed_duration(self) -> float:
        return self.fraction


@pytest.mark.parametrize("at_end", [True, False])
def test_R92_R93_an_interval_in_parts_of_the_training_is_due_once_for_each_part(at_end: bool) -> None:
    rule = checkpoint_periodically("0.25dur", save_end_of_training=at_end)
    assert [n for n in range(1, 13) if rule(State(n, 12), BATCH_CHECKPOINT)] == [3, 6, 9, 12]
    assert [n for n in range(13, 25) if rule(State(n, 24), BATCH_CHECKPOINT)] == [18, 24]  # twice as long now
    rule = checkpoint_periodically("0.25dur", save_end_of_training=at_end)
    assert [n for n in range(1, 13) if rule({"batch": n, "fraction": n / 12}, BATCH_CHECKPOINT)] == [3, 6, 9, 12]
    rule = checkpoint_periodically("0.3dur", save_end_of_training=at_end)
    assert [n for n in range(1, 11) if rule(State(n, 10), BATCH_CHECKPOINT)] == [3, 6, 9] + [10] * at_end


def test_R92_everybody_who_asks_a_rule_about_one_event_gets_the_same_answer(tmp_path: pathlib.Path) -> None:
    """Composer's EMA asks the rule of a saver before the saver does, and two savers may share a rule."""
    rule = checkpoint_periodically("2ba")
    answers = [[rule({"batch": n}, event) for _ in range(3)] for n in range(1, 5) for event in ("batch", "epoch")]
    assert answers == [[due] * 3 for due in (False, False, True, False, False, False, True, False)]
    shared = checkpoint_periodically("2ba")
    for batch in range(1, 5):
        for name in "ab":
            with CheckpointSaver(tmp_path / name, "ba{batch}.pt", None, None, None, save_interval=shared) as saver:
                saver.step({"run_name": "a", "batch": batch}, {"w": torch.ones(2)})
    assert [sorted(path.name for path in (tmp_path / name).glob("*.pt")) for name in "ab"] == [["ba2.pt", "ba4.pt"]] * 2


@pytest.mark.parametrize("interval", ["soon", "-1ep", None, 1.5, lambda state, event: True])
def test_an_interval_that_is_none_is_refused_when_the_rule_is_made(interval: object) -> None:
    with pytest.raises(pawl.UsageError):
        checkpoint_periodically(interval)
