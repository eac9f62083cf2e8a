# SPDX-License-Identifier: Apache-2.0
"""A single checkpoint as an object, and the functions save and load."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from . import _checks, _files, _pawl, _reports, files
from ._names import elsewhere, explained
from ._pawl import AccessError, CorruptError, NotFoundError, UnsupportedError, UsageError, VersionError
from .options import Cast
from .records import place_of

_NOTES = ".metadata.json"
_T = TypeVar("_T")


@explained
def save(
    state: object,
    path: str | os.PathLike[str],
    overwrite: bool = False,
    *,
    metadata: object = None,
    compression: str | None = None,
) -> None:
    """Saves one checkpoint as the folder ``path``; durable when it returns.

    Args:
        state: What ``CheckpointManager.save`` takes.
        path: A folder or a URL. A path that ends in .pt, .pth or .safetensors, and is not a folder,
            becomes a single file that other programs read. A compression may follow (.pt.zst).
        overwrite: Replace what exists there. Default: False.
        metadata: A tree of plain values, stored with the checkpoint; not in a single file. Default:
            None.
        compression: "zst" or "planes", of a folder's files. Default: None, no compression.

    Raises:
        ExistsError: Something exists at ``path``, and ``overwrite`` is False.
        UnsupportedError: The state has a value that cannot be saved; the message gives its path.
        UsageError: A single file holds no metadata, and its suffix selects the compression; or that
            suffix is unknown.
    """
    if isinstance(state, str | os.PathLike) and not isinstance(path, str | os.PathLike):
        raise UsageError("save: the path comes second: pawl.save(state, path)")
    if files.is_file_name(_checks.path("path", path)):
        if metadata is not None:
            raise UsageError(f"save: {os.fspath(path)} is a single file, which holds no metadata, only the state")
        if compression is not None:
            raise UsageError(f"save: {os.fspath(path)} is a single file; its suffix selects the compression")
        with files.FileSaver() as saver:
            saver.save(path, state, overwrite=overwrite, wait=True)
        return
    _save_folder(state, path, overwrite, metadata, compression)


def _save_folder(
    state: object, path: str | os.PathLike[str], overwrite: bool, metadata: object, compression: str | None = None
) -> None:
    run = _pawl.Run(_checks.path("path", path), single=True, overwrite=overwrite, **{"packs.compression": compression})
    try:
        run.save(0, state, metadata=metadata).wait()
    finally:
        run.close()


@explained
def load(
    path: str | os.PathLike[str],
    paths: Sequence[str] | None = None,
    *,
    state: object = None,
    strict: bool = True,
    rename: Sequence[tuple[str, str]] | None = None,
    cast: Cast = None,
) -> Any:
    """Loads one checkpoint. No code in a file is run.

    Args:
        path: A checkpoint's folder or URL, or RUN@SELECTOR: "runs/demo@400" is step 400. Other
            selectors are ``latest``, ``best``, ``good``, ``id:7`` and names. Also what another
            program wrote: a safetensors file, a file of torch.save, a folder of
            torch.distributed.checkpoint.
        paths: Globs of the values to load. Default: None, everything.
        state: Objects to restore into. Default: None, new objects.
        strict: Demand the same tensors and objects on both sides. Default: True.
        rename: As in ``CheckpointManager.restore``.
        cast: As in ``CheckpointManager.restore``.

    Returns:
        The saved tree; its tensors are new, or those of ``state``.

    Raises:
        NotFoundError: There is no such checkpoint; the message names those that exist.
        CorruptError: It is damaged.
        MismatchError: ``state`` and the checkpoint do not fit.
    """
    return _read(path, paths, state, strict, _checks.renames(rename), _checks.casts(cast))[0]


def is_foreign(path: str) -> bool:
    """Whether it is a file or a folder that another program wrote."""
    return os.path.isfile(path) or (
        os.path.isfile(os.path.join(path, ".metadata")) and not os.path.isfile(os.path.join(path, "manifest.json"))
    )


def new_folder(path: str | os.PathLike[str] | None) -> str:
    """The folder to write: a new temporary one if path is None, else one that is empty or does not
    exist.
    """
    if path is None:
        return os.path.join(tempfile.mkdtemp(prefix="pawl-"), "checkpoint")
    target = _checks.path("path", path)
    _files.make_room(target)
    return target


def is_far(place: str) -> bool:
    """Whether it is a URL of a store, not a folder of this machine."""
    return "://" in place


def of_run(run: _pawl.Run, id: int) -> Checkpoint:
    """A checkpoint of a run."""
    path = run.info(id)["path"]
    return Checkpoint._in_memory(run, id) if path.startswith("mem:") else Checkpoint(path)


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _read(
    path: str | os.PathLike[str],
    paths: Sequence[str] | None,
    state: object,
    strict: bool,
    rename: tuple[str, ...] = (),
    cast: tuple[str, ...] = (),
) -> tuple[Any, _pawl.Info, Any]:
    place = _checks.path("path", path)
    if isinstance(paths, Mapping) or hasattr(paths, "state_dict"):
        raise UsageError(
            f"load: paths comes second, received {_checks.shown(paths)}; write state=... to restore into it"
        )
    globs = _checks.globs(paths)

    def restore(run: _pawl.Run) -> tuple[Any, _pawl.Info, list[str], list[str], Any]:
        answer = run.restore(state, paths=globs, strict=strict, rename=rename, cast=cast)
        if answer is None:
            _pawl.explain_address(opened_as(run, place))
        return answer

    answer = look(place, restore)
    _reports.fallbacks(place, answer[1]["name"], answer[2])
    return answer[0], answer[1], answer[4]


def opened_as(run: _pawl.Run, place: str) -> str:
    """How an error about a checkpoint names it: as the caller did, or by the path of RUN@SELECTOR."""
    return place if _pawl.split_address(place)[1] is None else run.root


def run_of(place: str) -> _pawl.Run:
    """Opens RUN of RUN@SELECTOR."""
    root = _pawl.split_address(place)[0]
    try:
        return _pawl.Run(root, read_only=True)
    except (NotFoundError, UsageError):
        if is_far(root):
            raise
        _pawl.explain_address(place)


def named(place: str) -> str:
    """The place of the checkpoint that RUN@SELECTOR names now.

    Returns any other place unchanged.
    """
    selector = _pawl.split_address(place)[1]
    if selector is None:
        return place
    run = run_of(place)
    try:
        return of_run(run, run.find(selector))._path or place
    finally:
        run.close()


def _led_to(place: str) -> tuple[str, str]:
    """The place to open, and the target of the link that names it."""
    try:
        return place, os.readlink(place.removeprefix("file://"))
    except OSError:
        return (named(place),) * 2


def look(place: str, read: Callable[[_pawl.Run], _T], **options: Any) -> _T:
    """Opens one checkpoint, with further options of the run, and reads it.

    If the target of RUN/latest or RUN@best was deleted meanwhile, it follows the link again: it
    then leads to a newer checkpoint.
    """
    while True:
        before = _led_to(place)
        try:
            run = _pawl.Run(before[0], single=True, read_only=True, **options)
            try:
                return read(run)
            finally:
                run.close()
        except NotFoundError:
            if _led_to(place) == before:
                raise


def _foreign(value: object, path: str) -> str | None:
    """The place of the first value that JSON cannot hold, and its type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not (key is None or isinstance(key, str | int | float)):
                return f"'{path}': a key that is {_a(key)}"
            found = _foreign(inner, f"{path}/{key}" if path else str(key))
            if found:
                return found
        return None
    if isinstance(value, list | tuple):
        places = (_foreign(inner, f"{path}/{index}" if path else str(index)) for index, inner in enumerate(value))
        return next(filter(None, places), None)
    return None if value is None or isinstance(value, str | int | float) else f"'{path}': {_a(value)}"


