# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with PyTorch, and resumes where it was stopped.

    pip install libpawl torch
    python train.py runs/torch           # stop it at any time, and start it again

After SIGTERM or SIGUSR1 it saves once more and exits with status 75, as job managers announce that a machine is taken
away (examples/slurm, examples/kubernetes).
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import pawl

STEPS = 200


def main(root: str) -> int:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    # All that decides how the training continues. The random generators belong to it: they draw batches and dropout.
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": pawl.rng_state()}

    # The newest three checkpoints are kept, and the one with the smallest loss.
    with pawl.CheckpointManager(root, num_to_keep=3, score_attribute="loss", score_order="min") as manager:
        restored = manager.restore(state)  # in place; None in a new folder
        if restored:
            print(f"resumed at step {restored.step}", flush=True)
        for step in range(restored.step + 1 if restored else 1, STEPS + 1):
            x = torch.rand(64, 1, device=device) * 6 - 3
            loss = nn.functional.mse_loss(model(x), x.sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            stop = manager.preempted
            if step % 20 == 0 or stop:
                manager.save(step, state, metrics={"loss": loss.item()})  # returns after a copy in memory
                print(f"step {step}: loss {loss.item():.9f}", flush=True)
            if stop:
                return 75  # leaving the block waits until the checkpoint is durable
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
