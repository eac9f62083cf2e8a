# SPDX-License-Identifier: Apache-2.0
"""Trainings with the real Lightning that test_lightning.py starts."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import sys
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from ports import free_port
from torch.utils.data import DataLoader, TensorDataset

import pawl
import pawl.lightning
from pawl import _pawl

EPOCHS = 4


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8, "name": "demo"})
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, index: int) -> Any:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    def train_dataloader(self) -> Any:
        numbers = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(24, 4, generator=numbers), torch.randn(24, 1, generator=numbers))
        return DataLoader(data, 4, shuffle=True)


class Ends(Model):
    """Counts its epochs when they end, where it also logs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.zeros(()))

    def on_train_epoch_end(self) -> None:
        self.ends += 1
        self.log("ends", float(self.ends))


class Fails(Callback):
    """Raises in the middle of the second epoch."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if trainer.global_step == 8:
            raise ArithmeticError


class Kill(Callback):
    """Ends the process in the middle of an epoch, with nothing said before."""

    def __init__(self, step: int, sig: int) -> None:
        self.step, self.sig = step, sig

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.sig)


def trainer(folder: pathlib.Path, *callbacks: Any, plugins: bool = True, epochs: int = EPOCHS, **more: Any) -> Any:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks)}
    return Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=list(callbacks),
        plugins=[pawl.lightning.CheckpointIO()] if plugins else [],
        **quiet,
        **more,
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def own_checkpoint(folder: pathlib.Path) -> None:
    """What Lightning itself writes is read as torch reads it, and goes back into a file that Lightning resumes from."""
    seed_everything(7)
    own = trainer(folder, ModelCheckpoint(dirpath=folder, save_last=True, monitor="loss"), plugins=False)
    own.fit(Model())
    wanted = torch.load(folder / "last.ckpt", weights_only=False)
    loaded = pawl.load(folder / "last.ckpt")
    assert same(loaded, wanted) and loaded["optimizer_states"][0]["state"] and loaded["callbacks"]
    assert not same(loaded, wanted | {"epoch": -1})
    pawl.save(loaded, folder / "again.pt")
    assert same(torch.load(folder / "again.pt", weights_only=True), wanted)
    (folder / "again.pt").rename(folder / "again.ckpt")
    model = Model()
    longer = trainer(folder, plugins=False, epochs=EPOCHS + 1)
    longer.fit(model, ckpt_path=folder / "again.ckpt", weights_only=True)
    assert longer.current_epoch == EPOCHS + 1


def failed_save(folder: pathlib.Path) -> None:
    io = pawl.lightning.CheckpointIO()
    io.save_checkpoint({"global_step": 1, "w": torch.ones(4)}, folder / "1.ckpt")
    io.wait()
    failing = functools.partial(_pawl.Run, **{"io.fault": ("publish", 1, -3, True)})
    with mock.patch.object(_pawl, "Run", failing):  # in the background
        io.save_checkpoint({"global_step": 2, "w": torch.ones(4)}, folder / "2.ckpt")
    io.remove_checkpoint(folder / "1.ckpt")
    try:
        io.save_checkpoint({"global_step": 3, "w": torch.ones(4)}, folder / "3.ckpt")
    except pawl.PawlError:
        pass
    else:
        raise AssertionError("the error of the save was lost")
    io.teardown()
    assert io.load_checkpoint(folder / "1.ckpt")["global_step"] == 1
    io.save_checkpoint({"global_step": 4, "w": torch.ones(4)}, folder / "4.ckpt")
    io.remove_checkpoint(folder / "1.ckpt")
    io.teardown()
    assert not (folder / "1.ckpt").exists()


def on_ranks(folder: pathlib.Path) -> None:
    """A training run of two processes. Lightning starts the second one by this same program."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    drawn = []  # after each fit
    for epochs in (1, 2):
        saver = pawl.lightning.Saver(folder / "run")
        seed_everything(7 + rank)
        pair = trainer(folder, saver, epochs=epochs, devices=2, strategy="ddp")
        pair.fit(Model(), ckpt_path=saver.ckpt_path() if epochs == 2 else None)
        drawn.append(torch.rand(1).item())
    seed_everything(7 + rank)
    saver = pawl.lightning.Saver(folder / "fresh")
    trainer(folder, saver, epochs=2, devices=2, strategy="ddp").fit(Model())
    (folder / f"rank-{rank}").write_text(repr([drawn[-1], torch.rand(1).item()]))


