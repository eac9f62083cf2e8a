# SPDX-License-Identifier: Apache-2.0
"""Composer's ``CheckpointSaver`` on pawl's engine: docs/composer.md.

    trainer = composer.Trainer(..., callbacks=[pawl.composer.CheckpointSaver(save_interval="1ep")])

or in any loop:

    saver = pawl.composer.CheckpointSaver(save_interval="500ba", num_checkpoints_to_keep=3)
    for batch in ...:
        ...
        saver.step({"run_name": "demo", "epoch": epoch, "batch": n}, lambda: {"model": model, "optimizer": optimizer})
    saver.close()

Names, intervals, what is left out, links, uploads and what is kept are the library's; here are the translation of
Composer's objects, the caller's own functions, and loading.
"""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from . import _checks, _pawl
from ._pawl import MismatchError, UsageError
from ._periodic import checkpoint_periodically
from .checkpoint import load
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

Path = str | os.PathLike[str]
IgnoreKeys = Sequence[str] | Callable[[dict[str, Any]], object] | None

_WHOLE = ("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch", "iteration")
_SECONDS = ("total_wct", "epoch_wct", "batch_wct")
_FOLDER = "{run_name}/checkpoints"
_FILE = "ep{epoch}-ba{batch}-rank{rank}.pt"
_LATEST = "latest-rank{rank}.pt"


# ---- Composer's objects, as plain values


