# SPDX-License-Identifier: Apache-2.0
"""Hugging Face: the Trainer of transformers saves through pawl in the background.

    saver = pawl.huggingface.Saver("runs/demo", num_to_keep=3)
    trainer = Trainer(model, args, train_dataset=data, callbacks=[saver])
    with saver:                                             # closes the run, also by an exception
        trainer.train(resume_from_checkpoint=saver.resume())    # None on a fresh run

If every process of a job has the complete model (DDP), one copy is saved. For loops of Accelerate
see pawl.accelerate.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import threading
import weakref
from types import TracebackType
from typing import Any, Self

import torch

from . import _checks, _options
from ._holds import leave, newest
from ._pawl import PawlError, UnsupportedError, UsageError
from .accelerate import AcceleratorSaver
from .manager import CheckpointManager
from .rng import RngState

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object

__all__ = ["AcceleratorSaver", "Saver"]

_log = logging.getLogger("pawl")
_savers: weakref.WeakSet[Saver] = weakref.WeakSet()


class Saver(TrainerCallback):
    """Callback of the Trainer: pawl saves wherever the Trainer would save.

    That depends on the Trainer's ``save_strategy`` ("steps" or "epoch"). A checkpoint has the
    model, optimizer, scheduler, random generators and the Trainer's own state. If an evaluation is
    due at that step, it runs first, and its metrics are stored with the checkpoint
    (``score_attribute="eval_loss"``).

    As a context manager it closes the run when an exception ends the training. Only then
    ``save_on_exception`` has an effect: the Trainer does not report exceptions. Without it the run
    stays open until the next training of this thread in the same folder.

    Args:
        root: The run's folder or URL.
        save_interval: When to save in addition ("500ba" or 500 counts optimizer steps). Default:
            None.
        options: Options of ``CheckpointManager``.

    Raises:
        ImportError: transformers is not installed.
    """

    def __init__(self, root: str | os.PathLike[str], *, save_interval: Any = None, **options: Any) -> None:
        if TrainerCallback is object:
            raise ImportError("pawl.huggingface.Saver needs transformers: pip install 'libpawl[huggingface]'")
        self._root = _checks.path("root", root)
        self._by_interval = save_interval is not None
        self._options = _options.with_rank({"signals": False, **options, "save_interval": save_interval}, 0, 1)
        self._manager: CheckpointManager | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._saved = -1
        self._after = ""  # what a save that is due still waits for
        self._metrics: dict[str, Any] = {}
        self._rng: dict[str, Any] = {}
        self._n_logs = 0
        self._thread = 0  # of the training
        self._is_alone = True  # with several ranks the others would not join in a save on the way out
        self._last: tuple[Any, Any, dict[str, Any]] | None = None  # of the last step, for save_on_exception
        _savers.add(self)

    def close(self) -> None:
        """Waits for running saves and releases the run. The end of the training does it, too.

        Raises:
            PawlError: The first error that no call has raised.
        """
        manager, self._manager, self._last = self._manager, None, None
        if manager is not None:
            manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        manager, last = self._manager, self._last
        if exc is None or manager is None:
            self.close()
            return
        self._manager = self._last = None
        is_new = last is not None and last[0].global_step != self._saved
        leave(manager, exc, (lambda: self._interrupted(*last)) if last is not None and is_new else None)

    def resume(self) -> str | None:
        """Writes the newest valid checkpoint in the Trainer's own form, to continue from.

        Returns:
            A folder in temporary space, which exists until the training begins; None on a fresh
            run.
        """
        for one in self._others():
            try:
                if one._manager is not None:
                    one._manager.wait_until_finished()
            except PawlError as error:
                _log.warning("%s: a save of an earlier training has failed: %s", self._root, error)
        if (restored := newest(self._root)) is None:
            return None
        state, self._folder = restored.state, tempfile.TemporaryDirectory(prefix="pawl-")
        folder = os.path.join(self._folder.name, f"checkpoint-{restored.step}")
        os.mkdir(folder)
        rng = state["rng"]
        generators = {"python": rng["python"], "numpy": rng["numpy"], "cpu": rng["torch"], "cuda": rng.get("cuda")}
        numpy = rng["numpy"]["state"]
        generators["numpy"] = ("MT19937", numpy["key"], numpy["pos"], rng["numpy"]["has_gauss"], rng["numpy"]["gauss"])
        torch.save(state["model"], os.path.join(folder, "pytorch_model.bin"))
        torch.save(state["optimizer"], os.path.join(folder, "optimizer.pt"))
        torch.save(state["lr_scheduler"], os.path.join(folder, "scheduler.pt"))
        if "scaler" in state:
            torch.save(state["scaler"], os.path.join(folder, "scaler.pt"))
        torch.save(generators, os.path.join(folder, "rng_state.pth"))
        with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
            file.write(state["trainer_state"])
        return folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if args.fsdp or args.deepspeed:
            raise UnsupportedError(
                "pawl.huggingface.Saver saves models that are complete in each process; this one is not"
            )
        if args.load_best_model_at_end and args.save_strategy != "best":
            raise UnsupportedError(
                "load_best_model_at_end: the Trainer knows only the checkpoints that it writes; set it to False, give "
                'pawl.huggingface.Saver a score_attribute, and call CheckpointManager.restore(which="best")'
            )
        if not self._by_interval and args.save_strategy in ("no", "best"):
            raise UsageError(
                f'save_strategy is "{args.save_strategy.value}", so pawl.huggingface.Saver saves nothing; expected '
                '"steps", "epoch" or a save_interval'
            )
        self._saved, self._after, self._last = -1, "", None  # of an earlier training
        self._thread, self._is_alone = threading.get_ident(), args.world_size == 1
        for one in self._others():
            # An exception has ended that training: this thread is here.
            if one._thread == self._thread:
                try:
                    one.close()
                except Exception as error:  # also of its hooks
                    _log.warning("%s: closing the run of an earlier training failed: %s", self._root, error)
        if state.is_world_process_zero and self._manager is None:
            self._manager = CheckpointManager(self._root, **self._options)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._save_waiting(state, control, given)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._save_waiting(state, control, given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._folder is not None:
            self._folder.cleanup()  # it has been read
            self._folder = None
        self._offer(state, control, given)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._save_waiting(state, control, given)
        self._offer(state, control, given)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **given: Any) -> None:
        # Another data set may follow, then a step of the scheduler: the next event saves.
        if self._after == "evaluation":
            self._note(state, metrics)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if self._after == "log":
            self._note(state, None)
            self._save(state, control, given)
        elif "train_runtime" in (logs or {}):  # the training is over
            self._save_waiting(state, control, given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._save_waiting(state, control, given)
        self.close()

    def _others(self) -> list[Saver]:
        """Savers of this process that have the same run open."""
        mine = _place(self._root)
        return [one for one in _savers if one is not self and one._manager is not None and _place(one._root) == mine]

    def _offer(self, state: Any, control: Any, given: dict[str, Any]) -> None:
        due = control.should_save
        control.should_save = False  # the Trainer itself must not save
        if self._is_alone and self._manager is not None and self._options.get("save_on_exception"):
            self._last = state, control, given
        if self._manager is None or state.global_step == self._saved:
            return
        if self._by_interval:
            due = self._manager.should_save(state.global_step, _progress(state)) or due
        if due:
            self._after = "evaluation" if control.should_evaluate else "log" if control.should_log else ""
            self._metrics = {}
            self._note(state, None)
            if not self._after:
                self._save(state, control, given)

    def _note(self, state: Any, metrics: Any) -> None:
        """What the next batch and the end of the training change before the save."""
        self._metrics |= metrics or {}
        self._rng, self._n_logs = RngState().state_dict(), len(state.log_history)

    def _save_waiting(self, state: Any, control: Any, given: dict[str, Any]) -> None:
        if self._after:
            self._save(state, control, given)

    def _save(self, state: Any, control: Any, given: dict[str, Any]) -> None:
        self._after = ""
        if self._manager is None:
            return
        tree = self._tree(state, control, given)
        self._manager.save(state.global_step, tree, metrics=self._metrics, progress=_progress(state), force=True)
        self._saved = state.global_step

    def _interrupted(self, state: Any, control: Any, given: dict[str, Any]) -> dict[str, Any]:
        self._note(state, None)
        tree = self._tree(state, control, given)
        more = {"metrics": None, "metadata": None, "progress": _progress(state)}
        return {"step": state.global_step, "state": tree, **more}

    def _tree(self, state: Any, control: Any, given: dict[str, Any]) -> dict[str, Any]:
        state.stateful_callbacks["TrainerControl"] = control.state()
        tree = {name: given[name] for name in ("model", "optimizer", "lr_scheduler")}
        if (scaler := getattr(given["optimizer"], "scaler", None)) is not None:  # of fp16
            tree["scaler"] = scaler
        tree["rng"] = self._rng
        tree["trainer_state"] = json.dumps(
            {**dataclasses.asdict(state), "log_history": state.log_history[: self._n_logs]}
        )
        return tree


def _place(root: str) -> str:
    return root if "://" in root else os.path.realpath(root)


def _progress(state: Any) -> dict[str, float]:
    return {"epoch": int(state.epoch + 1e-6), "batch": state.global_step}  # the Trainer counts parts of epochs
