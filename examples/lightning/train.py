# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with Lightning, and resumes where it was stopped.

pip install 'libpawl[lightning]'
python train.py runs/lightning       # stop it at any time, and start it again
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pawl.lightning

EPOCHS = 8


class Model(LightningModule):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"].item()
        print(f"epoch {self.current_epoch}: loss {loss:.9f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(root: str) -> None:
    seed_everything(0, verbose=False)
    x = torch.linspace(-3, 3, 640).unsqueeze(1)
    data = DataLoader(TensorDataset(x, x.sin()), batch_size=64, shuffle=True)
    # The callback saves after each epoch what Lightning's own checkpoints hold, and the random generators.
    saver = pawl.lightning.Saver(root, save_interval="1ep", num_to_keep=3)
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=[saver],
        plugins=[pawl.lightning.CheckpointIO()],  # reads what the callback wrote
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    newest = saver.ckpt_path()  # None in a new folder
    if newest:
        print(f"resumed from {newest}", flush=True)
    trainer.fit(Model(), data, ckpt_path=newest)


if __name__ == "__main__":
    main(sys.argv[1])
