# SPDX-License-Identifier: Apache-2.0
"""Trains a network that is sharded over several processes (FSDP2), and resumes where it was stopped.

    pip install libpawl torch
    torchrun --nproc-per-node 2 train.py runs/fsdp2      # stop it at any time, and start it again

All ranks save one checkpoint together. Started with another number of processes, it resumes as well.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pawl

STEPS = 100


def main(root: str) -> None:
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpu else "gloo")
    mesh = init_device_mesh("cuda" if gpu else "cpu", (dist.get_world_size(),))
    device = torch.device("cuda" if gpu else "cpu")

    torch.manual_seed(0)  # the same weights on all ranks
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # each rank holds a piece of each parameter (DTensor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())  # other rows on each rank
    state = {"model": model, "optimizer": optimizer, "rng": pawl.rng_state()}

    # Rank and world size come from the environment of torchrun. Every rank opens the same folder.
    with pawl.CheckpointManager(root, num_to_keep=3) as manager:
        restored = manager.restore(state, rank_values="drop")  # generators of other ranks do not fit: keep one's own
        if restored and dist.get_rank() == 0:
            print(f"resumed at step {restored.step}", flush=True)
        for step in range(restored.step + 1 if restored else 1, STEPS + 1):
            x = torch.rand(32, 8).to(device)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                manager.save(step, state)  # every rank calls it; none waits for another
                mean = loss.detach()
                dist.all_reduce(mean)
                if dist.get_rank() == 0:
                    print(f"step {step}: loss {mean.item() / dist.get_world_size():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