def _number(value: object) -> float | None:
    """Of a number, a Time, or a timedelta."""
    value = getattr(value, "value", value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _progress(given: object) -> dict[str, float]:
    """The counters of a mapping or of a Timestamp."""
    if isinstance(given, Mapping):
        known = (*_WHOLE, *_SECONDS, "fraction", "run_name")
        for name in given:
            if name not in known:
                raise UsageError(f"progress: unknown counter {name!r} ({', '.join(known)})")
        found = {name: given.get(name) for name in known[:-1]}
    else:
        found = {name: getattr(given, name, None) for name in (*_WHOLE, *_SECONDS)}
    progress: dict[str, float] = {}
    for name, value in found.items():
        number = None if value is None else _number(value)
        if value is not None and number is None:
            raise UsageError(f"progress: {name} must be a number, received {value!r}")
        if number is not None:
            progress[name] = int(number) if name in _WHOLE else float(number)
    if not progress:
        raise UsageError(f"progress must be a mapping of counters or a Timestamp, received {given!r}")
    return progress


class _Pickler(pickle.Pickler):
    """Without a memo, so that what it makes can stand inside of another stream."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.fast = True


def _is_plain(value: object) -> bool:
    kind = type(value)
    return value is None or kind in (bool, int, float, str, bytes) or hasattr(value, "requires_grad")


def _translated(value: Any) -> Any:
    """What Composer has in its state besides plain values and tensors (timedelta, versions, arrays) as a part of
    a pickle, which the file's own then contains. Only for writing, and only of Composer's own state."""
    if _is_plain(value):
        return value
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, _translated(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(_translated(one) for one in value)
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return {"$pickle": file.getvalue()[2:-1]}


def _copied(tree: Any) -> Any:
    """New containers around the same tensors, for a function that may change them freely."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_copied(value) for value in tree)
    if hasattr(tree, "state_dict") and hasattr(tree, "load_state_dict"):
        return _copied(tree.state_dict())
    return tree


def _interval(value: object) -> str | None:
    """A time string of what save_interval may be; None for a function."""
    if callable(value) and not hasattr(value, "to_timestring"):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        text = getattr(value, "to_timestring", None)  # a Time
        if text is None:
            raise UsageError(
                f"save_interval must be a Time, a time string, a number of epochs or a function, received {value!r}"
            )
        return str(text())
    return str(value)


def _text(option: str, value: Path | None) -> str | None:
    return None if value is None else _checks.path(option, value)


def _composer() -> Any:
    """Composer's modules, if the program uses it."""
    return sys.modules.get("composer")


def _callback(kind: type) -> type:
    """The same class as a Callback of Composer."""
    from composer.core import Callback

    if issubclass(kind, Callback):
        return kind
    return type(kind.__name__, (kind, Callback), {"__module__": kind.__module__})


class CheckpointSaver:
    """Saves checkpoint files: Composer's callback of that name, with its options and rules.

    Where Composer is imported it is a Callback, to be given to its Trainer. Everywhere: ``step(progress, state)`` after
    every batch, and ``close()``. Templates may have {run_name}, {rank}, {local_rank}, {world_size}, {local_world_size},
    {node_rank}, and but in ``folder`` {epoch}, {batch}, {batch_in_epoch}, {sample}, {sample_in_epoch}, {token},
    {token_in_epoch}, {total_wct}, {epoch_wct} and {batch_wct}, with formats as {epoch:04d}.

    ``remote_file_name`` is the URL of a file (``s3://bucket/{run_name}/...``), or in Composer a name for its uploaders.
    ``weights_only``: of the state only what is at "model", or "state/model". ``ignore_keys``: paths with ``*``, whose
    branches are left out, or a function that changes the state dict. ``save_interval`` may be a function of
    ``(state, event)``, in a loop of one's own of ``(progress, event)``.
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
        upload_timeout_in_seconds: float = 3600,
    ) -> None:
        self._changes: Callable[[dict[str, Any]], object] | None = None
        paths: tuple[str, ...] = ()
        if callable(ignore_keys):
            self._changes = ignore_keys
        elif ignore_keys is not None:
            paths = _checks.names("ignore_keys", ignore_keys)
        if isinstance(num_checkpoints_to_keep, bool) or not isinstance(num_checkpoints_to_keep, int):
            raise UsageError(f"num_checkpoints_to_keep must be a whole number, received {num_checkpoints_to_keep!r}")
        interval = _interval(save_interval)
        self._when: Any = save_interval if interval is None else None
        self._saver: _pawl.Saver | None = None
        self._left: list[Any] = []  # the rows of saved() once it is closed
        self._epoch: float | None = None  # of the last step, which tells the end of an epoch
        self._run_name: str | None = None
        self.folder = _checks.path("folder", folder)
        self.filename = _checks.path("filename", filename)
        self.remote_file_name = _text("remote_file_name", remote_file_name)
        self.latest_filename = _text("latest_filename", latest_filename)
        self.latest_remote_file_name = _text("latest_remote_file_name", latest_remote_file_name)
        self.save_interval = save_interval
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
        if _composer() is not None:
            self.__class__ = _callback(type(self))

    # ---- in any loop ----

    def step(self, progress: object, state: object, *, event: str | None = None) -> bool:
        """Saves if a save is due; True if one has begun. Returns when the tensors have been copied.

        ``progress``: a mapping with ``run_name`` and counters (epoch, batch, ...; ``fraction`` of the whole training,
        at whose end there is a save, too), or a Timestamp. ``state``: a tree, or a function that gives one and is only
        called when a save is due; the path of a folder is packed as this rank's tar file.
        """
        now = self._begin(progress)
        if event is None:
            event = EPOCH_CHECKPOINT if now.get("epoch", 0) > (self._epoch or 0) else BATCH_CHECKPOINT
        self._epoch = now.get("epoch")
        if not self._is_due(now, progress, event):
            return False
        return self._save(now, state)

    def save(self, progress: object, state: object) -> bool:
        """Saves now, due or not."""
        return self._save(self._begin(progress), state)

    def wait(self, timeout: float | None = None) -> None:
        """Until all files are durable and uploaded; raises the first error that nobody has seen."""
        if self._saver is not None:
            self._saver.wait(timeout)

    def check(self) -> None:
        """Raises the first error of a save or an upload that nobody has seen."""
        if self._saver is not None:
            self._saver.check()

    def close(self, *_: object) -> None:
        """Waits for saves and uploads, and ends. Raises the first error that nobody has seen."""
        saver, self._saver = self._saver, None
        if saver is None:
            return
        try:
            saver.wait()  # hears Ctrl+C
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
    def saved_checkpoints(self) -> list[tuple[Any, list[pathlib.Path]]]:
        """The checkpoints that are here, the latest last: (timestamp, paths), one path, or with a file per rank one for
        each rank. The timestamp is Composer's, outside of it a dict of counters."""
        rows = self._left if self._saver is None else self._saver.saved()
        return [(_timestamp(row[1]), [pathlib.Path(path) for path in row[6]]) for row in rows]

    # ---- as a callback of Composer ----

    def init(self, state: Any, logger: Any) -> None:
        """Event.INIT"""
        from composer.utils import dist

        ranks = (
            dist.get_global_rank(),
            dist.get_world_size(),
            dist.get_local_rank(),
            dist.get_local_world_size(),
            dist.get_node_rank(),
        )
        uploads = any(_can_upload(destination) for destination in logger.destinations)
        self._open(state.run_name, ranks, uploads, True)

    def fit_start(self, state: Any, logger: Any) -> None:
        """Event.FIT_START"""
        if self._saver is None:
            self.init(state, logger)
        assert self._saver is not None
        self._saver.start(_progress(state.timestamp))

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
        """Event.FIT_END"""
        self.wait()
        self._give_to(logger)

    # ---- inside ----

    def _open(self, run_name: str | None, ranks: tuple[int, ...], by_caller: bool, raw_pickle: bool) -> None:
        self._run_name = run_name
        names = (self.filename, self.remote_file_name, self.latest_filename, self.latest_remote_file_name)
        self._left = []
        self._saver = _pawl.Saver(
            self.folder,
            *names,
            self._interval,
            run_name=run_name,
            rank=ranks,
            uploads_by_caller=by_caller,
            raw_pickle=raw_pickle,
            **self._options,
        )

    def _begin(self, progress: object) -> dict[str, float]:
        now = _progress(progress)
        name = progress.get("run_name") if isinstance(progress, Mapping) else getattr(progress, "run_name", None)
        if self._saver is None:
            who = rank_identify()
            places = (who.local_rank, who.local_world_size, who.node_rank)
            self._open(
                None if name is None else str(name),
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
            tree = _copied(tree)
            self._changes(tree)
        return self._saver.save(now, tree if translate is None else translate(tree))

    def _on_event(self, state: Any, logger: Any, event: Any) -> None:
        now = _progress(state.timestamp)
        elapsed = _number(state.get_elapsed_duration())
        if elapsed is not None:
            now["fraction"] = min(max(float(elapsed), 0.0), 1.0)
        self._give_to(logger)
        if self._saver is not None and self._is_due(now, state, event):
            # every rank puts its state together: ranks meet there
            self._save(now, _state_of(state, self.weights_only), _translated)

    def _give_to(self, logger: Any) -> None:
        """Durable files to Composer's own uploaders, where there are any and the library has no store."""
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


def _state_of(state: Any, weights_only: bool) -> dict[str, Any]:
    """What Composer's own saver puts into a file."""
    if weights_only:
        parts = {"model": state.get_model_state_dict()}
        for name, method in (("integrations", "_get_integrations_state_dict"), ("metadata", "_get_state_metadata")):
            if hasattr(state, method):
                parts[name] = getattr(state, method)()
        return {"state": parts}
    from composer.utils import reproducibility

    return {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}


def _timestamp(progress: dict[str, float]) -> Any:
    if _composer() is None:
        return progress
    from composer.core import Timestamp

    times = {name: timedelta(seconds=progress[name]) for name in _SECONDS if name in progress}
    return Timestamp(**{name: int(progress[name]) for name in _WHOLE if name in progress}, **times)


# ---- loading


def find_latest(
    run_name: str | None = None,
    *,
    folder: Path = _FOLDER,
    latest_filename: Path | None = _LATEST,
    latest_remote_file_name: Path | None = None,
    remote_file_name: Path | None = None,
) -> str | None:
    """Where a run goes on after a restart: the path that the latest link leads to, else the URL of what its remote
    latest leads to, where one of the remote names is a URL; None for a run that has neither."""
    remotes = (_text("latest_remote_file_name", latest_remote_file_name), _text("remote_file_name", remote_file_name))
    names = (_checks.path("folder", folder), _text("latest_filename", latest_filename))
    return _pawl.saver_find(run_name, *names, *remotes)


def load_checkpoint(
    path: Path,
    state: Any = None,
    *,
    run_name: str | None = None,
    folder: Path = _FOLDER,
    latest_filename: Path | None = _LATEST,
    latest_remote_file_name: Path | None = None,
    load_weights_only: bool = False,
    load_ignore_keys: IgnoreKeys = None,
    strict: bool = True,
) -> Any:
    """Loads a checkpoint file, ours or Composer's own, and returns its tree with new tensors. No code in it is run.

    ``path``: of a file, a template ({run_name}, {rank}, ...), "latest", or the URL of a file or of a remote latest; of
    a tar the state in it. ``load_weights_only``: of it only the model. ``load_ignore_keys``: paths with ``*`` that are
    left out, or a function that changes the tree. ``state``: a tree of live objects and values that takes what was
    saved under the same keys; without ``strict`` what only one of both has is passed over.
    """
    names = (_checks.path("folder", folder), _text("latest_filename", latest_filename))
    remote = _text("latest_remote_file_name", latest_remote_file_name)
    with tempfile.TemporaryDirectory() as there:
        found = _pawl.saver_find(run_name, *names, remote, None, _checks.path("path", path), there)
        assert found is not None
        tree = load(found)
    tree = _chosen(tree, load_weights_only, load_ignore_keys)
    if state is not None:
        _give(state, tree, strict, "")
    return tree


def _chosen(tree: Any, weights_only: bool, ignore: IgnoreKeys) -> Any:
    if weights_only and isinstance(tree, dict):
        inner = tree.get("state")
        if isinstance(inner, dict) and "model" in inner:
            tree = {"state": {"model": inner["model"]}}
        elif "model" in tree:
            tree = {"model": tree["model"]}
        else:
            raise MismatchError('load_weights_only: expected the weights at "model" or "state/model", found neither')
    if callable(ignore):
        ignore(tree)
    elif ignore is not None:
        tree = _without(tree, _checks.names("load_ignore_keys", ignore), "")
    return tree


def _without(tree: Any, globs: tuple[str, ...], place: str) -> Any:
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for key, value in tree.items():
        path = f"{place}/{key}" if place else str(key)
        if not any(_pawl.path_matches(glob, path) for glob in globs):
            kept[key] = _without(value, globs, path)
    return kept


def _give(live: Any, saved: Any, strict: bool, place: str) -> None:
    """What was saved to live objects, and into live dicts."""
    if hasattr(live, "load_state_dict"):
        if strict or not hasattr(live, "named_parameters"):
            live.load_state_dict(saved)
        else:
            live.load_state_dict(saved, strict=False)
        return
    if not isinstance(live, dict) or not isinstance(saved, dict):
        raise MismatchError(f"{place or 'the state'}: expected a dict, or live an object with load_state_dict")
    if strict and live.keys() != saved.keys():
        odd = sorted(str(key) for key in live.keys() ^ saved.keys())
        raise MismatchError(f"{place or 'the state'}: only one of live and saved state has {', '.join(odd)}")
    for key in live.keys() & saved.keys():
        if hasattr(live[key], "load_state_dict") or isinstance(live[key], dict):
            _give(live[key], saved[key], strict, f"{place}/{key}" if place else str(key))
        else:
            live[key] = saved[key]


# ---- a Trainer with one saver


def Trainer(*args: Any, save_folder: Path | None = None, autoresume: bool = False, **options: Any) -> Any:  # noqa: N802
    """Composer's Trainer with pawl's saver where it would make its own: for ``save_folder`` and the other ``save_...``
    options. ``autoresume`` goes on from the run's latest checkpoint."""
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
    with tempfile.TemporaryDirectory() as there:  # the Trainer has loaded when it is made
        latest = _latest_here(options["run_name"], saver, there) if autoresume else None
        if latest is not None:
            if options.get("load_path") is not None:
                warnings.warn(f"autoresume: {latest} is loaded, not {options['load_path']}", stacklevel=2)
            options["load_path"] = latest
        return composer.Trainer(*args, **options)


def _latest_here(run_name: str, saver: CheckpointSaver, there: str) -> str | None:
    remotes = (saver.latest_remote_file_name, saver.remote_file_name)
    names = (run_name, saver.folder, saver.latest_filename, *remotes)
    found = _pawl.saver_find(*names)
    return None if found is None else _pawl.saver_find(*names, found, there)
