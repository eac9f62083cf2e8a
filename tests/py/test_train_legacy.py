# SPDX-License-Identifier: Apache-2.0
"""The older classes of Ray Train: every rule, message and property, on real folders."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import pathlib
import pickle
import re
import sys
from collections import namedtuple
from collections.abc import Generator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

import pawl
from pawl.train import legacy
from pawl.train.legacy import (
    CheckpointManager,
    CheckpointStrategy,
    PersistedCheckpoint,
    TuneCheckpointManager,
    construct_checkpoint_file_name,
)

Row = namedtuple("Row", "data")


def started(folder: pathlib.Path, **strategy: Any) -> CheckpointManager:
    manager = CheckpointManager()
    manager.on_start_training(CheckpointStrategy(**strategy) if strategy else None, folder)
    return manager


def give(manager: CheckpointManager, **values: Any) -> None:
    manager._process_checkpoint([Row(values), Row({"other": "worker"})], lambda data: data)


def scores(folder: pathlib.Path, values: list[float], **strategy: Any) -> CheckpointManager:
    manager = started(folder, checkpoint_score_attribute="auc", **strategy)
    for value in values:
        give(manager, auc=value, w=torch.tensor([value]))
    return manager


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("checkpoint_*"))


def numbered(*numbers: int) -> list[str]:
    return [f"checkpoint_{number:06d}" for number in numbers]


# ---- the strategy


def test_R1_R2_R6_R8_the_strategy_has_three_fields_with_their_defaults(tmp_path: pathlib.Path) -> None:
    strategy = CheckpointStrategy()
    assert vars(strategy) == {
        "num_to_keep": None,
        "checkpoint_score_attribute": legacy.TIMESTAMP,
        "checkpoint_score_order": "max",
    }
    assert (legacy.MAX, legacy.MIN) == ("max", "min")
    assert started(tmp_path)._checkpoint_strategy == strategy


def test_R5_R9_wrong_strategies_are_refused_when_they_are_made() -> None:
    with pytest.raises(ValueError, match=re.escape("num_to_keep: -1. Must be None or non-negative integer.")):
        CheckpointStrategy(num_to_keep=-1)
    with pytest.raises(ValueError, match=re.escape('checkpoint_score_order must be either "max" or "min".')):
        CheckpointStrategy(checkpoint_score_order="best")


def test_R10_persisted_checkpoints_compare_by_priority_and_show_their_path() -> None:
    a, b = PersistedCheckpoint(pathlib.Path("/z"), 1), PersistedCheckpoint(pathlib.Path("/a"), 2)
    assert a < b
    assert not b < a
    assert repr(a) == f"PersistedCheckpoint({pathlib.Path('/z')!r})"


def test_R10_priority_is_the_score_or_its_negative(tmp_path: pathlib.Path) -> None:
    for order, sign in (("max", 1), ("min", -1)):
        manager = scores(tmp_path / order, [0.5, 0.25], checkpoint_score_order=order)
        assert sorted(one.priority for one in manager.persisted_checkpoints) == sorted([sign * 0.5, sign * 0.25])


# ---- the folder and its names


def test_R11_the_default_path_lies_below_the_home_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    manager = CheckpointManager()
    manager.create_logdir(None)
    manager.create_run_dir()
    assert manager.run_dir is not None
    manager.on_start_training(None, manager.run_dir)
    give(manager, _timestamp=1)
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.glob("ray_results/*/*/checkpoints/checkpoint_*")]
    assert len(found) == 1
    assert re.fullmatch(
        r"ray_results/train_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d/run_001/checkpoints/checkpoint_000001", found[0]
    )
    manager.create_run_dir()
    assert manager.run_dir.name == "run_002"


def test_R12_R13_R14_R15_R17_names_and_places(tmp_path: pathlib.Path) -> None:
    assert construct_checkpoint_file_name(7) == "checkpoint_000007"
    manager = started(tmp_path)
    folder = tmp_path / "checkpoints"
    assert manager.latest_checkpoint_dir == folder
    assert (manager.latest_checkpoint_id, manager.latest_checkpoint_file_name) == (None, None)
    assert manager.next_checkpoint_path == folder / "checkpoint_000001"
    give(manager, _timestamp=1.5)
    assert names(tmp_path) == numbered(1)
    assert (manager.latest_checkpoint_id, manager.latest_checkpoint_file_name) == (1, "checkpoint_000001")
    assert manager.next_checkpoint_path == folder / "checkpoint_000002"


@pytest.mark.parametrize("code", [-7, -9])
def test_R15_R23_after_a_failed_write_the_next_path_is_where_the_next_one_goes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level(logging.DEBUG, "pawl.train.legacy")
    manager = started(tmp_path)
    folder = tmp_path / "checkpoints"
    give(manager, _timestamp=1, w=torch.ones(4))
    manager.close()
    with monkeypatch.context() as patch:
        patch.setattr(legacy, "_Core", functools.partial(legacy._Core, io=pawl.IO(fault=("write", 1, code, True))))
        for _ in range(2):
            with pytest.raises(pawl.PawlError):
                give(manager, _timestamp=2, w=torch.ones(4))
            assert manager.next_checkpoint_path == folder / "checkpoint_000002"
            assert (manager.latest_checkpoint_id, manager.latest_checkpoint_file_name) == (1, "checkpoint_000001")
    with pytest.raises(pawl.UnsupportedError):
        give(manager, _timestamp=3, w=...)
    expected = manager.next_checkpoint_path
    caplog.clear()
    give(manager, _timestamp=4, w=torch.full((4,), 4.0))
    assert expected == folder / "checkpoint_000002"
    assert f"Checkpoint successfully written to: {expected}" in caplog.messages
    assert names(tmp_path) == numbered(1, 2)
    assert pawl.load(expected)["_timestamp"] == 4
    assert manager.latest_checkpoint_id == 2
    assert manager.next_checkpoint_path == folder / "checkpoint_000003"
    manager.write_checkpoint({"_timestamp": 5})  # without the count: the next one goes elsewhere anyway
    assert names(tmp_path) == numbered(1, 2, 3)
    assert manager.next_checkpoint_path == folder / "checkpoint_000004"


# ---- life


def test_R19_R16_R18_a_new_manager_has_nothing(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path)
    assert manager.latest_checkpoint is None
    assert manager.latest_checkpoint_id is None
    assert manager.best_checkpoint_path is None
    assert manager.persisted_checkpoints == []
    give(manager, _timestamp=1)
    manager.on_init()
    assert (manager.latest_checkpoint, manager.latest_checkpoint_id) == (None, None)


def test_R20_E1_E7_numbers_begin_at_the_given_one_and_nothing_is_forgotten(tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager()
    manager.on_start_training(CheckpointStrategy(2, "auc"), tmp_path, latest_checkpoint_id=7)
    assert manager.latest_checkpoint_id == 7
    for value in (3.0, 1.0, 2.0):
        give(manager, auc=value)
    assert names(tmp_path) == numbered(8, 10)
    manager.close()
    again = started(tmp_path, num_to_keep=2, checkpoint_score_attribute="auc")
    assert again.latest_checkpoint_id == 10
    assert again.best_checkpoint_path == tmp_path / "checkpoints" / "checkpoint_000008"
    give(again, auc=2.5)
    assert names(tmp_path) == numbered(8, 11)


# ---- processing


def test_R21_R22_R23_the_first_workers_result_is_decoded_kept_written_and_counted(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path)
    order: list[Any] = []

    def decode(data: bytes) -> dict[str, Any]:
        order.append((data, names(tmp_path), manager.latest_checkpoint))
        return {"text": data.decode(), "_timestamp": 1}

    manager._process_checkpoint([Row(b"first"), Row(b"second")], decode)
    assert order == [(b"first", [], None)]
    assert manager.latest_checkpoint == {"text": "first", "_timestamp": 1}
    assert pawl.load(tmp_path / "checkpoints" / "checkpoint_000001") == manager.latest_checkpoint
    with pytest.raises(ValueError, match="Unable to persist"):
        give(manager, text="no score")
    assert manager.latest_checkpoint == {"text": "no score"}  # kept in memory first
    assert manager.latest_checkpoint_id == 1  # not counted


def test_R3_R18_num_to_keep_0_keeps_the_newest_in_memory_only(tmp_path: pathlib.Path) -> None:
    manager = scores(tmp_path, [1.0], num_to_keep=0)
    give(manager, nothing="no score is asked for")
    assert manager.latest_checkpoint == {"nothing": "no score is asked for"}
    assert manager.latest_checkpoint_id == 2
    assert manager.best_checkpoint_path is None
    assert list(tmp_path.iterdir()) == []


def test_R4_R6_R7_the_most_recent_n_stay_by_the_timestamp(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path, num_to_keep=2)
    for second in (1, 2, 3):
        give(manager, _timestamp=second)
    assert names(tmp_path) == numbered(2, 3)


def test_R31_R35_keep_all_keeps_every_one_and_knows_the_best(tmp_path: pathlib.Path) -> None:
    manager = scores(tmp_path, [1.0, 3.0, 3.0, 2.0])
    assert names(tmp_path) == numbered(1, 2, 3, 4)
    assert manager.best_checkpoint_path == tmp_path / "checkpoints" / "checkpoint_000002"  # the earliest of equals


def test_R8_R32_R33_R34_R14_a_full_list_takes_only_better_ones(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pawl.train.legacy")
    manager = scores(tmp_path, [0.5, 0.7, 0.5, 0.4], num_to_keep=2)
    assert names(tmp_path) == numbered(1, 2)  # a tie and a worse one are not written
    assert manager.latest_checkpoint_id == 4
    assert manager.latest_checkpoint_file_name == "checkpoint_000004"
    give(manager, auc=0.6)
    assert names(tmp_path) == numbered(2, 5)
    said = "\n".join(caplog.messages)
    folder = tmp_path / "checkpoints"
    assert f"Checkpoint successfully written to: {folder / 'checkpoint_000005'}" in said
    assert f"Removed worst checkpoint from {folder / 'checkpoint_000001'}." in said
    assert f"Skipping checkpoint due to low score:{folder / 'checkpoint_000003'}." in said
    low = scores(tmp_path / "low", [3.0, 1.0, 2.0], num_to_keep=2, checkpoint_score_order="min")
    assert names(tmp_path / "low") == numbered(2, 3)
    assert low.best_checkpoint_path == tmp_path / "low" / "checkpoints" / "checkpoint_000002"


def test_R36_a_nan_is_stored_but_never_best_and_evicts_nobody(tmp_path: pathlib.Path) -> None:
    manager = scores(tmp_path, [float("nan"), 1.0, float("nan")], num_to_keep=2)
    assert names(tmp_path) == numbered(1, 2)
    assert manager.best_checkpoint_path == tmp_path / "checkpoints" / "checkpoint_000002"
    give(manager, auc=0.5)
    assert names(tmp_path) == numbered(2, 4)


def test_R27_R28_R29_bad_scores_are_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path, checkpoint_score_attribute="auc")
    with pytest.raises(
        ValueError,
        match=re.escape(
            "Unable to persist checkpoint for checkpoint_score_attribute: auc. "
            "Include this attribute in the call to train.save_checkpoint."
        ),
    ):
        give(manager, loss=1)
    for value in ("high", None, [1], 1j):
        with pytest.raises(
            ValueError,
            match=re.escape(
                f"Unable to persist checkpoint for checkpoint_score_attribute: auc with value {value}. "
                "This attribute must be numerical."
            ),
        ):
            give(manager, auc=value)
    assert names(tmp_path) == []
    give(manager, auc=True)  # any number passes
    assert names(tmp_path) == numbered(1)


def test_R28_every_number_of_python_is_a_score(tmp_path: pathlib.Path) -> None:
    values = [Decimal("0.5"), Fraction(3, 4), 10**400, Decimal("1e400"), -(10**400), Decimal("Infinity")]
    manager = started(tmp_path, checkpoint_score_attribute="auc")
    for value in values:
        give(manager, auc=value)
    largest = sys.float_info.max
    found = [pawl.load(path)["auc"] for path in sorted((tmp_path / "checkpoints").glob("checkpoint_*"))]
    assert found == [0.5, 0.75, 10**400, largest, -(10**400), math.inf]
    assert manager.latest_checkpoint is not None and manager.latest_checkpoint["auc"] is values[-1]
    assert manager.best_checkpoint_path == tmp_path / "checkpoints" / "checkpoint_000003"  # the earliest of equals
    priorities = [one.priority for one in manager.persisted_checkpoints]
    assert priorities == [-largest, 0.5, 0.75, largest, largest, math.inf]
    kept = started(tmp_path / "kept", num_to_keep=1, checkpoint_score_attribute="auc")
    for value in values:
        give(kept, auc=value)
    assert kept.best_checkpoint_path == tmp_path / "kept" / "checkpoints" / "checkpoint_000003"


def test_R30_folders_are_made_and_exist_already(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path / "a" / "b")
    give(manager, _timestamp=1)
    give(manager, _timestamp=2)
    assert names(tmp_path / "a" / "b") == numbered(1, 2)


# ---- loading


def test_R24_R25_R26_what_is_loaded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = started(tmp_path / "run")
    assert manager._load_checkpoint(None) is None
    given = {"a": 1}
    assert manager._load_checkpoint(given) is given
    give(manager, _timestamp=3, w=torch.ones(2))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/run/checkpoints/checkpoint_000001", tmp_path / "run" / "checkpoints" / "checkpoint_000001"):
        found = manager._load_checkpoint(path)
        assert found is not None
        assert (found["_timestamp"], found["w"].tolist()) == (3, [1.0, 1.0])
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=re.escape(f"Checkpoint path {missing} does not exist.")):
        manager._load_checkpoint(missing)


def test_R26_E8_pickles_are_for_who_asks_for_them(tmp_path: pathlib.Path) -> None:
    manager = started(tmp_path)
    with pytest.raises(pawl.UnsupportedError, match="'a/odd'"):
        give(manager, _timestamp=1, a={"odd": ...})
    asking = CheckpointManager(allow_pickle=True)
    asking.on_start_training(None, tmp_path / "asking")
    give(asking, _timestamp=1, a={"odd": ..., "w": torch.ones(1)})
    path = tmp_path / "asking" / "checkpoints" / "checkpoint_000001"
    with pytest.raises(pawl.UnsupportedError, match="'a/odd' is a pickle"):
        manager._load_checkpoint(path)
    found = asking._load_checkpoint(path)
    assert found is not None
    assert (found["a"]["odd"], found["a"]["w"].tolist()) == (..., [1.0])
    old = tmp_path / "checkpoint_000009"
    old.write_bytes(pickle.dumps({"from": "an older program"}))
    assert asking._load_checkpoint(old) == {"from": "an older program"}
    with pytest.raises(pawl.PawlError):
        manager._load_checkpoint(old)


# ---- inside of a search


class FakeTune:
    """As a trial gives it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.steps = folder, list[int]()

    @contextlib.contextmanager
    def checkpoint_dir(self, step: int) -> Generator[str, None, None]:
        self.steps.append(step)
        made = self.folder / f"checkpoint_{step:06d}"
        made.mkdir(parents=True)
        yield str(made)


