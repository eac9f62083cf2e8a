# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as trainers and train functions see them: a dict, or a folder of files."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from .. import _pawl, _pickles, _reports
from .._pawl import CorruptError, NotFoundError, UsageError
from ..checkpoint import Checkpoint as _Checkpoint
from ..checkpoint import _a, is_far, is_foreign, look, new_folder
from ..manager import _RANK_VALUES
from . import parts


def _is_run_or_checkpoint(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "manifest.json"))


class Checkpoint(_Checkpoint):
    """One checkpoint: a dict, or a folder with any files.

    ``from_dict`` and ``from_directory`` make one to report; it is copied when it is reported.
    ``get_checkpoint()`` and ``Result.checkpoint`` return one that is stored in a run. Paths are
    ``str``, as in Ray Train.

    Args:
        path: A folder, a file of another program, or a URL.
    """

    _rank = 0  # whose dict to return if those of all workers were kept
    _falls_back = False  # the caller asked for the newest of the run, and not for this one by its id

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._data: Mapping[str, Any] | None = None
        self._source: tuple[str, int] | None = None
        self._allow_pickle = False

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None, allow_pickle: bool = False
    ) -> Self:
        """A checkpoint to report.

        Args:
            data: The dict.
            metadata: Plain values by name, stored with it. Default: None.
            allow_pickle: Pickle values that a state cannot hold. Default: False.

        Returns:
            The checkpoint, in memory.

        Raises:
            UsageError: ``data`` is not a dict.
        """
        if not isinstance(data, Mapping):
            raise UsageError(f"from_dict: expected a dict, received {_a(data)}")
        self = cls.__new__(cls)
        self._path = self._run = self._source = None
        self._data = dict(data)
        self._notes = None if metadata is None else dict(metadata)
        self._allow_pickle = allow_pickle
        return self

    @classmethod
    def from_run(cls, root: str, id: int, *, allow_pickle: bool = False, rank: int = 0) -> Self:
        """A checkpoint of a run.

        Args:
            root: The run's folder or URL.
            id: Id of the checkpoint.
            allow_pickle: Load pickles in it. Default: False.
            rank: Whose dict to return if those of all workers were kept. Default: 0.

        Returns:
            The checkpoint; nothing is read yet.

        Raises:
            NotFoundError: There is no such run or checkpoint.
        """
        self = cls.__new__(cls)
        self._data = self._run = self._notes = None
        self._source, self._allow_pickle, self._rank = (root, id), allow_pickle, rank
        self._path = None
        with _opened(root) as run:
            path = run.info(id)["path"]
        if os.path.isabs(path):  # not in a bucket
            self._path = path
        return self

    @classmethod
    def of(cls, given: _Checkpoint) -> Checkpoint:
        """A ``pawl.Checkpoint`` as one of this class.

        Args:
            given: The checkpoint.

        Returns:
            The same checkpoint.
        """
        if isinstance(given, Checkpoint):
            return given
        if given.path is not None:
            return cls(given.path)
        return cls.from_dict(given.to_dict(), metadata=given.get_metadata())

    @property
    def path(self) -> str | None:
        """The folder; the URL if the run is in a bucket; None in memory."""
        if self._path is None and self._source is not None:
            with _opened(self._source[0]) as run:
                return run.info(self._source[1])["path"]
        return self._path

    # ---- what a report takes ----

    @property
    def folder(self) -> str | None:
        """The folder of files to report, or None. Raises NotFoundError if it does not exist."""
        path = self._path if self._data is None and self._source is None else None
        if path is None or is_far(path) or is_foreign(path) or _is_run_or_checkpoint(path):
            return None
        if not os.path.isdir(path):
            raise NotFoundError(f"{path} is neither a folder nor a file of a checkpoint")
        return path

    def values(self, allow_pickle: bool) -> dict[str, Any]:
        """The dict to report. For a stored checkpoint, its contents.

        Args:
            allow_pickle: Pickle values that a state cannot hold.

        Returns:
            The dict, with pickled values if they are allowed.

        Raises:
            UsageError: The checkpoint is not a dict.
        """
        data = dict(self._data) if self._data is not None else self._whole()[0]
        if not isinstance(data, dict):
            raise UsageError(f"report: the checkpoint {self!r} holds {_a(data)}, not a dict")
        wrapped: dict[str, Any] = _pickles.wrap(data) if allow_pickle or self._allow_pickle else data
        return wrapped

    def detached(self) -> Self:
        """The same checkpoint in memory, or in a new folder.

        Returns:
            A checkpoint that does not need the run.
        """
        if self._kind() == "files":
            return type(self)(self.to_directory())
        made = type(self).from_dict(self.to_dict(), metadata=self.get_metadata(), allow_pickle=self._allow_pickle)
        made._mem()
        made._data = None
        return made

    # ---- reading ----

    def to_dict(self) -> dict[str, Any]:
        """The reported dict with new tensors.

        Returns:
            The dict with three more keys, unless it has them: ``_timestamp`` (seconds since 1970),
            ``_preprocessor`` (None) and ``_current_checkpoint_id`` (from 0; in a resumed training
            it continues from the number of the checkpoint that it began with).

        Raises:
            UsageError: The checkpoint is a folder of files.
            CorruptError: It is damaged.
        """
        return super().to_dict()

    def restore(self, state: Any) -> None:
        """Restores a reported dict in place.

        Args:
            state: A tree of tensors and objects with ``load_state_dict``. Distributed tensors get
                the pieces that this worker holds now, and ``pawl.PerRank`` this worker's value.

        Raises:
            UsageError: The checkpoint is not a saved dict.
            MismatchError: The dict does not fit the state, or several workers have saved values per
                rank, and the number of workers has changed.
        """
        if self._kind() != "dict" or (self._source is None and self._path is None):
            raise UsageError(f"restore: {self!r} is not a saved dict; use to_dict() or as_directory()")
        if self._source is None:
            look(self._path or "", lambda run: _restore_into(state, run), **_own_rank())
            return
        with _opened(self._source[0], **_own_rank()) as run:
            _restore_into(state, run, self._source[1])

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:  # type: ignore[override]
        """Writes the reported files into a folder. A dict becomes a folder that ``pawl.load``
        reads.

        Args:
            path: A folder that is new or empty. Default: None, a temporary one.

        Returns:
            Path of the folder.

        Raises:
            ExistsError: The folder is not empty.
        """
        folder = self.folder
        if folder is None and self._kind() != "files":
            return os.fspath(super().to_directory(path))
        target = new_folder(path)
        if folder is not None:
            import shutil

            shutil.copytree(folder, target, dirs_exist_ok=True)
        else:
            os.makedirs(target, exist_ok=True)
            parts.put_files(self._raw()[0], target)
        return target

    @contextmanager
    def as_directory(self) -> Generator[str, None, None]:  # type: ignore[override]
        """The folder of ``to_directory``, to read from, for the length of a ``with`` block.

        Yields:
            Path of the folder.

        Raises:
            CorruptError: The checkpoint is damaged.
        """
        with super().as_directory() as folder:
            yield os.fspath(folder)

    def get_metadata(self) -> Any:
        """The notes on this checkpoint.

        Returns:
            What was given as metadata; {} if there is none.
        """
        if self._data is not None:
            return dict(self._notes or {})
        if self._source is None and self._notes is None and self.folder is not None:
            return {}
        if self._path is None and self._source is not None and self._notes is None:
            with _opened(self._source[0]) as run:
                return _users(run.metadata(self._source[1]))
        return _users(super().get_metadata())

    def __repr__(self) -> str:
        where = self._source[0] if self._path is None and self._source is not None else self._path
        return f"Checkpoint({where!r})" if where is not None else "Checkpoint(in memory)"

    # ---- inside ----

    def _here(self) -> str | None:
        if (folder := self.folder) is not None:
            return folder
        here = super()._here()
        return here if here is not None and self._kind() != "files" else None

    def _numbered(self) -> tuple[Any, _pawl.Info, int]:
        state, info, notes = self._whole()
        return state, info, notes.get("first", 0)

    def _mem(self) -> _pawl.Run:
        if self._run is None and self._data is not None:
            self._run = _pawl.Run("mem:")
            data = _pickles.wrap(dict(self._data)) if self._allow_pickle else dict(self._data)
            self._run.save(0, data, metadata=self._notes).wait()
        return super()._mem()

    def _raw(self) -> tuple[Any, _pawl.Info, Any]:
        """The stored state, its facts and its metadata."""
        if self._source is None:
            return super()._load()
        root, id = self._source
        with _opened(root) as run:
            try:
                answer = run.restore(None, selector=f"id:{id}")
            except CorruptError:
                if not self._falls_back or any(info["id"] > id for info in run.list()):
                    raise
                answer = run.restore(None, selector="latest")  # falls back to an older one
                if answer is not None and answer[1]["id"] > id:  # saved meanwhile
                    raise
        if answer is None:
            raise NotFoundError(f"{root} has no checkpoint {id}")
        _reports.fallbacks(root, answer[1]["name"], answer[2])
        return answer[0], answer[1], answer[4]

    def _whole(self) -> tuple[Any, _pawl.Info, dict[str, Any]]:
        """The reported dict, its facts, and the trainer's notes."""
        if self.folder is not None:
            raise UsageError(f"{self._path} is a folder of files, not a dict: use as_directory()")
        state, info, metadata = self._raw()
        notes = _notes(metadata)
        if notes.get("kind") == "files":
            raise UsageError(f"{self!r} is a folder of files, not a dict: use as_directory()")
        if notes.get("kind") == "ranks":
            state = parts.join_ranks(state, self._rank)
        return _pickles.unwrap(state, self._allow_pickle), info, notes

    def _load(self) -> tuple[Any, _pawl.Info, Any]:
        state, info, _ = self._whole()
        return state, info, self.get_metadata()

    def _kind(self) -> str:
        if self._data is not None or (self._path is not None and is_foreign(self._path)):
            return "dict"
        if self._source is not None:
            with _opened(self._source[0]) as run:
                return str(_notes(run.metadata(self._source[1])).get("kind", "dict"))
        if self._path is None or not _is_run_or_checkpoint(self._path):
            return "dict"
        run = _pawl.Run(self._path, single=True, read_only=True)
        try:
            return str(_notes(run.metadata(run.list()[-1]["id"])).get("kind", "dict"))
        finally:
            run.close()


