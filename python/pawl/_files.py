# SPDX-License-Identifier: Apache-2.0
"""The few file operations of this package itself:

- copying a checkpoint's folder
- writing the notes next to a checkpoint
- giving a finished folder its name

The result appears complete and durable, or not at all. It is written under a hidden name next to
the target, synced, then renamed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import _pawl
from ._pawl import (
    AccessError,
    CorruptError,
    ExistsError,
    NoSpaceError,
    NotFoundError,
    PawlError,
    ReadOnlyError,
    StorageError,
)

_KINDS: tuple[tuple[type[OSError], Callable[[str], PawlError]], ...] = (
    (FileNotFoundError, NotFoundError),
    (NotADirectoryError, NotFoundError),
    (FileExistsError, ExistsError),
    (PermissionError, AccessError),
)
_NUMBERS = {
    "EBUSY": AccessError,
    "ENOSPC": NoSpaceError,
    "EDQUOT": NoSpaceError,
    "EROFS": ReadOnlyError,
    "ENOTEMPTY": ExistsError,
}


@contextmanager
def _as_ours(path: str) -> Generator[None, None, None]:
    """Turns errors of the system into pawl's errors, which name the target."""
    try:
        yield
    except PawlError:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        kind = next((kind for base, kind in _KINDS if isinstance(error, base)), StorageError)
        raise _NUMBERS.get(name, kind)(f"{path}: {error.strerror}: {error.filename}") from error


def walk(top: str, followlinks: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk``, but a folder that cannot be listed is an error, unless it is gone by now."""

    def fail(error: OSError) -> None:
        if error.filename == top or not isinstance(error, FileNotFoundError):
            raise error

    with _as_ours(top):
        yield from os.walk(top, onerror=fail, followlinks=followlinks)


def read_dict(path: str) -> dict[str, Any]:
    """Reads a JSON object. Raises CorruptError if the file holds something else, or was cut."""
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise CorruptError(f"{path}: expected JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def hidden_name(name: str, suffix: str = ".partial") -> str:
    """A name as src/base/hidden.h has them. pawl lists, reads and copies no file of such a name."""
    return f".{name.lstrip('.')[:50]}.{uuid.uuid4().hex}{suffix}"  # at most 255 bytes


def hidden(target: str, suffix: str = ".partial") -> str:
    """A hidden name next to the target."""
    above, name = os.path.split(os.path.abspath(target))
    return os.path.join(above, hidden_name(name, suffix))


def make_room(target: str) -> None:
    """Raises ExistsError if something exists at the target. Removes an empty folder."""
    if not os.path.lexists(target):
        return
    with _as_ours(target):
        if os.path.islink(target) or not os.path.isdir(target) or os.listdir(target):
            raise ExistsError(f"{target} already exists; to_directory makes a new folder")
        os.rmdir(target)


def copy(source: str, target: str, notes: str, verify: Callable[[str, str], None]) -> None:
    """Copies the files of a checkpoint into a new folder; of hidden files, only the notes."""
    partial = hidden(target)
    try:
        with _as_ours(target):
            os.mkdir(partial)
            for file in os.listdir(source):
                is_plain = stat.S_ISREG(os.lstat(os.path.join(source, file)).st_mode)
                if is_plain and (file == notes or not file.startswith(".")):
                    shutil.copyfile(os.path.join(source, file), os.path.join(partial, file))
                    _sync(os.path.join(partial, file))
            _sync(partial)
            verify(partial, source)
            os.rename(partial, target)
            _sync(os.path.dirname(partial))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def replace(target: str, content: str | bytes, durable: bool = True, near: str | None = None) -> None:
    """Replaces a file's content atomically.

    near: the hidden file is made next to this path. None: next to the target.
    """
    partial = hidden(near or target, ".tmp")
    try:
        with _as_ours(target):
            with open(partial, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(partial, target)
            if durable:
                _sync(os.path.dirname(os.path.abspath(target)))
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _take_place(partial: str, target: str) -> str:
    """Gives a folder the name of another one. Returns the new name of the other one, which is hidden."""
    try:
        _pawl.exchange(partial, target)
        return partial
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    aside = hidden(target)
    os.rename(target, aside)
    try:
        os.rename(partial, target)
    except BaseException:
        os.rename(aside, target)
        raise
    return aside


def publish(partial: str, target: str) -> None:
    """Syncs a folder with its contents, and gives it the target's name durably.

    Replaces a folder of that name.
    """
    with _as_ours(target):
        for folder, _, files in os.walk(partial, topdown=False):
            for file in files:
                if not os.path.islink(os.path.join(folder, file)):
                    _sync(os.path.join(folder, file))
            _sync(folder)
        try:
            os.rename(partial, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(_take_place(partial, target), ignore_errors=True)
        _sync(os.path.dirname(target))
