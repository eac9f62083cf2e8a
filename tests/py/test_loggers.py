# SPDX-License-Identifier: Apache-2.0
"""Metrics and the cost of checkpoints in loggers: the real TensorBoard, MLflow and W&B, a function, a text file."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from frameworks import run
from waiting import wait_until

import pawl
from pawl import train
from pawl.loggers import PrometheusFile
from pawl.train.session import _session

COSTS = ["checkpoint/blocked_seconds", "checkpoint/bytes", "checkpoint/durable_seconds"]


@pytest.mark.framework
def test_tensorboard_mlflow_and_the_text_file_of_prometheus(tmp_path: pathlib.Path) -> None:
    run("loggers", "loggers_worker.py", tmp_path, MLFLOW_ALLOW_FILE_STORE="true")


@pytest.mark.framework
def test_weights_and_biases(tmp_path: pathlib.Path) -> None:
    """Offline, as a real run of its own."""
    run("wandb", "wandb_worker.py", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")


def test_a_function_and_an_object_that_logs(tmp_path: pathlib.Path) -> None:
    class Run:
        """As W&B's run: its own step never goes back, so none is given."""

        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        def log(self, row: dict[str, Any]) -> None:
            self.rows.append(row)

    rows: list[tuple[int, dict[str, float]]] = []
    wandb = Run()
    with pawl.CheckpointManager(
        tmp_path, logger=[lambda scalars, step: rows.append((step, scalars)), wandb]
    ) as manager:
        manager.save(4, {"w": np.zeros(8)}, metrics={"loss": 2, "name": "demo"})
        manager.wait_until_finished()
        assert rows[0] == (4, {"loss": 2.0}) and list(rows[1][1]) == COSTS
        manager.save(5, {"w": np.zeros(8)})
    assert [step for step, _ in rows] == [4, 4, 5] and rows[2][1]["checkpoint/bytes"] > 64
    assert wandb.rows == [{**row, "checkpoint/step": step} for step, row in rows]


def test_a_logger_gets_every_metric_that_a_save_stores(tmp_path: pathlib.Path) -> None:
    rows: list[dict[str, float]] = []
    metrics = {"numpy": np.float32(0.5), "torch": torch.tensor(0.25), "count": 3, "name": "demo", "table": {"a": 1}}
    with pawl.CheckpointManager(tmp_path, logger=lambda scalars, step: rows.append(scalars)) as manager:
        manager.save(1, {"w": np.zeros(8)}, metrics=metrics, wait=True)
        assert rows[0] == manager.metrics(1) == {"numpy": 0.5, "torch": 0.25, "count": 3.0}


def test_a_save_that_failed_is_not_logged(tmp_path: pathlib.Path) -> None:
    rows: list[Any] = []
    with pytest.raises(pawl.PawlError):
        with pawl.CheckpointManager(
            tmp_path,
            io=pawl.IO(fault=("finish", 1, -7, True)),
            logger=lambda scalars, step: rows.append(step),
        ) as manager:
            manager.save(1, {"w": np.zeros(8)})
    assert rows == []


LOST = pawl.IO(fault=("publish", 1, -7, False))


@pytest.mark.parametrize("call", ["check_for_errors", "wait_until_finished", "close", "save"])
def test_a_save_that_failed_while_the_logger_ran_is_raised_by_the_next_call(tmp_path: pathlib.Path, call: str) -> None:
    manager: pawl.CheckpointManager = pawl.CheckpointManager(
        tmp_path, io=LOST, logger=lambda scalars, step: wait_until(lambda: not manager.is_saving)
    )
    ticket = manager.save(1, {"w": np.zeros(8)}, metrics={"loss": 1.0})
    assert ticket is not None and ticket.stage == "failed"
    with pytest.raises(pawl.PawlError):
        manager.save(2, {"w": np.zeros(8)}) if call == "save" else getattr(manager, call)()
    manager.close()


def test_a_training_with_a_logger_fails_if_a_checkpoint_was_lost(tmp_path: pathlib.Path) -> None:
    def function() -> None:
        train.report({"loss": 2.0}, train.Checkpoint.from_dict({"epoch": 0}))
        ticket = _session()._ticket
        assert ticket is not None
        wait_until(ticket.done)
        train.report({"loss": 1.0}, train.Checkpoint.from_dict({"epoch": 1}))

    scaling = train.ScalingConfig(num_workers=1, engine="local", resources_per_worker={"CPU": 0.1})
    config = train.RunConfig("run", tmp_path, logger=lambda scalars, step: None, options={"io": LOST})
    with pytest.raises(train.TrainingFailedError, match="publish"):
        train.DataParallelTrainer(function, scaling_config=scaling, run_config=config).fit()


def test_the_text_file_of_prometheus_holds_what_is_no_number(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "pawl.prom"
    log = PrometheusFile(path)
    log.log_metrics({"a": float("nan"), "b\n": float("inf"), "c": float("-inf")}, 1)
    lines = ['pawl_metric{name="a"} NaN', 'pawl_metric{name="b\\n"} +Inf', 'pawl_metric{name="c"} -Inf']
    assert path.read_text().splitlines() == ["# TYPE pawl_metric gauge", *lines]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("label", ["name", "__job", "a-b", "1st"])
def test_labels_that_prometheus_or_pawl_cannot_write_are_refused(tmp_path: pathlib.Path, label: str) -> None:
    with pytest.raises(pawl.UsageError, match=f"'{label}' cannot be a label"):
        PrometheusFile(tmp_path / "pawl.prom", **{label: "demo"})
    PrometheusFile(tmp_path / "pawl.prom", _job2="demo").log_metrics({"a": 1.0}, 1)
    assert 'pawl_metric{_job2="demo",name="a"} 1.0' in (tmp_path / "pawl.prom").read_text()


@pytest.mark.parametrize("logger", [3, "tensorboard", [None]])
def test_what_is_no_logger_is_refused(tmp_path: pathlib.Path, logger: object) -> None:
    with pytest.raises(pawl.UsageError, match="add_scalar, log_metrics or log"):
        pawl.CheckpointManager(tmp_path, logger=logger)
    assert not list(tmp_path.iterdir())
