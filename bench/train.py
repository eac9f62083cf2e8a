# SPDX-License-Identifier: Apache-2.0
"""One training run of two workers that report a model again and again. One of them is then killed: by pawl.train, by
Ray Train as its guide does it (torch.save into a temporary folder, Checkpoint.from_directory), or by pawl.ray in Ray
Train. Started by trains.py with an interpreter that has Ray; the first worker writes what it measured as lines of
JSON."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

WIDTH = 3950  # 8 layers of it are 500 MB in fp32
PAUSE_SECONDS = 0.5  # after all is durable: what is deleted in the background goes


def model_of(scale: float) -> torch.nn.Module:
    width = max(16, round(WIDTH * scale**0.5))
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(8)])


def loop(config: dict[str, Any]) -> None:
    """Reports; between two of them every weight changes, what is written and deleted in the background comes to its
    end, and the workers meet, as they do when gradients are averaged."""
    rank, load, report, settle = SIDES[config["side"]](config)
    output = pathlib.Path(config["output"])

    def note(**row: Any) -> None:
        with output.open("a") as file:
            file.write(json.dumps(row) + "\n")

    model = model_of(config["scale"])
    first = load(model)
    killed = output.with_suffix(".killed")
    if first and rank == 0:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
        note(restart=time.time() - float(killed.read_text()))
    for epoch in range(first, config["reports"] + 2):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(1e-3)
        time.sleep(PAUSE_SECONDS)
        torch.distributed.barrier()
        begin = time.perf_counter()
        report(epoch, model)
        blocked = time.perf_counter() - begin
        settle()
        if rank == 0 and not first and epoch:  # the first one warms up
            note(blocked=blocked, durable=time.perf_counter() - begin)
        if epoch == config["reports"] and not first:
            if rank == 1:
                killed.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)  # until the group is ended


Side = tuple[int, Callable[[Any], int], Callable[[int, Any], None], Callable[[], object]]


def side_pawl(config: dict[str, Any]) -> Side:
    from pawl import train

    def load(model: Any) -> int:
        checkpoint = train.get_checkpoint()
        if not checkpoint:
            return 0
        saved = checkpoint.to_dict()
        model.load_state_dict(saved["model"])
        return int(saved["epoch"]) + 1

    def report(epoch: int, model: Any) -> None:
        values = {"epoch": epoch, "model": model.state_dict()}
        train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict(values))

    return train.get_context().get_world_rank(), load, report, train.get_checkpoint


def side_ray(config: dict[str, Any]) -> Side:
    import ray.train

    rank = ray.train.get_context().get_world_rank()

    def load(model: Any) -> int:
        checkpoint = ray.train.get_checkpoint()
        if not checkpoint:
            return 0
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "model.pt"))
        model.load_state_dict(saved["model"])
        return int(saved["epoch"]) + 1

    def report(epoch: int, model: Any) -> None:
        if rank > 0:
            ray.train.report({"epoch": epoch})
            return
        with tempfile.TemporaryDirectory(dir=config["folder"]) as folder:
            torch.save({"epoch": epoch, "model": model.state_dict()}, os.path.join(folder, "model.pt"))
            ray.train.report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(folder))

    return rank, load, report, lambda: None


def side_pawl_ray(config: dict[str, Any]) -> Side:
    import ray.train

    import pawl.ray

    saver = pawl.ray.Saver()

    def load(model: Any) -> int:
        state = {"epoch": 0, "model": model}
        restored = saver.restore(state)
        return restored.step + 1 if restored else 0

    def report(epoch: int, model: Any) -> None:
        saver.report({"epoch": epoch}, epoch, {"epoch": epoch, "model": model.state_dict()})

    return ray.train.get_context().get_world_rank(), load, report, saver.manager.wait_until_finished


SIDES = {"pawl.train": side_pawl, "Ray Train": side_ray, "pawl.ray": side_pawl_ray}


def main() -> None:
    side, folder, scale, reports, output = sys.argv[1:]
    config = {"side": side, "folder": folder, "scale": float(scale), "reports": int(reports), "output": output}
    cpu = {"CPU": 0.5}
    if side == "pawl.train":
        from pawl.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, TorchTrainer

        scaling: Any = ScalingConfig(num_workers=2, resources_per_worker=cpu, engine="local")
    else:
        import ray
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
        scaling = ScalingConfig(num_workers=2, resources_per_worker=cpu)
    TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()


if __name__ == "__main__":
    main()
