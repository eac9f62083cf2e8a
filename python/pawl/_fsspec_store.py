# SPDX-License-Identifier: Apache-2.0
"""A file system of fsspec as a store of the library, for URLs that it has no engine for.

py_stores.c calls it from any thread, several calls at a time. Keys are relative paths. Each method
is one operation and decides nothing. ``code_of`` turns the exceptions that it raises into error
codes.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import posixpath
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from . import _files, _fsspec, _pawl

_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
# The first class that matches decides.
_CODES: tuple[tuple[type[BaseException], type[_pawl.PawlError]], ...] = (
    (FileNotFoundError, _pawl.NotFoundError),
    (NotADirectoryError, _pawl.NotFoundError),
    (FileExistsError, _pawl.ExistsError),
    (PermissionError, _pawl.AccessError),
    (TimeoutError, _pawl.TimeoutError),
    (ConnectionError, _pawl.TransientError),
    (EOFError, _pawl.CorruptError),
    (MemoryError, _pawl.OutOfMemoryError),
    (NotImplementedError, _pawl.UnsupportedError),
    (ImportError, _pawl.UsageError),
    (ValueError, _pawl.UsageError),
)


def code_of(error: BaseException) -> int:
    """The library's error code for an exception of an operation."""
    code = getattr(error, "code", None)
    if isinstance(error, _pawl.PawlError) and isinstance(code, int):
        return code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _pawl.NoSpaceError.code
    if isinstance(error, OSError) and error.errno == errno.EBUSY:
        return _pawl.AccessError.code
    for kind, ours in _CODES:
        if isinstance(error, kind):
            return ours.code
    # KeyboardInterrupt and SystemExit do not come from the store: the operation was cancelled.
    return (_pawl.StorageError if isinstance(error, Exception) else _pawl.CancelledError).code


def _seconds(info: dict[str, Any]) -> float:
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _entry(info: dict[str, Any]) -> tuple[str, int, int, bool]:
    folder = info.get("type") == "directory"
    name = posixpath.basename(str(info["name"]).rstrip("/"))
    return name, 0 if folder else int(info.get("size") or 0), int(_seconds(info) * 1e9), folder


def _is_text(name: str) -> bool:
    """Whether the library can represent a name.

    Other programs may have stored other names. None of them belongs to the library.
    """
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


def _refuse(url: str) -> NoReturn:
    """Raises the library's error for a URL that no store can open."""
    try:
        _pawl.kind_of(url, False)
    except _pawl.UsageError as error:
        raise _pawl.UsageError(str(error).removeprefix(f"{url}: ")) from None
    raise _pawl.UsageError("unknown kind of store")


