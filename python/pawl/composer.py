# SPDX-License-Identifier: Apache-2.0
"""Composer's ``CheckpointSaver`` on pawl's engine: docs/reference/composer.md.

    trainer = composer.Trainer(..., callbacks=[pawl.composer.CheckpointSaver(save_interval="1ep")])

or in any loop:

    saver = pawl.composer.CheckpointSaver(save_interval="500ba", num_checkpoints_to_keep=3)
    for batch in ...:
        ...
        saver.step({"run_name": "demo", "epoch": epoch, "batch": n}, lambda: {"model": model, "optimizer": optimizer})
    saver.close()

The library handles names, intervals, ignored keys, links, uploads and retention. This module
translates Composer's objects, calls the caller's functions, and loads files.
"""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from . import _checks, _pawl
from ._composer_load import IgnoreKeys, Path, find_latest, load_checkpoint, remote_of, text_of
from ._composer_ranks import latest_for_all, together
from ._composer_state import (
    SavedPath,
    composer_imported,
    copied,
    interval_text,
    number_of,
    progress_of,
    scheduler,
    state_of,
    timestamp_of,
    translated,
)
from ._pawl import BusyError, UnsupportedError, UsageError
from ._periodic import checkpoint_periodically
from .options import Duration
from .rank import rank_identify

__all__ = [
    "BATCH_CHECKPOINT",
    "EPOCH_CHECKPOINT",
    "CheckpointSaver",
    "Trainer",
    "checkpoint_periodically",
    "find_latest",
    "load_checkpoint",
]

BATCH_CHECKPOINT = "batch_checkpoint"  # the events that a function for save_interval gets outside of Composer
EPOCH_CHECKPOINT = "epoch_checkpoint"


@functools.cache
def _theirs() -> Any:
    """Composer's own saver class. For ``issubclass`` ours is registered as a subclass of it."""
    from composer.callbacks.checkpoint_saver import CheckpointSaver as Theirs

    Theirs.register(CheckpointSaver)
    return Theirs


@functools.cache
def _composers(kind: Any) -> Any:
    """A class as a subclass of Composer's own saver, which its Trainer and algorithms look for."""
    if _theirs() in kind.__mro__:
        return kind
    return type(kind.__name__, (kind, _theirs()), {"__module__": kind.__module__})


_in_use: weakref.WeakSet[CheckpointSaver] = weakref.WeakSet()  # in a Trainer of this process, with an open folder