def _as_json(metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata), indent=2)
    except (TypeError, ValueError) as error:
        try:
            found = _foreign(dict(metadata), "")
        except (TypeError, ValueError, RecursionError):
            found = None
        reason = f"{found} cannot be held in JSON" if found else str(error)
        raise UnsupportedError(f"the metadata: {reason}") from None


def only(run: _pawl.Run, path: str) -> _pawl.Info:
    """The checkpoint of a folder.

    Raises an error that explains why a folder is not a checkpoint.
    """
    found = run.list(True)
    if not found:
        _pawl.explain_address(path)
    if not found[-1]["bad"]:
        return found[-1]
    try:
        run.find("latest")
    except (AccessError, VersionError) as error:
        raise type(error)(f"{path}: {found[-1]['problem']}") from None
    except NotFoundError:
        pass
    if is_foreign(path) or os.path.isfile(os.path.join(path, "manifest.json")):
        raise CorruptError(f"{path}: {found[-1]['problem']}")
    _pawl.explain_address(path)


def _verify(path: str, name: str) -> None:
    """Reads every byte of a checkpoint's copy.

    Errors name the original, ``name``, as the damaged one.
    """
    run = _pawl.Run(path, single=True, read_only=True)
    try:
        only(run, path)
        for found in run.verify():
            where = f"{found['file']}, bytes {found['begin']} to {found['end']}"
            tensor = f", tensor {found['tensor']}" if found["tensor"] else ""
            raise CorruptError(f"{name}: {where}{tensor}: {found['message']}")
    finally:
        run.close()


