# SPDX-License-Identifier: Apache-2.0
"""Trainers of pawl.train whose workers are actors of a real Ray, which test_ray_engine.py starts: one worker is killed;
two nodes, and the driver is killed; that training continues from a bucket."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from typing import Any

import ray
import torch
from waiting import HANG_SECONDS

from pawl import train
from pawl.train import ray_engine
from pawl.train.torch import TorchTrainer


def loop(config: dict[str, Any]) -> None:
    context = train.get_context()
    rank = context.get_world_rank()
    before = train.get_checkpoint()
    first = before.to_dict()["epoch"] + 1 if before else 0
    with open(f"{config['log']}{rank}", "a") as log:
        log.write(f"{first} {context.get_world_size()}\n")
    total = torch.ones(1)
    for epoch in range(first, 4):
        died = pathlib.Path(config["log"] + "died")
        if epoch == 2 and rank == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.ones(1) * (rank + 1)
        torch.distributed.all_reduce(total)
        state = {"epoch": epoch, "total": total}
        train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict(state))


def spread(config: dict[str, Any]) -> None:
    """A worker on each node. With a driver to kill it ends after two epochs."""
    context = train.get_context()
    rank = context.get_world_rank()
    before = train.get_checkpoint()
    first = before.to_dict()["epoch"] + 1 if before else 0
    with open(f"{config['log']}{rank}", "a") as log:
        log.write(f"{first} {context.get_node_rank()} {context.get_local_rank()}/{context.get_local_world_size()}\n")
    for epoch in range(first, 4):
        if epoch == 2 and config["driver"]:
            train.get_checkpoint()  # durable
            torch.distributed.barrier()
            if rank == 0:
                os.kill(config["driver"], signal.SIGKILL)
            time.sleep(HANG_SECONDS)  # until the workers end themselves
        state = {"epoch": epoch, "total": torch.ones(1)}
        torch.distributed.all_reduce(state["total"])
        train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict(state))


def on_nodes(folder: pathlib.Path, storage: str, kills: bool) -> None:
    """First a cluster of two nodes, that the program is connected to; then Ray on this machine, asked for by name."""
    if kills:
        from ray_cluster import Cluster

        node = {"num_cpus": 1, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
    else:
        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    result = TorchTrainer(
        spread,
        train_loop_config={"log": str(folder / "log"), "driver": os.getpid() if kills else 0},
        scaling_config=train.ScalingConfig(
            num_workers=2,
            resources_per_worker={"CPU": 0.5},
            placement_strategy="STRICT_SPREAD" if kills else "PACK",
            engine=None if kills else "ray",
        ),
        run_config=train.RunConfig(name="run", storage_path=storage),
    ).fit()
    assert result.error is None, result.error
    assert result.checkpoint is not None
    last = result.checkpoint.to_dict()
    assert (last["epoch"], last["total"].item()) == (3, 2)
    assert result.path == f"{storage}/run"
    ray.shutdown()


def failing(config: dict[str, Any]) -> None:
    train.report({"a": 1}, checkpoint=train.Checkpoint.from_dict({"epoch": 0}), wait=True)
    raise KeyError("no such thing")


def fails_too_often(folder: pathlib.Path) -> None:
    scaling = train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5}, engine="ray")
    run = train.RunConfig(name="failing", storage_path=str(folder))
    try:
        TorchTrainer(failing, scaling_config=scaling, run_config=run).fit()
    except train.TrainingFailedError as error:
        assert error.reason == "rank 0 raised KeyError: 'no such thing'", error.reason
        assert error.result is not None and error.result.error is error and error.result.metrics == {"a": 1}
        assert error.result.checkpoint is not None and error.result.checkpoint.to_dict()["epoch"] == 0
    else:
        raise AssertionError("a training that fails")


def main() -> None:
    ray_engine._START_SECONDS = ray_engine._CAUSE_SECONDS = HANG_SECONDS
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        on_nodes(folder, sys.argv[2], sys.argv[3] == "killed")
        return
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"log": str(folder / "log")},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),  # Ray is running
        run_config=train.RunConfig(
            name="run",
            storage_path=str(folder),
            failure_config=train.FailureConfig(max_failures=1, heartbeat_timeout=HANG_SECONDS),
        ),
    )
    result = trainer.fit()
    assert result.error is None, result.error
    assert result.checkpoint is not None
    last = result.checkpoint.to_dict()
    assert last["epoch"] == 3 and last["total"].item() == 3
    print(result.failures)
    fails_too_often(folder)
    try:
        TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=9, engine="ray")).fit()
    except ValueError as error:
        assert "num_workers=9" in str(error), error
    else:
        raise AssertionError("more workers than the cluster has room for")
    ray.shutdown()


if __name__ == "__main__":
    main()