class CheckpointSaver:
    """Saves checkpoint files: Composer's callback of that name, with its options and rules.

    If Composer is imported, it is a subclass of Composer's saver: pass it to the Trainer. In any
    other loop call ``step(progress, state)`` after every batch, and ``close()`` at the end.

    Templates may contain {run_name}, {rank}, {local_rank}, {world_size}, {local_world_size} and
    {node_rank}. Except in ``folder`` they may also contain {epoch}, {batch}, {batch_in_epoch},
    {sample}, {sample_in_epoch}, {token}, {token_in_epoch}, {total_wct}, {epoch_wct} and
    {batch_wct}. Formats such as {epoch:04d} work.

    Args:
        folder: Template of the folder.
        filename: Template of a file.
        latest_filename: Template of the link to the newest file.
        remote_file_name: URL of a file (``s3://bucket/{run_name}/...``), or in Composer a name for
            its uploaders.
        latest_remote_file_name: The same for the link to the newest file.
        save_interval: A time string, a number of epochs, or a function of ``(state, event)``, in
            any other loop of ``(progress, event)``. Default: "1ep".
        overwrite: Write into a folder that has files. Default: False.
        num_checkpoints_to_keep: Keep the newest N files. Default: -1, all.
        weights_only: Save only the part of the state at "model", or "state/model". Default: False.
        ignore_keys: Paths with ``*``, whose branches are left out, or a function that changes the
            state dict.
        num_concurrent_uploads: Uploads at a time. Default: 1.
        upload_timeout_in_seconds: Duration after which an upload fails. Default: 3,600 seconds.

    Raises:
        UsageError: An option is wrong; the message names it.
    """

    def __init__(
        self,
        folder: Path = "{run_name}/checkpoints",
        filename: Path = "ep{epoch}-ba{batch}-rank{rank}.pt",
        remote_file_name: Path | None = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt",
        latest_filename: Path | None = "latest-rank{rank}.pt",
        latest_remote_file_name: Path | None = "{run_name}/checkpoints/latest-rank{rank}.pt",
        save_interval: object = "1ep",
        *,
        overwrite: bool = False,
        num_checkpoints_to_keep: int = -1,
        weights_only: bool = False,
        ignore_keys: IgnoreKeys = None,
        num_concurrent_uploads: int = 1,
        upload_timeout_in_seconds: Duration = 3600,
    ) -> None:
        self._changes: Callable[[dict[str, Any]], object] | None = None
        paths: tuple[str, ...] = ()
        if callable(ignore_keys):
            self._changes = ignore_keys
        elif ignore_keys is not None:
            paths = _checks.names("ignore_keys", ignore_keys)
        if isinstance(num_checkpoints_to_keep, bool) or not isinstance(num_checkpoints_to_keep, int):
            raise UsageError(
                f"num_checkpoints_to_keep must be a whole number, received {_checks.shown(num_checkpoints_to_keep)}"
            )
        interval = interval_text(save_interval)
        self._when: Any = save_interval if interval is None else None
        self._saver: _pawl.Saver | None = None
        self._left: list[Any] = []  # the rows of saved() once it is closed
        self._epoch: float | None = None  # of the last step, to detect the end of an epoch
        self._run_name: str | None = None
        self._state: Any = None  # a weak reference to the Trainer's state
        self._fits = self._at_event = False
        self.folder = _checks.path("folder", folder)
        self._names = (
            _checks.path("filename", filename),
            remote_of("remote_file_name", remote_file_name),
            text_of("latest_filename", latest_filename),
            remote_of("latest_remote_file_name", latest_remote_file_name),
        )
        # In Composer these have Composer's types.
        self.filename: Any
        self.remote_file_name: Any
        self.latest_filename: Any
        self.latest_remote_file_name: Any
        self.filename, self.remote_file_name, self.latest_filename, self.latest_remote_file_name = self._names
        self.save_interval: Any = save_interval
        self.overwrite = overwrite
        self.num_checkpoints_to_keep = num_checkpoints_to_keep
        self.weights_only = weights_only
        self.ignore_keys = ignore_keys
        self.num_concurrent_uploads = _checks.whole("num_concurrent_uploads", num_concurrent_uploads, 31)
        if self.num_concurrent_uploads == 0:
            raise UsageError("num_concurrent_uploads must be at least 1, received 0")
        self.upload_timeout_in_seconds = _checks.seconds("upload_timeout_in_seconds", upload_timeout_in_seconds)
        if self.upload_timeout_in_seconds <= 0:
            raise UsageError("upload_timeout_in_seconds must be more than 0, received 0")
        self._options: dict[str, Any] = {
            "overwrite": bool(overwrite),
            "num_checkpoints_to_keep": num_checkpoints_to_keep,
            "weights_only": bool(weights_only),
            "ignore_keys": paths,
            "num_concurrent_uploads": self.num_concurrent_uploads,
            "upload_timeout_ms": max(1, int(self.upload_timeout_in_seconds * 1000)),
        }
        self._interval = interval
        # Errors that the first save would raise are raised here.
        if composer_imported() is not None and interval is not None:
            self.save_interval = scheduler(interval, save_interval)
        self._new_saver("run", (0, 1, 0, 1, 0), composer_imported() is not None, False).close()
        if composer_imported() is not None:
            self._become_composers()

    # ---- in any loop ----

    def step(self, progress: object, state: object, *, event: str | None = None) -> bool:
        """Saves if a save is due. Returns when the tensors have been copied.

        Args:
            progress: A Timestamp, or a mapping with ``run_name`` and counters (epoch, batch, ...).
                The counter ``fraction`` is the part of the training that is done. A save is also
                due at the end of the training.
            state: A tree, or a function that returns one and is only called when a save is due. If
                it is the path of a folder, that is packed as this rank's tar file.
            event: The event that a function for ``save_interval`` gets. Default: None,
                EPOCH_CHECKPOINT if the epoch has grown since the last call, else BATCH_CHECKPOINT.

        Returns:
            True if a save has begun.
        """
        now = self._begin(progress)
        if event is None:
            grown = self._epoch is not None and now.get("epoch", 0) > self._epoch
            event = EPOCH_CHECKPOINT if grown else BATCH_CHECKPOINT
        self._epoch = now.get("epoch")
        if not self._is_due(now, progress, event):
            return False
        return self._save(now, state)

    def save(self, progress: object, state: object) -> bool:
        """Saves now, due or not.

        Args:
            progress: As in ``step``.
            state: As in ``step``.

        Returns:
            True if a save has begun.
        """
        return self._save(self._begin(progress), state)

    def wait(self, timeout: Duration | None = None) -> None:
        """Waits until all files are durable and uploaded.

        Args:
            timeout: Longest wait, as a duration. Default: None, no limit.

        Raises:
            PawlError: The first error that no call has raised.
        """
        if self._saver is not None:
            self._saver.wait(timeout)

    def check(self) -> None:
        """Raises the first error of a save or an upload that no call has raised."""
        if self._saver is not None:
            self._saver.check()

    def close(self, *_: object) -> None:
        """Waits for saves and uploads, and ends. Raises the first error that no call has raised."""
        saver, self._saver = self._saver, None
        if saver is None:
            return
        try:
            saver.wait()  # Ctrl+C interrupts it
        finally:
            self._left = saver.saved()
            saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if exc is None:
                raise

    @property
    def saved_checkpoints(self) -> list[Any]:
        """The local checkpoints as ``(timestamp, paths)``, the latest last.

        There is one path, or one for each rank if every rank writes a file. The property waits for
        saves that are being written. Outside of Composer the timestamp is a dict of counters. In a
        Trainer each item is the path itself, as in Composer, and unpacks into this pair.
        """
        if self._saver is not None:
            self._saver.wait_saves()
            self._left = self._saver.saved()
        found: list[Any] = []
        for _, progress, path, _, _, _, paths in self._left:
            at, files = timestamp_of(progress), [pathlib.Path(one) for one in paths]
            saved = SavedPath(path)
            saved.timestamp, saved.paths = at, files
            found.append((at, files) if self._state is None else saved)
        return found

    # ---- as a callback of Composer ----

    def _become_composers(self) -> None:
        """Gives the object the class and the attributes of Composer's saver."""
        from composer.utils import PartialFilePath

        filename, remote, latest, latest_remote = self._names
        kind: Any = type(self)
        self.__class__ = _composers(kind)
        self.filename = PartialFilePath(filename.lstrip("/"), self.folder)
        self.latest_filename = None if latest is None else PartialFilePath(latest.lstrip("/"), self.folder)
        self.remote_file_name = None if remote is None else PartialFilePath(remote)
        self.latest_remote_file_name = None if latest_remote is None else PartialFilePath(latest_remote)
        self.last_checkpoint_batch: Any = None
        self.start_batch: Any = None
        self.all_saved_checkpoints_to_timestamp: dict[str, Any] = {}
        self.remote_uploader = None  # the library uploads, or the Trainer's own loggers

    def run_event(self, event: Any, state: Any, logger: Any) -> Any:
        """Called by Composer's engine."""
        if not hasattr(self, "all_saved_checkpoints_to_timestamp"):
            raise UsageError(
                "CheckpointSaver: expected Composer to be imported before the saver is made, found it after"
            )
        return getattr(self, event.value)(state, logger)

    def init(self, state: Any, logger: Any) -> None:
        """Event.INIT"""
        if state.fsdp_sharded_state_dict_enabled:
            raise UnsupportedError(
                "CheckpointSaver: expected full tensors, found sharded states (FSDP with state_dict_type='sharded'); "
                "choose state_dict_type='full', Composer's own saver, or pawl.CheckpointManager"
            )
        together(lambda: self._ready(state, logger))

    def _ready(self, state: Any, logger: Any) -> None:
        """Opens the saver unless it is open."""
        from composer.utils import dist

        if self._saver is not None:
            return
        ranks = (
            dist.get_global_rank(),
            dist.get_world_size(),
            dist.get_local_rank(),
            dist.get_local_world_size(),
            dist.get_node_rank(),
        )
        uploads = any(_can_upload(destination) for destination in logger.destinations)
        saver = self._open(state.run_name, ranks, uploads, True)
        os.makedirs(str(saver.folder), exist_ok=True)  # on every rank: the Trainer searches it
        self._state = weakref.ref(state)
        for earlier in self._earlier():
            earlier.wait()  # this Trainer may be about to look for the newest file
        _in_use.add(self)

    def _start(self, state: Any, logger: Any) -> None:
        """Takes over the folder, also from the saver of an earlier Trainer of this process."""
        self._ready(state, logger)
        assert self._saver is not None
        now = progress_of(state.timestamp)
        try:
            self._saver.start(now)
        except BusyError:
            earlier = self._earlier()
            if not earlier:
                raise
            for one in earlier:
                one.close()
            self._saver.start(now)

    def _earlier(self) -> list[CheckpointSaver]:
        """Savers of other Trainers of this process that write the same files."""
        return [one for one in _in_use if one is not self and one._has_same_files(self)]

    def _has_same_files(self, other: CheckpointSaver) -> bool:
        mine, theirs = self._saver, other._saver
        if mine is None or theirs is None or self._state() is other._state():
            return False
        return (mine.folder, self._names[0]) == (theirs.folder, other._names[0])

    def fit_start(self, state: Any, logger: Any) -> None:
        """Event.FIT_START"""
        together(lambda: self._start(state, logger))
        self._fits = True
        self.start_batch = state.timestamp.batch

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        """Event.BATCH_CHECKPOINT"""
        from composer.core import Event

        self._on_event(state, logger, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: Any, logger: Any) -> None:
        """Event.EPOCH_CHECKPOINT"""
        from composer.core import Event

        self._on_event(state, logger, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: Any, logger: Any) -> None:
        """Event.ITERATION_CHECKPOINT"""
        from composer.core import Event

        self._on_event(state, logger, Event.ITERATION_CHECKPOINT)

    def fit_end(self, state: Any, logger: Any) -> None:
        """Event.FIT_END: all files are written, and other savers may write into the folder."""
        self._fits = False
        together(lambda: self._end(logger))

    def _save_checkpoint(self, state: Any, logger: Any) -> None:
        """Saves. At an event the file is written in the background.

        For the Trainer's ``save_checkpoint_to_save_folder`` it returns when the file is written, as
        Composer's does.
        """
        self._save_state(state, logger)
        if not self._at_event:
            together(lambda: self._finish_saves(logger) if self._fits else self._end(logger))

    # ---- inside ----

    def _new_saver(
        self, run_name: str | None, ranks: tuple[int, ...], by_caller: bool, raw_pickle: bool
    ) -> _pawl.Saver:
        return _pawl.Saver(
            self.folder,
            *self._names,
            self._interval,
            run_name=run_name,
            rank=ranks,
            uploads_by_caller=by_caller,
            raw_pickle=raw_pickle,
            **self._options,
        )

    def _open(self, run_name: str | None, ranks: tuple[int, ...], by_caller: bool, raw_pickle: bool) -> _pawl.Saver:
        self._run_name = run_name
        self._left = []
        self._saver = self._new_saver(run_name, ranks, by_caller, raw_pickle)
        return self._saver

    def _begin(self, progress: object) -> dict[str, float]:
        now = progress_of(progress)
        name = progress.get("run_name") if isinstance(progress, Mapping) else getattr(progress, "run_name", None)
        name = None if name is None else str(name)
        if self._saver is None:
            who = rank_identify()
            places = (who.local_rank, who.local_world_size, who.node_rank)
            self._open(
                name,
                (who.rank, who.world_size, *(-1 if place is None else place for place in places)),
                False,
                False,
            )
        elif name is not None and name != self._run_name:
            raise UsageError(f"progress: the saver writes run {self._run_name!r}, received run_name={name!r}")
        return now

    def _is_due(self, now: dict[str, float], what: object, event: object) -> bool:
        assert self._saver is not None
        due = self._saver.due(now)
        wanted = self._when is None or bool(self._when(what, event))  # asked at every event
        return due and wanted

    def _save(self, now: dict[str, float], state: object, translate: Callable[[Any], Any] | None = None) -> bool:
        assert self._saver is not None
        tree: Any = state
        if callable(state) and not hasattr(state, "state_dict"):
            tree = state()
        if isinstance(tree, str | os.PathLike):
            self._saver.save_folder(now, os.fspath(tree))
            return True
        if self._changes is not None:
            tree = copied(tree)
            self._changes(tree)
        return self._saver.save(now, tree if translate is None else translate(tree))

    def _on_event(self, state: Any, logger: Any, event: Any) -> None:
        if self._saver is not None:
            self._give_to(logger)
        if self.save_interval(state, event) and self.last_checkpoint_batch != state.timestamp.batch:
            self._at_event = True
            try:
                self._save_checkpoint(state, logger)
            finally:
                self._at_event = False

    def _save_state(self, state: Any, logger: Any) -> None:
        from composer.utils import checkpoint

        now = progress_of(state.timestamp)
        elapsed = number_of(state.get_elapsed_duration())
        if elapsed is not None:
            now["fraction"] = min(max(float(elapsed), 0.0), 1.0)
        self.last_checkpoint_batch = state.timestamp.batch
        # Before the save, since the state contains it.
        name = checkpoint.get_save_filename(state, self.filename.format(state, keep_placeholders=True))
        self.all_saved_checkpoints_to_timestamp[name] = state.timestamp
        tree = state_of(state, self.weights_only)  # on every rank: it is a collective operation

        def write() -> None:
            self._start(state, logger)
            self._save(now, tree, translated)

        together(write)

    def _finish_saves(self, logger: Any) -> None:
        assert self._saver is not None
        self._saver.wait_saves()
        self._saver.check()
        self._give_to(logger)

    def _end(self, logger: Any) -> None:
        try:
            self.wait()
            self._give_to(logger)
        finally:
            self.close()

    def _give_to(self, logger: Any) -> None:
        """Passes durable files to Composer's own uploaders, if any, unless the library uploads
        itself.
        """
        if self._saver is None or self._saver.uploads or not any(_can_upload(one) for one in logger.destinations):
            return
        for seq, _, path, remote, pointer, uploaded, _ in self._saver.saved(True):
            if uploaded or not remote:
                continue
            logger.upload_file(remote_file_name=remote, file_path=path, overwrite=self.overwrite)
            if pointer:
                with tempfile.TemporaryDirectory() as folder:
                    link = pathlib.Path(folder) / "latest.symlink"
                    link.write_text(remote)
                    logger.upload_file(remote_file_name=pointer, file_path=link, overwrite=True)
            self._saver.uploaded(seq)