class Checkpoint:
    """One checkpoint: a folder, or a state in memory. It does not change.

    Args:
        path: A folder or a URL, or what another program wrote (as ``pawl.load`` takes it). It is
            read when it is needed. RUN@SELECTOR stands for the checkpoint that it names now. The
            training run may delete it; RUN/latest stands for the newest one at each read.
    """

    _id = 0  # id of the checkpoint in a run in memory; 0: its only one

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """The checkpoint in a folder, by a path or a URL, or in what another program wrote (as load
        takes it). It is read when it is needed. RUN@SELECTOR stands for the checkpoint that it
        names now.
        """
        place = _checks.path("path", path)
        if place.partition(":")[0] in _pawl.url_schemes() and not is_far(place) and not os.path.lexists(place):
            _pawl.explain_address(place)
        place = named(place).removeprefix("file://")
        self._path: str | None = place if is_far(place) else os.path.abspath(place)
        self._run: _pawl.Run | None = None
        self._notes: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None) -> Checkpoint:
        """A checkpoint in memory: the values are copied now.

        Args:
            data: A dict that is a state.
            metadata: A dict of plain values. Default: None.

        Returns:
            The checkpoint.

        Raises:
            UsageError: ``data`` is not a dict.
        """
        if not isinstance(data, Mapping):
            raise UsageError(f"from_dict: expected a dict, received {_a(data)}")
        self = cls.__new__(cls)
        self._path = None
        self._notes = None
        self._run = _pawl.Run("mem:")
        self._run.save(0, dict(data), metadata=None if metadata is None else dict(metadata)).wait()
        return self

    @classmethod
    def _in_memory(cls, run: _pawl.Run, id: int) -> Checkpoint:
        """A checkpoint of an open run in memory, which can be read until the run is closed."""
        self = cls.__new__(cls)
        self._path, self._notes, self._run, self._id = None, None, run, id
        return self

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint in a folder: one of a run, or a single one.

        Args:
            path: As for the class.

        Returns:
            The checkpoint; nothing is read yet.
        """
        return cls(path)

    @property
    def path(self) -> pathlib.Path | str | None:
        """The folder; a URL is a ``str``; None in memory."""
        return None if self._path is None else place_of(self._path)

    def to_dict(self) -> dict[str, Any]:
        """The saved dict with new tensors.

        Returns:
            The dict with three more keys, unless it has them: ``_timestamp`` (seconds since 1970),
            ``_preprocessor`` (None) and ``_current_checkpoint_id`` (from 0).

        Raises:
            UsageError: The saved state is not a dict.
            CorruptError: The checkpoint is damaged.
        """
        state, info, first = self._numbered()
        if not isinstance(state, dict):
            raise UsageError(f"to_dict: the saved state is {_a(state)}, not a dict; pawl.load returns it")
        state.setdefault("_timestamp", int(info["time"]))
        state.setdefault("_preprocessor", None)
        state.setdefault("_current_checkpoint_id", first + max(info["id"] - 1, 0))
        return state

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> pathlib.Path:
        """Puts the checkpoint into a folder, which appears complete, verified and durable, or not
        at all.

        Args:
            path: A folder that does not exist yet or is empty. Default: None, a new temporary one.

        Returns:
            The path of the folder.

        Raises:
            ExistsError: There is something at ``path``.
            CorruptError: The checkpoint is damaged.
        """
        target = new_folder(path)
        here = self._here()
        if here is not None:

            def copy(run: _pawl.Run) -> None:
                only(run, here)
                _files.copy(os.path.realpath(here), target, _NOTES, _verify)

            look(here, copy)
            return pathlib.Path(target)
        state, _, metadata = self._load()
        _save_folder(state, target, False, metadata)
        if self._notes is not None:
            Checkpoint(target).set_metadata(self._notes)
        return pathlib.Path(target)

    @contextmanager
    def as_directory(self) -> Generator[pathlib.Path, None, None]:
        """The checkpoint as a folder to read from, for the length of a ``with`` block; a folder of
        this machine is not copied.

        Yields:
            Path of the folder.

        Raises:
            CorruptError: The checkpoint is damaged.
        """
        if (here := self._here()) is not None:
            yield pathlib.Path(here)
            return
        with tempfile.TemporaryDirectory(prefix="pawl-") as folder:
            yield self.to_directory(os.path.join(folder, "checkpoint"))

    def to_ray(self) -> Any:
        """A checkpoint for ``ray.train.report``; nothing is copied (pawl.ray).

        Returns:
            A ``ray.train.Checkpoint`` of the same folder.
        """
        from .ray import to_ray

        return to_ray(self)

    def get_metadata(self) -> Any:
        """The notes on this checkpoint.

        Returns:
            The notes that were set later, else the metadata that it was saved with (a file's
            ``__metadata__``); {} if there are none.

        Raises:
            AccessError: The notes cannot be read for lack of permission.
            CorruptError: The notes are damaged.
        """
        if self._notes is not None:
            return dict(self._notes)
        if self._path is not None:
            try:  # a URL is never the path of a file
                return _files.read_dict(os.path.join(self._path, _NOTES))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except PermissionError as error:
                raise AccessError(f"{self._path}: {error.strerror}") from error
            path = self._path
            return look(path, lambda run: run.metadata(only(run, path)["id"]))
        run = self._mem()
        return run.metadata(self._id or only(run, "the checkpoint in memory")["id"])

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replaces the notes on this checkpoint. They are stored in a separate file next to it, as
        JSON: the checkpoint itself never changes.

        Args:
            metadata: A dict that JSON can hold.

        Raises:
            UnsupportedError: It has a value that JSON cannot hold; the message gives its path.
            UsageError: The checkpoint was written by another program, or is not on this machine.
        """
        if self._path is None:
            self._notes = json.loads(_as_json(metadata))
            return
        if is_foreign(self._path):
            raise UsageError(f"set_metadata: {self._path} was written by another program; pawl only reads it")
        if is_far(self._path):
            raise UsageError(f"set_metadata: {self._path} is not on this machine; only notes in folders can be set")
        text = _as_json(metadata)
        if not os.path.isdir(self._path):
            _pawl.explain_address(self._path)
        _files.replace(os.path.join(self._path, _NOTES), text)

    def __eq__(self, other: object) -> bool:
        """Two objects are equal if they stand for the same folder, or the same state in memory."""
        if not isinstance(other, Checkpoint):
            return NotImplemented
        same = self._run is not None and (self._run, self._id) == (other._run, other._id)
        return self is other or (same if self._path is None else self._path == other._path)

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return f"Checkpoint({self._path!r})" if self._path is not None else "Checkpoint(in memory)"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(elsewhere("Checkpoint", name), name=name, obj=self)

    def _here(self) -> str | None:
        """The folder if it is on this machine and can be read directly, else None."""
        path = self._path
        return None if path is None or is_far(path) or is_foreign(path) else path

    def _numbered(self) -> tuple[Any, _pawl.Info, int]:
        """The state, its facts, and the number of checkpoints before its run."""
        return *self._load()[:2], 0

    def _mem(self) -> _pawl.Run:
        if self._run is None:
            raise UsageError("the checkpoint is neither a folder nor in memory")
        return self._run

    def _load(self) -> tuple[Any, _pawl.Info, Any]:
        if self._path is not None:
            return _read(self._path, None, None, True)
        answer = self._mem().restore(selector=f"id:{self._id}" if self._id else "latest")
        if answer is None:
            raise NotFoundError("the checkpoint in memory no longer exists")
        return answer[0], answer[1], answer[4]
