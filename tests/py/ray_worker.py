# SPDX-License-Identifier: Apache-2.0
"""Drivers of the real Ray Train that test_ray.py starts: two workers, two logical processors, a small object store."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import ray
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from waiting import HANG_SECONDS

EPOCHS = 8


def network() -> Any:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), 1e-2)


def expected(epochs: int) -> Any:
    """What two workers come to that nothing interrupts, in one process."""
    model, optimizer = network()
    generators = []
    for rank in range(2):
        torch.manual_seed(100 + rank)
        generators.append(torch.get_rng_state())
    for _ in range(epochs):
        sums: list[Any] = []
        for rank in range(2):
            torch.set_rng_state(generators[rank])
            optimizer.zero_grad()
            (model(torch.randn(4, 4)) - 1).square().mean().backward()
            mine = [weight.grad.clone() for weight in model.parameters()]
            sums = [a + b for a, b in zip(sums, mine, strict=True)] if sums else mine
            generators[rank] = torch.get_rng_state()
        for weight, total in zip(model.parameters(), sums, strict=True):
            weight.grad = total / 2
        optimizer.step()
    return model.state_dict()


def wait_for_ray(manager: Any, steps: list[int]) -> None:
    """Waits until Ray keeps just these. What it still had to delete when it is killed, it forgets."""
    while manager.all_steps() != steps:
        time.sleep(0.01)
        manager.reload()


def train(config: dict[str, Any]) -> None:
    """The same model in all workers, gradients of each worker's own rows, averaged."""
    import ray.train

    import pawl
    import pawl.ray

    rank = ray.train.get_context().get_world_rank()
    model, optimizer = network()
    torch.manual_seed(100 + rank)
    state = {"model": model, "optimizer": optimizer, "rng": pawl.rng_state(), "seen": pawl.PerRank(rank)}
    with pawl.ray.Saver() as saver:
        restored = saver.restore(state)
        first = restored.step + 1 if restored else 0
        if rank == 0:
            with open(config["log"], "a") as log:
                log.write(f"{first}\n")
        for epoch in range(first, EPOCHS):
            if epoch == config.get("die") and rank == 1 and not os.path.exists(config["log"] + ".died"):
                saver.manager.wait_until_finished()
                pathlib.Path(config["log"] + ".died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if epoch == config.get("end") and rank == 0:
                saver.manager.wait_until_finished()
                wait_for_ray(saver.manager, [epoch - 2, epoch - 1])
                os.kill(config["driver"], signal.SIGKILL)
                time.sleep(HANG_SECONDS)  # until Ray ends the workers
            loss = (model(torch.randn(4, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for weight in model.parameters():
                torch.distributed.all_reduce(weight.grad)
                weight.grad /= 2
            optimizer.step()
            saver.report({"loss": loss.item(), "name": "demo"}, epoch, state)
    if "folder" in config:
        plain(rank, config["folder"])


def plain(rank: int, folder: str) -> None:
    """ray.train.report itself, of checkpoints that pawl has saved elsewhere."""
    import ray.train

    import pawl
    import pawl.ray

    mine = None
    if rank == 0:
        pawl.save({"step": 3, "w": torch.arange(5)}, folder)
        mine = pawl.Checkpoint(folder).to_ray()
    ray.train.report({}, checkpoint=mine, checkpoint_upload_fn=pawl.ray.upload)
    if rank == 0:
        again = pawl.ray.from_ray(ray.train.get_checkpoint()).to_dict()
        assert again["step"] == 3 and torch.equal(again["w"], torch.arange(5))
        assert pawl.Checkpoint(pawl.Checkpoint.from_dict({"step": 4}).to_ray().path).to_dict()["step"] == 4
    try:
        pawl.ray.Saver(num_to_keep=3)
    except pawl.UsageError as error:
        assert "CheckpointConfig" in str(error)
    else:
        raise AssertionError("what Ray does was taken")


def fit(name: str, storage: str, failures: int = 0, **config: Any) -> Any:
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    return trainer.fit()


def main() -> None:
    folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    storage, log = str(folder / "results"), str(folder / "first")
    if what == "first":
        fit("run", storage, failures=1, log=log, die=3, end=5, driver=os.getpid())
        return
    import pawl
    import pawl.ray

    result = fit("run", storage, log=log, folder=str(folder / "plain"))
    bucket = fit("bucket", sys.argv[3], failures=1, log=str(folder / "second"), die=2)
    ours = min((one for one, _ in result.best_checkpoints), key=lambda one: "/pawl/checkpoints/" not in one.path)
    whole = expected(EPOCHS)
    for checkpoint in (ours, bucket.checkpoint):
        tree = pawl.ray.from_ray(checkpoint).to_dict()
        assert tree["seen"] == [0, 1]
        for name, value in whole.items():
            assert torch.equal(value, tree["model"][name]), (checkpoint.path, name)
    facts = {"path": ours.path, "plain": result.checkpoint.path, "remote": bucket.checkpoint.path}
    (folder / "facts").write_text(json.dumps(facts | {"metrics": bucket.metrics}))
    ray.shutdown()


if __name__ == "__main__":
    main()