def test_R37_R38_R39_inside_of_a_trial(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = FakeTune(tmp_path / "trial")
    monkeypatch.setattr(legacy, "tune", tune)
    manager = TuneCheckpointManager()
    manager.create_logdir(tmp_path / "log")
    manager.create_run_dir()
    assert list(tmp_path.iterdir()) == []
    manager.on_start_training(CheckpointStrategy(num_to_keep=0, checkpoint_score_attribute="auc"), tmp_path / "run")
    give(manager, a=1)  # neither the strategy nor its score matter
    give(manager, a=2)
    assert tune.steps == [0, 1]
    assert manager.best_checkpoint_path is None
    assert manager.latest_checkpoint == {"a": 2, legacy.TUNE_CHECKPOINT_ID: 1}
    path = tmp_path / "trial" / "checkpoint_000001" / legacy.TUNE_CHECKPOINT_FILE_NAME
    again = TuneCheckpointManager()
    assert again._load_checkpoint(None) is None
    assert again.latest_checkpoint_id is None
    assert again._load_checkpoint(path) == {"a": 2, legacy.TUNE_CHECKPOINT_ID: 1}
    assert again.latest_checkpoint_id == 1
    assert again._load_checkpoint({legacy.TUNE_CHECKPOINT_ID: 5}) is not None
    assert again.latest_checkpoint_id == 5
    with pytest.raises(KeyError, match=legacy.TUNE_CHECKPOINT_ID):
        again._load_checkpoint({"a": 1})


def test_R40_tune_is_an_optional_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pawl.tune", None)
    try:
        importlib.reload(legacy)
        assert legacy.tune is None
        with pytest.raises(pawl.UnsupportedError, match=r"needs pawl\.tune"):
            legacy.TuneCheckpointManager().write_checkpoint({})
    finally:
        monkeypatch.undo()
        importlib.reload(legacy)
