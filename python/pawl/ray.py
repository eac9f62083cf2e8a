# SPDX-License-Identifier: Apache-2.0
"""Ray Train: workers of Ray's own TorchTrainer save through pawl directly into Ray's storage.

    def train_func(config):                                         # in every worker
        with pawl.ray.Saver() as saver:
            restored = saver.restore(state)                         # None on a fresh run
            for epoch in range(restored.step + 1 if restored else 0, 10):
                ...
                saver.report({"loss": loss}, epoch, state)          # blocks for the copy and Ray's barrier

``ray.train.report`` alone copies a checkpoint into Ray's storage while training waits. Here all
workers together write it there directly, without a copy. It becomes part of the run ``pawl`` in the
folder of Ray's run (a path, ``s3://`` or ``gs://``). When it is durable it is reported to Ray. Ray
still decides which checkpoints to keep and which is the latest (``CheckpointConfig``).

For trials of Ray Tune's own Tuner use TrialSaver.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from . import _files, _metrics, _options
from ._holds import HoldsManager
from ._pawl import NotFoundError, Ticket, UnsupportedError, UsageError, url_schemes
from ._ray_trial import TrialSaver
from .checkpoint import Checkpoint
from .manager import CheckpointManager
from .records import Restored

try:
    from pyarrow import fs as _fs
    from ray import train as _train
    from ray.train import CheckpointUploadMode as _Mode
except ImportError as error:
    raise ImportError(f"pawl.ray needs Ray Train of 2.51 or later: pip install 'libpawl[ray]' ({error})") from None

__all__ = ["Saver", "TrialSaver", "from_ray", "root", "to_ray", "upload"]

_RAYS = ("num_to_keep", "retention")
_SCHEMES = {"gcs": "gs"}  # Arrow's file systems whose name is not the scheme of their URLs


def to_ray(checkpoint: Checkpoint) -> Any:
    """A ``ray.train.Checkpoint`` of the same folder; one in memory is put into a new folder.

    Args:
        checkpoint: A checkpoint of pawl.

    Returns:
        Ray's checkpoint.
    """
    return _train.Checkpoint.from_directory(str(checkpoint.path or checkpoint.to_directory()))


def from_ray(checkpoint: Any) -> Checkpoint:
    """Converts a checkpoint of ``ray.train.get_checkpoint()`` that pawl wrote.

    The result is its folder, or a copy if it is not on a disk.

    Args:
        checkpoint: Ray's checkpoint.

    Returns:
        A checkpoint of pawl.
    """
    here = isinstance(checkpoint.filesystem, _fs.LocalFileSystem)
    return Checkpoint(checkpoint.path if here else checkpoint.to_directory())


def upload(checkpoint: Any, name: str) -> Any:
    """For ``ray.train.report(.., checkpoint_upload_fn=pawl.ray.upload)``.

    A checkpoint on the disk of Ray's storage is linked into the storage, and no byte is copied.
    This is safe, since files of pawl never change. Any other checkpoint is copied, as Ray does.

    Args:
        checkpoint: Ray's checkpoint.
        name: Name of its folder in the storage.

    Returns:
        The checkpoint in the storage.

    Raises:
        OSError: Something else has this name.
    """
    storage = _train.get_context().get_storage()
    target = storage.build_checkpoint_path_from_name(name)
    local = isinstance(storage.storage_filesystem, _fs.LocalFileSystem)
    if not local or not isinstance(checkpoint.filesystem, _fs.LocalFileSystem):
        return storage.persist_current_checkpoint(checkpoint, name)
    partial = _files.hidden(target)
    try:
        shutil.copytree(checkpoint.path, partial, copy_function=os.link)
        os.rename(partial, target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return storage.persist_current_checkpoint(checkpoint, name)
    return _train.Checkpoint(target, storage.storage_filesystem)


def root() -> str:
    """The run of pawl in the folder of Ray's run. Call it in a worker.

    Returns:
        Its path or URL.

    Raises:
        UnsupportedError: pawl has no store for Ray's storage.
    """
    storage = _train.get_context().get_storage()
    kind = storage.storage_filesystem.type_name
    if kind == "local":
        return f"{storage.experiment_fs_path}/pawl"
    scheme = _SCHEMES.get(kind, kind)
    if scheme not in url_schemes():
        raise UnsupportedError(f"Ray's storage is {kind}: give pawl.ray.Saver a path on a disk, s3:// or gs://")
    return f"{scheme}://{storage.experiment_fs_path}/pawl"


class Saver(HoldsManager):
    """The checkpoints of a run of Ray Train. Every worker makes one and calls it in the same way.
    ``manager`` is the run's CheckpointManager. Ray's
    ``CheckpointConfig(num_to_keep, checkpoint_score_attribute, ..)`` decides what is kept.

    Args:
        options: Options of ``CheckpointManager``, except those that delete checkpoints.

    Raises:
        UsageError: An option must be set in Ray instead.
    """

    def __init__(self, **options: Any) -> None:
        if given := [name for name in _RAYS if name in options]:
            raise UsageError(f"{given[0]}: Ray keeps and deletes the checkpoints; set it in Ray's CheckpointConfig")
        naming = options.get("naming")
        if naming is not None and naming.name_template is not None:
            raise UsageError("name_template: checkpoints have pawl's usual names here")
        context = _train.get_context()
        self._storage = context.get_storage()
        self._folder = f"{self._storage.experiment_fs_path}/pawl/checkpoints"
        self.manager = CheckpointManager(
            root(),
            **_options.with_rank({"signals": False, **options}, context.get_world_rank(), context.get_world_size()),
        )

    def report(
        self, metrics: Mapping[str, Any], step: int | None = None, state: object = None, **given: Any
    ) -> Ticket | None:
        """Calls ``ray.train.report`` with the state as checkpoint.

        The checkpoint is reported to Ray when it is durable on all workers. An error of the save
        ends the training.

        Args:
            metrics: Values by name; their numbers are the checkpoint's metrics.
            step: The training's counter; needed with a state.
            state: What to save. Default: None, the metrics alone.
            given: More arguments of ``CheckpointManager.save``.

        Returns:
            The ticket; None without a state or when no save is due.

        Raises:
            UsageError: A state has no step.
        """
        ticket = None
        if state is not None:
            if step is None:
                raise UsageError("report: a state needs a step")
            ticket = self.manager.save(step, state, metrics=_metrics.numbers_of(metrics), **given)
        soon, upload = None, {}
        if ticket is not None and self.manager.rank == 0:
            soon = _train.Checkpoint(self._folder, self._storage.storage_filesystem)
            upload = {"checkpoint_upload_fn": self._when_durable(ticket), "delete_local_checkpoint_after_upload": False}
        _train.report(dict(metrics), checkpoint=soon, checkpoint_upload_mode=_Mode.ASYNC, **upload)
        return ticket

    def restore(self, state: object = None, **given: Any) -> Restored[Any] | None:
        """Restores the newest valid checkpoint of this run.

        Durable checkpoints that were not yet reported to Ray count as well. They are reported now,
        so that Ray keeps or deletes them like all others.

        Args:
            state: Objects to restore into. Default: None, new objects.
            given: More arguments of ``CheckpointManager.restore``.

        Returns:
            What was restored; None on a fresh run.

        Raises:
            UsageError: Ray resumes from another run.
        """
        restored = self.manager.restore(state, **given)
        known = _train.get_checkpoint()
        if restored is None and known is not None:
            raise UsageError(f"Ray resumes from {known.path}, not from {self.manager.root}; see pawl.ray.from_ray")
        if restored is None:
            return None
        told = 0
        if known is not None:
            folder, name = os.path.split(known.path.rstrip("/"))
            told = int(name.rpartition("_")[2]) if folder == self._folder else restored.id
        for info in self.manager.checkpoints():
            if told < info.id <= restored.id:
                found = self._checkpoint(info.id) if self.manager.rank == 0 else None
                _train.report(dict(info.metrics), checkpoint=found, checkpoint_upload_mode=_Mode.NO_UPLOAD)
        return restored

    def _checkpoint(self, id: int) -> Any:
        return _train.Checkpoint(f"{self._folder}/checkpoint_{id:06d}", self._storage.storage_filesystem)

    def _when_durable(self, ticket: Ticket) -> Callable[[Any, str], Any]:
        def told(checkpoint: Any, name: str) -> Any:
            ticket.wait_durable()
            if ticket.id is None:
                raise NotFoundError(f"{self.manager.root}: step {ticket.step} was not saved: {ticket.stage}")
            return self._checkpoint(ticket.id)

        return told
