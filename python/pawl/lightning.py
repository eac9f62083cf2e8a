# SPDX-License-Identifier: Apache-2.0
"""Lightning: checkpoints as pawl writes them, in the background, atomic and verified.

    saver = pawl.lightning.Saver("runs/demo", save_interval="1ep", num_to_keep=3)
    trainer = Trainer(callbacks=[saver], plugins=[pawl.lightning.CheckpointIO()])
    trainer.fit(model, ckpt_path=saver.ckpt_path())     # None on a fresh run

``CheckpointIO`` alone writes the checkpoints of Lightning's own ``ModelCheckpoint`` and
``save_checkpoint`` in pawl's format. ``Saver`` keeps a run with pawl's intervals and retention.
Both save the state that Lightning gives to one process. FSDP and DeepSpeed write by themselves: use
``pawl.torch`` for them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any

import torch.distributed as dist

from . import _checks, _options, _pawl
from ._holds import leave, newest
from ._pawl import NotFoundError, UsageError
from .checkpoint import is_foreign, load
from .manager import CheckpointManager
from .options import Ranks
from .rng import RngState

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.plugins.io import CheckpointIO as _CheckpointIO
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from lightning.pytorch.utilities.exceptions import SIGTERMException
except ImportError as error:
    raise ImportError(f"pawl.lightning needs Lightning: pip install 'libpawl[lightning]' ({error})") from None

__all__ = ["CheckpointIO", "Saver"]


class CheckpointIO(_CheckpointIO):
    """Plugin of the Trainer: each checkpoint is a folder of pawl's at the path that Lightning
    names.

    ``save_checkpoint`` returns when the state has been copied. One save runs at a time. The next
    call raises an error of a background save. A checkpoint that Lightning removes is deleted once
    the next one is durable, and stays if that save fails. Loading takes these folders, a run's
    folder or URL (its newest valid checkpoint), and files of Lightning's own.
    """

    def __init__(self) -> None:
        self._run: _pawl.Run | None = None
        self._doomed: list[str] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if storage_options is not None:
            raise UsageError(f"pawl.lightning takes no storage_options, received {storage_options!r}")
        self.wait()
        place = _checks.path("path", path)
        if "://" not in place:
            os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
        self._run = _pawl.Run(place, single=True, overwrite=True)
        self._run.save(int(checkpoint.get("global_step", 0)), checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:
        """Loads a checkpoint. A folder of pawl never runs code, whatever ``weights_only`` is.

        Args:
            path: A folder of pawl's, a run (its newest valid checkpoint), or a file of Lightning's
                own.
            map_location: For files of Lightning's own.
            weights_only: For files of Lightning's own.

        Returns:
            The dict that Lightning saved.

        Raises:
            NotFoundError: There is no checkpoint.
        """
        self.wait()
        place = _checks.path("path", path)
        if os.path.isfile(place) or is_foreign(place):
            return TorchCheckpointIO().load_checkpoint(path, map_location, weights_only)
        try:
            return load(place)
        except NotFoundError as error:
            if (restored := newest(place)) is None:
                raise NotFoundError(f"{place} has no checkpoint") from error
            return restored.state

    def remove_checkpoint(self, path: Any) -> None:
        self._doomed.append(_checks.path("path", path))
        if self._run is None:
            self.wait()

    def wait(self) -> None:
        """Waits until what was saved is durable, then removes what it replaces."""
        run, self._run = self._run, None
        doomed, self._doomed = self._doomed, []
        if run is not None:
            run.close()  # waits; if it raises an error, nothing is removed, also later
        for place in doomed:
            if "://" in place:
                _remove_far(place)
            elif os.path.isdir(place) and not os.path.islink(place):
                with contextlib.suppress(FileNotFoundError):
                    # First: the rest is then not a checkpoint.
                    os.unlink(os.path.join(place, "manifest.json"))
                shutil.rmtree(place)
            elif os.path.lexists(place):
                os.unlink(place)

    teardown = wait


def _remove_far(url: str) -> None:
    with contextlib.suppress(NotFoundError):  # removed already
        run = _pawl.Run(url, single=True, maintenance=True)
        try:
            for info in run.list():
                run.remove(info["id"], True)
        finally:
            run.close()


class _AtTheEnd(Checkpoint):
    """Lightning calls a Checkpoint after all other callbacks, at the end of an epoch also after the
    module. So the state has what these changed.

    It is in the Trainer only during ``fit``: elsewhere Lightning takes it for a ModelCheckpoint.
    """

    def __init__(self, saver: Saver) -> None:
        self.saver = saver

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.saver._offer(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.saver._offer(trainer, trainer.current_epoch + 1)


class Saver(Callback):
    """Callback: saves the complete state of the training and the random generators into a run.

    When Lightning receives SIGTERM, the state is saved once more. The metrics are the Trainer's.

    Args:
        root: The run's folder or URL.
        save_interval: Counts batches ("500ba" or 500: optimizer steps) or epochs ("1ep": after each
            epoch, validation included). Default: "1ep".
        options: Options of ``CheckpointManager``.
    """

    def __init__(self, root: str | os.PathLike[str], *, save_interval: str | int = "1ep", **options: Any) -> None:
        self._root = _checks.path("root", root)
        self._options = _options.with_rank({"signals": False, **options, "save_interval": save_interval}, 0, 1)
        self._manager: CheckpointManager | None = None
        self._saved = -1
        self._gathers = False  # whether there are several ranks, with generators of their own

    def ckpt_path(self) -> str | None:
        """What ``fit`` resumes from with the plugin ``CheckpointIO``.

        Returns:
            The run if it holds a checkpoint, else None.
        """
        try:
            with CheckpointManager(self._root, read_only=True, ranks=Ranks(rank=0, world_size=1)) as manager:
                return self._root if manager.checkpoints(with_bad=True) else None
        except NotFoundError:
            return None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        trainer.callbacks = [*self._others(trainer), _AtTheEnd(self)]  # a new list: Lightning walks the old one
        self._saved = -1  # of an earlier training
        self._gathers = trainer.world_size > 1 and dist.is_available() and dist.is_initialized()
        if trainer.is_global_zero and self._manager is None:
            self._manager = CheckpointManager(self._root, **self._options)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, SIGTERMException):
            self._offer(trainer, trainer.current_epoch, force=True)
        manager = self._end(trainer)
        if manager is not None:
            # With several ranks the others would not join in.
            is_new = trainer.world_size == 1 and trainer.global_step not in (0, self._saved)
            leave(manager, exception, (lambda: self._interrupted(trainer)) if is_new else None)

    def _interrupted(self, trainer: Any) -> dict[str, Any]:
        step = trainer.global_step
        return {
            "step": step,
            "state": trainer._checkpoint_connector.dump_checkpoint(weights_only=False),
            "metrics": None,
            "metadata": None,
            "progress": {"epoch": trainer.current_epoch, "batch": step},
        }

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        manager = self._end(trainer)
        try:
            if manager is not None:
                manager.close()
        finally:
            if stage == "fit":
                trainer.strategy.barrier()  # every rank then finds what was saved

    def _end(self, trainer: Any) -> CheckpointManager | None:
        trainer.callbacks = self._others(trainer)
        manager, self._manager = self._manager, None
        return manager

    def _others(self, trainer: Any) -> list[Any]:
        return [one for one in trainer.callbacks if not isinstance(one, _AtTheEnd) or one.saver is not self]

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks. One of them writes the generators of all."""
        own = RngState().state_dict()
        if not self._gathers:
            return {"rng": own}
        gathered = [own] * dist.get_world_size()
        dist.all_gather_object(gathered, own)
        first, *others = gathered
        return {"rng": first, "other_ranks": others}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the generators. A rank that the saved training did not have keeps its own."""
        saved = [state_dict["rng"], *state_dict.get("other_ranks", ())]
        rank = dist.get_rank() if self._gathers else 0
        if rank < len(saved):
            RngState().load_state_dict(saved[rank])

    def _offer(self, trainer: Any, epochs: int, force: bool = False) -> None:
        step = trainer.global_step
        progress = {"epoch": epochs, "batch": step}
        due = self._manager is not None and (force or self._manager.should_save(step, progress)) and step != self._saved
        if not trainer.strategy.broadcast(due):
            return
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # what save_checkpoint would write
        if self._manager is not None:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._manager.save(step, state, metrics=metrics, progress=progress, force=True)
        self._saved = step
