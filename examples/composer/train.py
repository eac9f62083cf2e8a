# SPDX-License-Identifier: Apache-2.0
"""Trains a small classifier with Composer, and resumes where it was stopped.

pip install libpawl mosaicml
python train.py runs/composer        # stop it at any time, and start it again
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from composer.core import Callback
from composer.models import ComposerClassifier
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pawl.composer

EPOCHS = "8ep"


class Print(Callback):  # type: ignore[misc,unused-ignore]
    def epoch_end(self, state: Any, logger: Any) -> None:
        print(f"epoch {int(state.timestamp.epoch)}: loss {float(state.loss):.9f}", flush=True)

    def after_load(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.epoch) > 0:
            print(f"resumed after epoch {int(state.timestamp.epoch)}", flush=True)


def main(root: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(512, 8)
    data = TensorDataset(rows, (rows.sum(1) > 0).long())
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 2))
    model = ComposerClassifier(module=net, num_classes=2)
    # The Trainer of pawl.composer is Composer's own; its save_... options go to pawl's saver.
    trainer = pawl.composer.Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=64, sampler=dist.get_sampler(data, shuffle=True)),
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
        max_duration=EPOCHS,
        run_name="example",
        seed=0,
        callbacks=[Print()],
        progress_bar=False,
        save_folder=root,
        save_interval="1ep",
        save_num_checkpoints_to_keep=3,
        autoresume=True,  # continues from the latest checkpoint in save_folder, if there is one
    )
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1])
