# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on the bytes of real English text, with pawl. Run it again to resume where it was."""

from __future__ import annotations

import argparse
import math
import random

import numpy
import torch
from text import english_text
from torch import nn
from torch.nn import functional

import pawl

CONTEXT, BATCH, WIDTH, LAYERS, HEADS = 128, 8, 256, 4, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        heads = weights.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.out(heads.transpose(1, 2).reshape(n, length, WIDTH))
        y: torch.Tensor = x + self.mlp(self.between(x))
        return y


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight  # tied: saved once, restored tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.token(x) + self.position[: x.shape[1]])))
        return logits


def batch_of(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
    rows = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    inputs, targets = batch_of(text)
    loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="run folder")
    parser.add_argument("--steps", type=int, default=60)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    save_every = max(1, args.steps // 10)
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)  # the same input gives the same bits
    data, source = english_text()
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    losses = torch.zeros(args.steps)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "losses": losses, "rng": pawl.rng_state()}

    with pawl.CheckpointManager(args.run, num_to_keep=3, score_attribute="loss", score_order="min") as manager:
        restored = manager.restore(state)
        first = restored.step + 1 if restored else 0
        if restored:
            print(f"resumed after step {restored.step}", flush=True)
        else:
            size = sum(p.numel() for p in model.parameters())
            print(f"{size / 1e6:.1f} million parameters, {len(text) / 1e6:.1f} MB of text: {source}", flush=True)
        for step in range(first, args.steps):
            losses[step] = train_step(model, optimizer, text)
            scheduler.step()
            if (step + 1) % save_every == 0:
                recent = losses[step + 1 - save_every : step + 1].mean().item()
                manager.save(step, state, metrics={"loss": recent})
                print(f"step {step:4}  loss {recent:.4f}", flush=True)


if __name__ == "__main__":
    main()
