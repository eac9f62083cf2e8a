# SPDX-License-Identifier: Apache-2.0
"""The older classes of Ray Train, with their names and rules.

A manager's run folder is a run of pawl. The library decides what is kept, which checkpoint is best,
and how the newest is named. It reads this from the stored files, so that it is known after a
restart.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pathlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _metrics, _pickles
from .._pawl import PawlError, UnsupportedError, UsageError
from ..checkpoint import load, save
from ..manager import CheckpointManager as _Core
from ..options import Naming, Ranks, Retention
from .config import MAX, MIN, check_num_to_keep, check_order
from .layout import construct_checkpoint_file_name, construct_path, create_log_dir, next_run_dir

__all__ = [
    "MAX",
    "MIN",
    "TIMESTAMP",
    "TUNE_CHECKPOINT_FILE_NAME",
    "TUNE_CHECKPOINT_ID",
    "CheckpointManager",
    "CheckpointStrategy",
    "PersistedCheckpoint",
    "TuneCheckpointManager",
    "construct_checkpoint_file_name",
]

TIMESTAMP = "_timestamp"
TUNE_CHECKPOINT_FILE_NAME = "checkpoint"
TUNE_CHECKPOINT_ID = "_current_checkpoint_id"

tune: Any
try:
    tune = importlib.import_module("pawl.tune")
except ImportError:
    tune = None

logger = logging.getLogger(__name__)


@dataclass
class CheckpointStrategy:
    """Which checkpoints are kept on disk.

    Attributes:
        num_to_keep: Keep N; 0 writes nothing. Default: None, never delete.
        checkpoint_score_attribute: A key of the checkpoint's dict with a number as value. Default:
            its timestamp, so that the newest stay.
        checkpoint_score_order: Keep those with the "max" or the "min" of it. Default: "max".
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str = TIMESTAMP
    checkpoint_score_order: str = MAX

    def __post_init__(self) -> None:
        check_num_to_keep(self.num_to_keep)
        check_order(self.checkpoint_score_order)


class PersistedCheckpoint:
    """A checkpoint on disk; compared by priority.

    Args:
        path: Its folder.
        priority: The score, or with order "min" its negative.
    """

    def __init__(self, path: pathlib.Path, priority: float) -> None:
        self.path = path
        self.priority = priority

    def __lt__(self, other: PersistedCheckpoint) -> bool:
        return self.priority < other.priority

    def __repr__(self) -> str:
        return f"PersistedCheckpoint({repr(self.path)})"


