# SPDX-License-Identifier: Apache-2.0
"""A training run that logs to the real TensorBoard and the real MLflow, which test_loggers.py starts."""

from __future__ import annotations

import pathlib
import sys

import mlflow
import torch
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import pawl
from pawl.loggers import PrometheusFile

COSTS = {"checkpoint/blocked_seconds", "checkpoint/bytes", "checkpoint/durable_seconds"}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    mlflow.set_tracking_uri(f"file://{folder}/mlruns")
    writer = SummaryWriter(str(folder / "tb"))
    text = PrometheusFile(folder / "pawl.prom", job='a "job"')
    with (
        mlflow.start_run() as run,
        pawl.CheckpointManager(folder / "run", logger=[writer, mlflow, text]) as manager,
    ):
        for step in range(3):
            manager.save(step, {"w": torch.zeros(1000)}, metrics={"loss": 1.0 / (step + 1)})
        manager.wait_until_finished()
        sizes = [(info.step, float(info.nbytes)) for info in manager.checkpoints()]
    writer.close()
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == COSTS | {"loss"}
    assert [(one.step, round(one.value, 3)) for one in events.Scalars("loss")] == [(0, 1.0), (1, 0.5), (2, 0.333)]
    assert [(one.step, one.value) for one in events.Scalars("checkpoint/bytes")] == sizes
    for one in events.Scalars("checkpoint/durable_seconds"):
        assert one.value > 0
    client = mlflow.MlflowClient()
    assert COSTS | {"loss"} <= set(client.get_run(run.info.run_id).data.metrics)
    history = client.get_metric_history(run.info.run_id, "checkpoint/bytes")
    assert sorted((one.step, one.value) for one in history) == sizes
    samples = {
        (one.name, one.labels.get("name", "")): one.value
        for family in text_string_to_metric_families((folder / "pawl.prom").read_text())
        for one in family.samples
        if one.labels["job"] == 'a "job"'
    }
    assert samples["pawl_checkpoint_step", ""] == 2 and samples["pawl_checkpoint_bytes", ""] == sizes[2][1]
    assert samples["pawl_checkpoint_saved_total", ""] == 3 and round(samples["pawl_metric", "loss"], 3) == 0.333
    assert samples["pawl_checkpoint_durable_seconds", ""] > 0 and samples["pawl_checkpoint_timestamp_seconds", ""] > 1e9
    assert [file.name for file in folder.iterdir() if file.is_file()] == ["pawl.prom"]


if __name__ == "__main__":
    main()
