# SPDX-License-Identifier: Apache-2.0
"""A trainer of pawl.train whose workers are actors of a real Ray, one of them killed; test_ray_engine.py starts it."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import Any

import ray
import torch

from pawl import train
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


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"log": str(folder / "log")},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),  # Ray is running
        run_config=train.RunConfig(
            name="run", storage_path=str(folder), failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.error is None, result.error
    assert result.checkpoint is not None
    last = result.checkpoint.to_dict()
    assert last["epoch"] == 3 and last["total"].item() == 3
    print(result.failures)
    try:
        TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=9, engine="ray")).fit()
    except ValueError as error:
        assert "num_workers=9" in str(error), error
    else:
        raise AssertionError("more workers than the cluster has room for")
    ray.shutdown()


if __name__ == "__main__":
    main()