class Store:
    """The store below one URL."""

    def __init__(self, url: str, create: bool) -> None:
        try:
            import fsspec  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise _pawl.UsageError(
                "unknown kind of store; URLs like it go through fsspec, which is not installed (pip install fsspec)"
            ) from None
        from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped, unused-ignore]
        from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped, unused-ignore]

        if not _fsspec.takes(url):
            _refuse(url)
        self.fs, root = fsspec.core.url_to_fs(url)
        self.root = str(root).rstrip("/")
        kind = type(self.fs)
        self.can_copy = (
            getattr(kind, "_cp_file", None) is not AsyncFileSystem._cp_file
            if isinstance(self.fs, AsyncFileSystem)
            else kind.cp_file is not AbstractFileSystem.cp_file
        )
        # A file system with its own move may show a file that is still being written. New files are
        # therefore written under another name and moved.
        self._aside = kind.mv is not AbstractFileSystem.mv
        # File systems that are neither asynchronous nor local, such as the one in memory, may share
        # one position among all readers of an object. Their calls must take turns.
        alone = isinstance(self.fs, AsyncFileSystem) or "file" in self._protocols()
        self._turn: Any = (
            contextlib.nullcontext() if alone else self.fs.__dict__.setdefault("_pawl_turn", threading.RLock())
        )
        self._made: set[str] = set()
        if create:
            self._make(self.root)
            return
        with self._turn:
            self.fs.invalidate_cache()
            if not _fsspec.is_there(self.fs, self.root or "/"):
                raise FileNotFoundError("there is no such folder")

    def _protocols(self) -> tuple[str, ...]:
        names = self.fs.protocol
        return (names,) if isinstance(names, str) else tuple(names)

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def _make(self, folder: str) -> None:
        if folder and folder not in self._made:
            with self._turn:
                self.fs.invalidate_cache()  # else it may not make a folder that it listed before
                self.fs.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def _into(self, path: str, operation: Callable[[str], None]) -> None:
        """Makes the folder of path, then calls the operation with path.

        It tries twice: another process may have removed a folder that was made earlier.
        """
        folder = posixpath.dirname(path)
        self._make(folder)
        try:
            with self._turn:
                operation(path)
            return
        except FileNotFoundError:
            self._made.discard(folder)
        self._make(folder)
        with self._turn:
            operation(path)

    def _moves(self, source: str, target: str) -> bool:
        """Moves a file over another one. False if the file system does not replace files."""
        try:
            self.fs.mv(source, target)
        except OSError as error:
            if isinstance(error, FileExistsError) or error.errno == errno.EEXIST:
                return False
            raise
        # Some file systems then do nothing, without an error.
        self.fs.invalidate_cache()
        return not _fsspec.is_there(self.fs, source)

    def put(self, key: str, data: bytes) -> None:
        def write_data(path: str) -> None:
            if not self._aside:
                self.fs.pipe_file(path, data)
                return
            folder, name = posixpath.split(path)
            aside = f"{folder}/{_files.hidden_name(name, '.tmp')}"
            try:
                self.fs.pipe_file(aside, data)
                if not self._moves(aside, path):
                    self.fs.pipe_file(path, data)
                    self.fs.rm_file(aside)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.fs.rm_file(aside)
                raise

        self._into(self._path(key), write_data)

    def upload(self, key: str, source: str, nbytes: int) -> None:
        def send_file(path: str) -> None:
            self.fs.put_file(source, path)
            self.fs.invalidate_cache()
            found = self.fs.info(path).get("size")
            if found is not None and int(found) != nbytes:
                raise OSError(f"has {found} bytes, expected {nbytes}")

        self._into(self._path(key), send_file)

    def get(self, key: str, most: int) -> bytes:
        path = self._path(key)
        with self._turn:
            self.fs.invalidate_cache()
            info = self.fs.info(path)
            if info.get("type") == "directory":
                raise FileNotFoundError("there is no such object")
            if int(info.get("size") or 0) > most:
                raise _pawl.LimitError("is too long")
            return bytes(self.fs.cat_file(path))

    def read(self, key: str, offset: int, into: memoryview) -> None:
        with self._turn:
            data = self.fs.cat_file(self._path(key), start=offset, end=offset + len(into))
        if len(data) != len(into):
            raise EOFError(f"has {len(data)} bytes at {offset}, expected {len(into)}")
        into[:] = data

    def stat(self, key: str) -> tuple[str, int, int, bool]:
        with self._turn:
            self.fs.invalidate_cache()
            return _entry(self.fs.info(self._path(key)))

    def list(self, folder: str) -> list[tuple[str, int, int, bool]]:
        path = self._path(folder)
        with self._turn:
            self.fs.invalidate_cache()
            found = self.fs.ls(path or "/", detail=True)
            own = path.strip("/")
            rows = [_entry(info) for info in found if str(info["name"]).strip("/") != own]
            if not rows and folder and self.fs.info(path)["type"] != "directory":
                raise FileNotFoundError("is not a folder")
        return [row for row in rows if _is_text(row[0])]

    def remove(self, key: str, folder: bool) -> None:
        path = self._path(key)
        with self._turn:
            if folder:
                made = list(self._made)  # a copy, since other threads may add to it meanwhile
                self._made.difference_update(one for one in made if one == path or one.startswith(f"{path}/"))
                self.fs.invalidate_cache()
                _fsspec.remove_tree(self.fs, path)
            else:
                self.fs.rm_file(path)

    def copy(self, source: str, target: str) -> None:
        self._into(self._path(target), lambda path: self.fs.cp_file(self._path(source), path))
