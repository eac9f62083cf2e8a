# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with the TorchTrainer of Ray Train on two workers, and resumes where it was stopped.

    pip install 'libpawl[ray]'
    python train.py runs/ray             # stop it at any time, and start it again
    python train.py runs/ray 20          # 20 epochs instead of 10: continues a training run that has ended

The checkpoints are Ray's: it lists them in its result and deletes old ones. pawl writes them, in the background.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import ray
import ray.train
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import pawl
import pawl.ray


def train(config: dict[str, Any]) -> None:
    """Runs in every worker."""
    torch.manual_seed(0)  # the same weights in all workers
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    model = prepare_model(net)  # averages the gradients of the workers
    torch.manual_seed(100 + ray.train.get_context().get_world_rank())  # other rows in each worker
    state = {"model": net, "optimizer": optimizer, "rng": pawl.rng_state()}
    with pawl.ray.Saver() as saver:
        restored = saver.restore(state)  # None in a new run
        first = restored.step + 1 if restored else 1
        loss = torch.zeros(())
        for epoch in range(first, config["epochs"] + 1):
            for _ in range(10):
                x = torch.rand(64, 1) * 6 - 3
                loss = nn.functional.mse_loss(model(x), x.sin())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            saver.report({"epoch": epoch, "first": first, "loss": loss.item()}, epoch, state)


def main(root: str, epochs: int) -> None:
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="example",
            storage_path=os.path.abspath(root),
            failure_config=FailureConfig(max_failures=3),  # Ray starts failed workers again; they resume
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    )
    metrics = trainer.fit().metrics or {}
    if metrics["first"] > 1:
        print(f"resumed after epoch {metrics['first'] - 1}")
    print(f"epoch {metrics['epoch']}: loss {metrics['loss']:.9f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