class CheckpointManager:
    """Takes the checkpoints of a training run's workers, writes those worth keeping, and loads
    them.

    They are stored in ``checkpoints`` in the run's folder. By default the path of one is:
    ~/ray_results/train_<datestring>/run_<run_id>/checkpoints/checkpoint_<checkpoint_id>

    Args:
        allow_pickle: Pickle values that a state cannot hold, and load pickles. Default: False.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._core: _Core | None = None
        self._reads_only = False
        self._checkpoint_strategy = CheckpointStrategy()
        self.run_dir: pathlib.Path | None = None
        self.log_dir: pathlib.Path | None = None
        self.on_init()

    # ---- life ----

    def on_init(self) -> None:
        """Resets the manager."""
        self.close()
        self.latest_checkpoint: dict[str, Any] | None = None  # the last one; it may not be on disk
        self._latest_checkpoint_id = 0
        self._given_id = 0  # the highest id in the folder, or of a write

    def on_start_training(
        self,
        checkpoint_strategy: CheckpointStrategy | None,
        run_dir: str | pathlib.Path,
        latest_checkpoint_id: int | None = None,
    ) -> None:
        """Sets the rules and the folder. Numbers continue from the given one and those in the
        folder.

        Args:
            checkpoint_strategy: The rules. Default: None, keep all.
            run_dir: Folder of the run.
            latest_checkpoint_id: Number of the last checkpoint. Default: None, 0.
        """
        self.close()
        self._checkpoint_strategy = CheckpointStrategy() if checkpoint_strategy is None else checkpoint_strategy
        self.run_dir = pathlib.Path(run_dir)
        self._latest_checkpoint_id, self._given_id = latest_checkpoint_id or 0, 0
        if self._has_run():
            newest = [info.id for info in self._infos()]
            self.close()
            self._latest_checkpoint_id = max(self._latest_checkpoint_id, *newest, 0)

    def create_logdir(self, log_dir: str | pathlib.Path | None) -> None:
        """Makes the folder of all runs of this training.

        Args:
            log_dir: The folder. Default: None, ~/ray_results/train_<datestring>.
        """
        path = create_log_dir() if log_dir is None else construct_path(pathlib.Path(log_dir), create_log_dir().parent)
        path.mkdir(parents=True, exist_ok=True)
        self.log_dir = path

    def create_run_dir(self) -> None:
        """Makes the folder of the next run in ``log_dir``: run_<run_id>."""
        if self.log_dir is None:
            self.create_logdir(None)
        self.run_dir = pathlib.Path(next_run_dir(self.log_dir or create_log_dir()))

    def close(self) -> None:
        """Releases the run's folder. The next write opens it again."""
        core, self._core = self._core, None
        if core is not None:
            core.close()

    # ---- saving and loading ----

    def _process_checkpoint(
        self, checkpoint_results: Sequence[Any], decode_checkpoint_fn: Callable[[Any], dict[str, Any]]
    ) -> None:
        """Decodes the first worker's result, keeps it in memory, writes it, and counts it."""
        checkpoint = decode_checkpoint_fn(checkpoint_results[0].data)
        self.latest_checkpoint = checkpoint
        self.write_checkpoint(checkpoint)
        self._latest_checkpoint_id = max(self._latest_checkpoint_id + 1, self._given_id)

    def _load_checkpoint(self, checkpoint_to_load: dict[str, Any] | str | pathlib.Path | None) -> dict[str, Any] | None:
        """Returns a dict unchanged, the contents of a path, or None for None."""
        if checkpoint_to_load is None or isinstance(checkpoint_to_load, dict):
            return checkpoint_to_load
        path = pathlib.Path(checkpoint_to_load).expanduser()
        if not path.exists():
            raise UsageError(f"Checkpoint path {path} does not exist.")
        if self._allow_pickle and path.is_file():
            found = pickle.loads(path.read_bytes())
        else:
            found = _pickles.unwrap(load(path), self._allow_pickle)
        if not isinstance(found, dict):
            raise UsageError(f"Checkpoint path {path} holds a {type(found).__name__}, not a dict.")
        return found

    def write_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Writes a checkpoint if it is to be kept, and deletes the one that it replaces.

        Args:
            checkpoint: The dict.

        Raises:
            UsageError: The dict lacks the score attribute, or it is not a number.
        """
        strategy = self._checkpoint_strategy
        if strategy.num_to_keep == 0:
            return
        score = self._score(checkpoint)
        path, number = self.next_checkpoint_path, self._newest_id + 1
        core = self._opened()
        before = {info.path for info in core.checkpoints()}
        try:
            ticket = core.save(
                number,
                self._state(checkpoint),
                metrics={strategy.checkpoint_score_attribute: score},
                wait=True,
                force=True,
            )
        except BaseException:
            self._forget_write()
            raise
        self._given_id = (ticket.id if ticket is not None else None) or number
        if ticket is None or ticket.stage == "skipped":
            logger.debug(f"Skipping checkpoint due to low score:{path}.")
            return
        logger.debug(f"Checkpoint successfully written to: {path}")
        for gone in sorted(before - {info.path for info in core.checkpoints()}):
            logger.debug(f"Removed worst checkpoint from {gone}.")

    # ---- what there is ----

    @property
    def latest_checkpoint_dir(self) -> pathlib.Path | None:
        """The folder of the run's checkpoints."""
        return None if self.run_dir is None else construct_path(pathlib.Path("checkpoints"), self.run_dir)

    @property
    def latest_checkpoint_file_name(self) -> str | None:
        """The name for the newest number, even if that checkpoint was not written."""
        found = self._latest_checkpoint_id
        return construct_checkpoint_file_name(found) if found > 0 else None

    latest_checkpoint_filename = latest_checkpoint_file_name

    @property
    def next_checkpoint_path(self) -> pathlib.Path | None:
        """The path of the next checkpoint."""
        folder = self.latest_checkpoint_dir
        return None if folder is None else folder / construct_checkpoint_file_name(self._newest_id + 1)

    @property
    def best_checkpoint_path(self) -> pathlib.Path | None:
        """The best checkpoint on disk. The earliest of several equal ones."""
        found = [info for info in self._infos() if info.best]
        return pathlib.Path(found[0].path) if found and self._checkpoint_strategy.num_to_keep != 0 else None

    @property
    def latest_checkpoint_id(self) -> int | None:
        """The number of the newest checkpoint that was saved, None before the first."""
        return self._latest_checkpoint_id or None

    @property
    def persisted_checkpoints(self) -> list[PersistedCheckpoint]:
        """The checkpoints on disk, the worst first."""
        sign = 1 if self._checkpoint_strategy.checkpoint_score_order == MAX else -1
        name = self._checkpoint_strategy.checkpoint_score_attribute
        return sorted(PersistedCheckpoint(pathlib.Path(i.path), sign * i.metrics[name]) for i in self._infos())

    # ---- inside ----

    @property
    def _newest_id(self) -> int:
        return max(self._latest_checkpoint_id, self._given_id)

    def _forget_write(self) -> None:
        """Frees the number of a write that failed, unless a checkpoint has it despite the error."""
        with contextlib.suppress(PawlError):
            self.close()
        with contextlib.suppress(PawlError):
            self._given_id = max((info.id for info in self._infos()), default=0)

    def _has_run(self) -> bool:
        return self.run_dir is not None and (self.run_dir.expanduser() / "run.json").is_file()

    def _infos(self) -> list[Any]:
        if self._core is None and not self._has_run():
            return []
        return self._opened(read_only=True).checkpoints()

    def _opened(self, read_only: bool = False) -> _Core:
        if self.run_dir is None:
            raise UsageError("no training was started: call on_start_training first")
        if self._core is not None and (read_only or not self._reads_only):
            return self._core
        self.close()
        strategy = self._checkpoint_strategy
        self._reads_only = read_only
        self._core = _Core(
            self.run_dir,
            num_to_keep=strategy.num_to_keep or None,
            score_attribute=strategy.checkpoint_score_attribute,
            score_order="min"
            if strategy.checkpoint_score_attribute and strategy.checkpoint_score_order != MAX
            else "max",
            retention=Retention(keep_latest=False, strict_score=True),
            naming=Naming(after_id=self._newest_id),
            ranks=Ranks(rank=0, world_size=1),
            signals=False,
            read_only=read_only,
        )
        return self._core

    def _state(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        if not self._allow_pickle:
            return _metrics.storable(checkpoint)
        wrapped: dict[str, Any] = _pickles.wrap(checkpoint)
        return wrapped

    def _score(self, checkpoint: Mapping[str, Any]) -> float:
        name = self._checkpoint_strategy.checkpoint_score_attribute
        if name not in checkpoint:
            raise UsageError(
                f"Unable to persist checkpoint for checkpoint_score_attribute: {name}. "
                f"Include this attribute in the call to train.save_checkpoint."
            )
        score = checkpoint[name]
        if not _metrics.is_number(score):
            raise UsageError(
                f"Unable to persist checkpoint for checkpoint_score_attribute: {name} with value {score}. "
                f"This attribute must be numerical."
            )
        return _metrics.as_float(score)


class TuneCheckpointManager(CheckpointManager):
    """The same in a trial of a search. The search owns the folders and decides what is kept.

    Args:
        allow_pickle: As in CheckpointManager. Default: False.
    """

    def create_logdir(self, log_dir: str | pathlib.Path | None) -> None:
        """Does nothing: the trial has a folder.

        Args:
            log_dir: Ignored.
        """

    def create_run_dir(self) -> None:
        """Does nothing: the trial has a folder."""

    def _load_checkpoint(self, checkpoint_to_load: dict[str, Any] | str | pathlib.Path | None) -> dict[str, Any] | None:
        """Loads in the same way.

        Numbers continue from the loaded one, also in a restarted trial.
        """
        loaded = super()._load_checkpoint(checkpoint_to_load)
        if loaded is not None:
            self._latest_checkpoint_id = loaded[TUNE_CHECKPOINT_ID]
        return loaded

    def write_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stores the number in the checkpoint and writes it where the trial needs it.

        Args:
            checkpoint: The dict; it gets the number.

        Raises:
            UnsupportedError: pawl.tune cannot be imported.
        """
        if tune is None:
            raise UnsupportedError("a TuneCheckpointManager needs pawl.tune, which cannot be imported here")
        checkpoint[TUNE_CHECKPOINT_ID] = self._latest_checkpoint_id
        with tune.checkpoint_dir(step=self._latest_checkpoint_id) as checkpoint_dir:
            save(self._state(checkpoint), pathlib.Path(checkpoint_dir, TUNE_CHECKPOINT_FILE_NAME), overwrite=True)
