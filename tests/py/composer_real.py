# SPDX-License-Identifier: Apache-2.0
"""One training run with the real Composer, in a process of its own (test_composer.py starts it with the interpreter that
composer_venv.py makes): composer_real.py '{"folder": ..., ...}' prints one line of JSON with what has become of it.

``saver``: "pawl", "trainer" (pawl's Trainer) or "composer", whose own is the peer. ``kill``: SIGKILL to oneself after so
many batches. ``bucket``: the URL of one that Composer's RemoteUploaderDownloader takes the files to. Several of these
processes, started by torchrun, are ranks of one training run.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import torch

# torchvision's own operators need CUDA's libraries in the wheel that PyPI has; only their names are needed here.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import composer  # noqa: E402
import composer.loggers  # noqa: E402
from composer.core import Callback  # noqa: E402
from composer.models import ComposerClassifier  # noqa: E402
from composer.utils import dist  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from waiting import HANG_SECONDS  # noqa: E402

import pawl.composer  # noqa: E402


class Watcher(Callback):  # type: ignore[misc]
    """The losses, and a kill when the save of a batch has just begun; all before it are durable then."""

    def __init__(self, kill: int | None) -> None:
        self.kill = kill
        self.saver: Any = None
        self.losses: list[float] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        if self.kill is not None and int(state.timestamp.batch) == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.loss))
        if self.kill is not None and int(state.timestamp.batch) == self.kill:
            self.saver.wait()


class Blocked:
    """How long the events of a saver take."""

    def __init__(self, saver: Any) -> None:
        self.seconds: list[float] = []
        inner = saver._save_checkpoint

        def save(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*args)
            finally:
                self.seconds.append(time.perf_counter() - begin)

        saver._save_checkpoint = save


def model(width: int) -> ComposerClassifier:
    torch.manual_seed(3)
    layers = (torch.nn.Linear(8, width), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(width, 2))
    return ComposerClassifier(module=torch.nn.Sequential(*layers), num_classes=2)


def main() -> None:
    dist.initialize_dist("cpu", timeout=HANG_SECONDS)
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    samples = torch.randn(64, 8, generator=generator)
    data = TensorDataset(samples, (samples.sum(1) > 0).long())
    options = {"save_interval": "3ba", **given.get("options", {})}
    watcher = Watcher(given.get("kill"))
    net = model(given.get("width", 16))
    common = {
        "model": net,
        "train_dataloader": DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
        "max_duration": given.get("max_duration", "2ep"),
        "optimizers": torch.optim.Adam(net.parameters(), lr=1e-2),
        "run_name": "run",
        "seed": 17,
        "device": "cpu",
        "progress_bar": False,
        "load_path": given.get("load_path"),
    }
    if given.get("bucket"):
        uploader = composer.loggers.RemoteUploaderDownloader(given["bucket"], use_procs=False)
        common["loggers"] = [uploader]
    if given["saver"] == "trainer":
        trainer = pawl.composer.Trainer(
            **common,
            callbacks=[watcher],
            save_folder=given["folder"],
            save_interval="3ba",
            save_latest_filename="latest-rank{rank}.pt",
            autoresume=True,
        )
        saver = next(one for one in trainer.state.callbacks if isinstance(one, pawl.composer.CheckpointSaver))
    else:
        kinds = {"pawl": pawl.composer.CheckpointSaver, "composer": composer.callbacks.CheckpointSaver}
        saver = kinds[given["saver"]](given["folder"], **options)
        trainer = composer.Trainer(**common, callbacks=[watcher, saver])
    watcher.saver = saver
    blocked = Blocked(saver)
    begun = int(trainer.state.timestamp.batch)
    trainer.fit()
    weights = [float(one.double().sum()) for one in net.state_dict().values() if one.is_floating_point()]
    saved = (
        []
        if given["saver"] == "composer"
        else [[int(at.batch), *map(str, at_paths)] for at, at_paths in saver.saved_checkpoints]
    )
    trainer.close()
    answer = {
        "rank": dist.get_global_rank(),
        "begun": begun,
        "losses": watcher.losses,
        "weights": weights,
        "saved": saved,
        "blocked": blocked.seconds,
        "is_callback": isinstance(saver, Callback),
        "files": sorted(one.name for one in pathlib.Path(given["folder"]).iterdir() if not one.name.startswith(".")),
    }
    os.write(1, f"\nANSWER {json.dumps(answer)}\n".encode())  # at once: ranks share this pipe


if __name__ == "__main__":
    main()
