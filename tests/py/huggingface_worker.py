# SPDX-License-Identifier: Apache-2.0
"""Trainings with the real transformers and accelerate that test_huggingface.py starts."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import pawl
import pawl.accelerate
import pawl.huggingface

STEPS = 12


class Config(PretrainedConfig):
    model_type = "pawl-demo"


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.post_init()

    def forward(self, x: Any, labels: Any = None) -> Any:
        y = self.net(x)
        return {"loss": (y - labels).square().mean(), "logits": y}


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(24, 4, generator=numbers), torch.randn(24, 1, generator=numbers)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": self.y[index]}


class Kill(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)


class Fail(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 8:
            raise ValueError("no more data")


class Scales(TrainerCallback):
    """Gives the optimizer a scaler from the end of a step to the next one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"].scaler = torch.amp.GradScaler("cpu", init_scale=128.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"].scaler = None


def train(
    folder: pathlib.Path,
    saver: Any,
    *more: Any,
    resume: bool = True,
    save_steps: int = 3,
    data: Any = None,
    first: tuple[Any, ...] = (),
    **others: Any,
) -> Any:
    set_seed(7)
    given = {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 6} | others
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_steps=save_steps,
        logging_steps=3,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **given,
    )
    model = Model(Config())
    tests = Rows() if data is None else data
    trainer = Trainer(model, args, train_dataset=Rows(), eval_dataset=tests, callbacks=[*first, saver, *more])
    trainer.train(resume_from_checkpoint=saver.resume() if resume else None)
    return model, trainer.state


def saver(folder: pathlib.Path) -> Any:
    return pawl.huggingface.Saver(folder / "run", num_to_keep=3)


def loop(folder: pathlib.Path, root: str, kill: int | None) -> Any:
    """A loop of Accelerate's."""
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    meter = torch.optim.swa_utils.AveragedModel(accelerator.unwrap_model(model))
    accelerator.register_for_checkpointing(meter)
    rows = Rows()
    with pawl.accelerate.AcceleratorSaver(accelerator, folder / root, num_to_keep=2) as keeper:
        restored = keeper.restore()
        for step in range(restored.step + 1 if restored else 0, STEPS):
            if step == kill:
                keeper.manager.wait_until_finished()
                os.kill(os.getpid(), signal.SIGKILL)
            loss = (model(rows.x) - rows.y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            meter.update_parameters(accelerator.unwrap_model(model))
            keeper.save(step, metrics={"loss": loss.item()})
    return [*accelerator.unwrap_model(model).state_dict().values(), *meter.state_dict().values()]


def main() -> None:
    folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
    if what == "kill":
        train(folder, saver(folder), Kill())
    elif what == "resume":
        model, state = train(folder, saver(folder))
        other, whole = train(folder, pawl.huggingface.Saver(folder / "fresh"))
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
        assert state.global_step == whole.global_step == STEPS
        losses = [[row["loss"] for row in one.log_history if "loss" in row] for one in (state, whole)]
        assert losses[0] == losses[1]
        assert not list((folder / "out").glob("checkpoint-*"))
    elif what == "twice":
        keeper = saver(folder)
        for _ in range(2):
            train(folder, keeper, resume=False, save_steps=STEPS)
    elif what == "evaluated":
        given = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "threshold": 9.0}}
        given |= {"metric_for_best_model": "eval_a_loss", "eval_steps": 3}
        data = {"a": Rows(), "b": Rows()}
        keeper = pawl.huggingface.Saver(folder / "run", score_attribute="eval_b_loss")
        _, whole = train(folder, keeper, data=data, **given)
        shutil.rmtree(folder / "run" / "checkpoints" / "checkpoint_000004")
        model, state = train(folder, pawl.huggingface.Saver(folder / "run"), data=data, **given)
        rates = [[row["learning_rate"] for row in one.log_history if "loss" in row] for one in (state, whole)]
        assert rates[0] == rates[1]
        assert state.best_metric == whole.best_metric and state.best_global_step == whole.best_global_step
    elif what == "fails":
        keeper = pawl.huggingface.Saver(folder / "run")
        try:
            train(folder, keeper, Fail())
        except ValueError as error:
            failure = error  # its traceback keeps the Trainer
        second = pawl.huggingface.Saver(folder / "run")
        assert (second.resume() or "").endswith("checkpoint-6")
        _, state = train(folder, second)
        assert state.global_step == STEPS and failure is not None and keeper is not second
    elif what == "leaves":
        try:
            with pawl.huggingface.Saver(folder / "run", save_on_exception=True) as keeper:
                train(folder, keeper, Fail())
        except ValueError as error:
            assert not hasattr(error, "__notes__"), error.__notes__
        with pawl.CheckpointManager(folder / "run") as manager:  # the lease is free
            assert manager.all_steps() == [3, 6, 8]
            restored = manager.restore()
            assert restored is not None and restored.interrupted
        _, state = train(folder, pawl.huggingface.Saver(folder / "run"))
        assert state.global_step == STEPS
    elif what == "scaler":
        keeper = saver(folder)
        train(folder, keeper, first=(Scales(),), eval_strategy="no")
        assert torch.load(pathlib.Path(keeper.resume() or "") / "scaler.pt")["scale"] == 128
    elif what == "refused":
        for word, given in (
            ("load_best_model_at_end", {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}),
            ('save_strategy is "no"', {"save_strategy": "no"}),
            ('save_strategy is "best"', {"save_strategy": "best", "metric_for_best_model": "eval_loss"}),
        ):
            try:
                train(folder, saver(folder), save_steps=6, **given)
            except pawl.PawlError as error:
                assert word in str(error), error
            else:
                raise AssertionError(word)
    elif what == "accumulated":
        counts = []
        for theirs in (True, False):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
            model = accelerator.prepare(torch.nn.Linear(1, 1))
            for _ in range(3):
                with accelerator.accumulate(model):
                    pass
            again = Accelerator(cpu=True, gradient_accumulation_steps=4)
            again.prepare(torch.nn.Linear(1, 1))
            if theirs:
                accelerator.save_state(str(folder / "theirs"))
                again.load_state(str(folder / "theirs"))
            else:
                with pawl.accelerate.AcceleratorSaver(accelerator, folder / "ours") as keeper:
                    keeper.save(1)
                with pawl.accelerate.AcceleratorSaver(again, folder / "ours") as keeper:
                    keeper.restore()
            counts.append(again.step)
        assert counts == [3, 3], counts
    elif what == "loop-kill":
        loop(folder, "loop", 7)
    elif what == "loop":
        ours, fresh = loop(folder, "loop", None), loop(folder, "fresh-loop", None)
        assert all(torch.equal(a, b) for a, b in zip(ours, fresh, strict=True))


if __name__ == "__main__":
    main()