def _notes(metadata: Any) -> dict[str, Any]:
    found = metadata.get(parts.NOTES) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _users(metadata: Any) -> Any:
    if isinstance(metadata, dict) and parts.NOTES in metadata:
        return metadata.get("user") or {}
    return metadata


def _own_rank() -> dict[str, int]:
    """The rank of this worker as options of a run; outside of a worker none."""
    from . import session  # not at the top: it imports this module

    here = session._here
    return {} if here is None else {"ranks.rank": here.rank, "ranks.world_size": here.world_size}


def _restore_into(state: Any, run: _pawl.Run, id: int | None = None) -> None:
    """Restores a checkpoint of a run, or the only one of its folder.

    The values per rank of a single process go to every rank.
    """
    by_one = all(info["world_size"] == 1 for info in run.list() if id in (None, info["id"]))
    selector = None if id is None else f"id:{id}"
    if run.restore(state, selector=selector, rank_values=_RANK_VALUES["wrap" if by_one else "strict"]) is None:
        _pawl.explain_address(run.root)


@contextmanager
def _opened(root: str, **options: Any) -> Generator[_pawl.Run, None, None]:
    run = _pawl.Run(root, read_only=True, **options)
    try:
        yield run
    finally:
        run.close()


# Ray Train has its older classes in this module. Here they are loaded on first use.
_OLDER = (
    "MAX",
    "MIN",
    "CheckpointManager",
    "CheckpointStrategy",
    "PersistedCheckpoint",
    "TuneCheckpointManager",
    "construct_checkpoint_file_name",
)


def __getattr__(name: str) -> Any:
    if name in _OLDER:
        from . import legacy

        return getattr(legacy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