def _can_upload(destination: Any) -> bool:
    return bool(destination.can_upload_files())


# ---- a Trainer with one saver


def Trainer(*args: Any, save_folder: Path | None = None, autoresume: bool = False, **options: Any) -> Any:  # noqa: N802
    """Composer's Trainer with pawl's saver in place of its own.

    Args:
        args: Arguments of Composer's Trainer.
        save_folder: As in Composer's; the other ``save_...`` options are the saver's. Default:
            None, no saver.
        autoresume: Continue from the run's latest checkpoint. Default: False.
        options: Options of Composer's Trainer.

    Returns:
        The Trainer.

    Raises:
        UsageError: Saving needs a ``save_folder``, and ``autoresume`` a ``run_name`` and a
            ``latest_filename``.
    """
    import composer

    names = {
        **{f"save_{name}": name for name in ("filename", "remote_file_name", "latest_filename", "overwrite")},
        **{f"save_{name}": name for name in ("latest_remote_file_name", "weights_only", "ignore_keys")},
        "save_interval": "save_interval",
        "save_num_checkpoints_to_keep": "num_checkpoints_to_keep",
    }
    given = {ours: options.pop(theirs) for theirs, ours in names.items() if theirs in options}
    if save_folder is None:
        if given or autoresume:
            raise UsageError("Trainer: saving and autoresume need a save_folder")
        return composer.Trainer(*args, **options)
    saver = CheckpointSaver(save_folder, **given)
    if autoresume and options.get("run_name") is None:
        raise UsageError("Trainer: autoresume needs a run_name")
    if autoresume and saver.latest_filename is None:
        raise UsageError("Trainer: autoresume needs a latest_filename")
    callbacks = options.pop("callbacks", None) or []
    callbacks = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    options["callbacks"] = [*callbacks, saver]
    with tempfile.TemporaryDirectory() as there:  # the Trainer loads in its constructor
        latest = latest_for_all(options, saver.folder, saver._names, there) if autoresume else None
        if latest is not None:
            if options.get("load_path") is not None:
                warnings.warn(f"autoresume: {latest} is loaded, not {options['load_path']}", stacklevel=2)
            options["load_path"] = latest
        return composer.Trainer(*args, **options)


if composer_imported() is not None:
    _theirs()