def weights(model: Any) -> list[Any]:
    return [value.clone() for value in model.state_dict().values()]


def fit(folder: pathlib.Path, *callbacks: Any, saver: Any = None) -> list[Any]:
    seed_everything(7)
    model = Model()
    given = [saver, *callbacks] if saver else list(callbacks)
    trainer(folder, *given).fit(model, ckpt_path=saver.ckpt_path() if saver else None)
    return weights(model)


def kept(folder: pathlib.Path) -> Any:
    return pawl.lightning.Saver(folder / "run", num_to_keep=2)


def main() -> None:
    folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
    if what == "kill":
        fit(folder, Kill(15, signal.SIGKILL), saver=kept(folder))
    elif what == "term":
        fit(folder, Kill(15, signal.SIGTERM), saver=pawl.lightning.Saver(folder / "run", save_interval="100ep"))
    elif what == "resume":
        assert kept(folder).ckpt_path() == str(folder / "run")
        resumed = fit(folder, saver=kept(folder))
        fresh = fit(folder, saver=pawl.lightning.Saver(folder / "other"))
        assert all(torch.equal(a, b) for a, b in zip(resumed, fresh, strict=True))
        torch.rand(1)
        pathlib.Path(folder, "steps").write_text(repr(pawl.CheckpointManager(folder / "run").all_steps()))
    elif what == "twice":
        saver = pawl.lightning.Saver(folder / "run", save_interval="100ep")
        for _ in range(2):
            with contextlib.suppress(SIGTERMException):
                trainer(folder, saver, Kill(15, signal.SIGTERM)).fit(Model())
    elif what == "ranks":
        on_ranks(folder)
    elif what == "ends":
        stopping = EarlyStopping("ends", patience=9, check_on_train_epoch_end=True)
        trainer(folder, pawl.lightning.Saver(folder / "run", score_attribute="ends"), stopping).fit(Ends())
    elif what == "fails":
        for _ in range(2):
            with contextlib.suppress(ArithmeticError):
                trainer(folder, pawl.lightning.Saver(folder / "run"), Fails()).fit(Model())
    elif what == "leaves":
        with contextlib.suppress(ArithmeticError):
            saver = pawl.lightning.Saver(folder / "run", save_on_exception=True)
            trainer(folder, saver, Fails()).fit(Model())
    elif what == "own":
        own_checkpoint(folder)
    elif what == "url":
        io = pawl.lightning.CheckpointIO()
        for step in range(3):
            io.save_checkpoint({"global_step": step}, f"{sys.argv[3]}/{step}.ckpt")
            if step > 0:
                io.remove_checkpoint(f"{sys.argv[3]}/{step - 1}.ckpt")
        io.teardown()
        io.remove_checkpoint(f"{sys.argv[3]}/0.ckpt")  # once more
    elif what == "failed":
        failed_save(folder)
    elif what == "plugin":
        best = ModelCheckpoint(dirpath=folder, save_top_k=1, save_last=True)
        fit(folder, best)
        model = Model()
        again = trainer(folder)
        again.fit(model, ckpt_path=folder / "last.ckpt")
        loaded = pawl.load(folder / "last.ckpt")
        assert all(torch.equal(loaded["state_dict"][k], v) for k, v in model.state_dict().items())
        assert loaded["hyper_parameters"] == {"width": 8, "name": "demo"}
        again.save_checkpoint(folder / "by_hand.ckpt")
        try:
            again.save_checkpoint(folder / "by_hand.ckpt", storage_options={"a": 1})
        except pawl.UsageError as error:
            assert "storage_options" in str(error)
        again.strategy.teardown()
        assert pawl.load(folder / "by_hand.ckpt")["epoch"] == EPOCHS
        torch.save(loaded, folder / "torch.ckpt")
        io = pawl.lightning.CheckpointIO()
        assert io.load_checkpoint(folder / "torch.ckpt", weights_only=False)["epoch"] == loaded["epoch"]
        blocked = folder / "file"
        blocked.write_text("no folder")
        try:
            io.save_checkpoint({"a": object()}, folder / "odd.ckpt")
        except pawl.UnsupportedError as error:
            assert "'a'" in str(error)
        else:
            raise AssertionError("an object was taken")


if __name__ == "__main__":
    main()
