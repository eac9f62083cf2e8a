# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier on scikit-learn's handwritten digits, with pawl. Run it again to go on where it was."""

from __future__ import annotations

import time

import torch
from measure import Timings, make_deterministic, options
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import pawl

TRAINED = 1500


def main() -> None:
    args = options(steps=20, save_every=1).parse_args()
    make_deterministic(threads=1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    losses = torch.full((args.steps,), float("nan"))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "losses": losses, "rng": pawl.rng_state()}

    with pawl.CheckpointManager(args.run, num_to_keep=3, score_attribute="accuracy", score_order="max") as manager:
        restored = manager.restore(state)
        first = restored.step + 1 if restored else 0
        if restored:
            print(f"resumed after epoch {restored.step} from {restored.path}", flush=True)
        timings = Timings(args.report, args.run)
        for epoch in range(first, args.steps):
            model.train()
            total = 0.0
            for rows in torch.randperm(TRAINED).split(100):
                loss = functional.cross_entropy(model(images[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            scheduler.step()
            losses[epoch] = total / TRAINED
            model.eval()
            with torch.no_grad():
                accuracy = (model(images[TRAINED:]).argmax(1) == labels[TRAINED:]).float().mean().item()
            if epoch % 5 == 4:
                print(f"epoch {epoch:3}  loss {losses[epoch]:.4f}  accuracy {accuracy:.3f}", flush=True)
            if (epoch + 1) % args.save_every == 0:
                begin = time.perf_counter()
                ticket = manager.save(epoch, state, metrics={"accuracy": accuracy})
                timings.saved(ticket, time.perf_counter() - begin, state)
    timings.write()


if __name__ == "__main__":
    main()
