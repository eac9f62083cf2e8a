# SPDX-License-Identifier: Apache-2.0
"""Accelerate: your own training loop saves through pawl in the background, and continues.

    model, optimizer = accelerator.prepare(model, optimizer)
    with pawl.accelerate.AcceleratorSaver(accelerator, "runs/demo", num_to_keep=3) as saver:
        restored = saver.restore()                          # None on a fresh run
        for step in range(restored.step + 1 if restored else 0, 10_000):
            ...
            saver.save(step, metrics={"loss": loss.item()})

If every process of a job has the complete model (DDP), one copy is saved.
"""

from __future__ import annotations

import os
from typing import Any

from . import _options
from ._holds import HoldsManager
from ._pawl import Ticket, UnsupportedError
from .manager import CheckpointManager
from .records import Restored
from .rng import rng_state

__all__ = ["AcceleratorSaver"]


class _Accumulation:
    """The Accelerator's count of batches, by which it accumulates gradients."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._accelerator.step = state["step"]


class AcceleratorSaver(HoldsManager):
    """Saves and restores what an Accelerator has prepared: models, optimizers, schedulers, the
    scaler, and data loaders that keep their own state. Registered objects, the count of accumulated
    batches, and the random generators of each process are in it, too. All processes must call it.
    ``manager`` is the run's CheckpointManager.

    Other data loaders begin again, as after Accelerate's own ``load_state``: call their
    ``set_epoch`` and ``accelerator.skip_first_batches``.

    Args:
        accelerator: The Accelerator.
        root: The run's folder or URL.
        options: Options of ``CheckpointManager``.

    Raises:
        UnsupportedError: The models are sharded.
    """

    def __init__(self, accelerator: Any, root: str | os.PathLike[str], **options: Any) -> None:
        kind = str(accelerator.distributed_type)
        if not kind.endswith(".NO") and ".MULTI_" not in kind:
            raise UnsupportedError(f"pawl.accelerate saves models that are complete in each process, not {kind}")
        self._accelerator = accelerator
        self.manager = CheckpointManager(
            root, **_options.with_rank(options, accelerator.process_index, accelerator.num_processes)
        )

    def state(self) -> dict[str, Any]:
        """The state that is saved.

        Returns:
            A tree of the prepared objects.
        """
        a = self._accelerator
        loaders = [loader for loader in a._dataloaders if getattr(loader, "use_stateful_dataloader", False)]
        tree = {
            "models": [a.unwrap_model(model) for model in a._models],
            "optimizers": list(a._optimizers),
            "schedulers": list(a._schedulers),
            "objects": list(a._custom_objects),
            "loaders": loaders,
            "accumulation": _Accumulation(a),
            "rng": rng_state(),
        }
        return tree if a.scaler is None else {**tree, "scaler": a.scaler}

    def save(self, step: int, **given: Any) -> Ticket | None:
        """As ``CheckpointManager.save``.

        Args:
            step: The training's counter.
            given: More arguments of ``CheckpointManager.save``.

        Returns:
            The ticket; None when no save is due.
        """
        return self.manager.save(step, self.state(), **given)

    def restore(self, **given: Any) -> Restored[Any] | None:
        """As ``CheckpointManager.restore``, into the prepared objects.

        Args:
            given: Arguments of ``CheckpointManager.restore``.

        Returns:
            What was restored; None on a fresh run.
        """
        return self.manager.restore(self.state(), **given)
