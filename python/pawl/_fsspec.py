# SPDX-License-Identifier: Apache-2.0
"""A sync function for URLs that pawl cannot open itself. It uses fsspec, where that is installed.

Files are copied in this order:

- packs and other files
- the manifests of checkpoints, and the journals of searches
- ``experiment.json``, which makes a folder a search
- the pointers ``latest`` and ``best``

Each sent file is read back and compared byte by byte.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import Any

from ._pawl import CorruptError, url_schemes

_OWN = (*url_schemes(), "rsync")
_PIECE = 8 << 20
_POINTERS = ("latest", "best")
_MAGIC = frozenset("*?[")


def takes(url: str) -> bool:
    """Whether it is a URL for fsspec."""
    scheme, sign, _ = url.partition("://")
    if not sign or scheme in _OWN:
        return False
    try:
        import fsspec  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return False
    kind = scheme.split("::")[0]
    # The program may have registered its own.
    return kind in fsspec.available_protocols() or kind in fsspec.registry


def _stays(name: str) -> bool:
    """Whether a file is never copied: those of running saves, the lease, temporary files."""
    return name == ".lease" or (name.startswith(".") and name.endswith((".partial", ".tmp")))


def _turn(key: str) -> int:
    name = posixpath.basename(key)
    if name in ("manifest.json", "journal"):
        return 1
    return 2 if name == "experiment.json" else 3 if name in _POINTERS else 0


def _is_missing(error: OSError) -> bool:
    # Some file systems raise an OSError of their own class.
    return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in (errno.ENOENT, errno.ENOTDIR)


def is_there(fs: Any, path: str) -> bool:
    """Whether something is stored at path.

    ``fs.exists`` would also answer False if the file system cannot be reached.
    """
    try:
        fs.info(path)
    except OSError as error:
        if _is_missing(error):
            return False
        raise
    return True


def _tree(fs: Any, path: str) -> tuple[list[str], list[str]]:
    """The files and the folders in a folder, at any depth, each folder before what is in it.

    A folder that does not exist is empty. ``fs.find`` would also pass over each folder that cannot
    be listed.
    """
    files: list[str] = []
    folders: list[str] = []
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            found = fs.ls(folder or "/", detail=True)
        except OSError as error:
            if _is_missing(error):
                continue
            raise
        for info in found:
            name = str(info["name"]).rstrip("/")
            if name.strip("/") == folder.strip("/"):
                continue  # some file systems list a folder in itself
            if info.get("type") == "directory":
                folders.append(name)
                waiting.append(name)
            else:
                files.append(name)
    return files, folders


def remove_tree(fs: Any, path: str) -> None:
    """Removes a folder and all that is in it."""
    if not is_there(fs, path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Many file systems would take such a path for a pattern, and remove other files that match it.
    if _MAGIC.isdisjoint(path):
        with contextlib.suppress(FileNotFoundError):
            fs.rm(path, recursive=True)
        fs.invalidate_cache()
    # fs.rm passes over folders that it cannot list.
    files, folders = _tree(fs, path)
    for name in files:
        fs.rm_file(name)
    for name in [*reversed(folders), path]:
        try:
            fs.rmdir(name)
        except (ConnectionError, TimeoutError):
            raise
        except (OSError, NotImplementedError):
            pass  # file systems without folders


class Fsspec:
    """A sync function between a local folder and a URL."""

    def __init__(self, local: str, url: str) -> None:
        self.local, self.url = local, url
        self.checkpoints = 0
        self._equal: set[tuple[str, int, int]] = set()

    def _reach(self) -> tuple[Any, str]:
        """The file system of the URL and the path there."""
        import fsspec

        fs, root = fsspec.core.url_to_fs(self.url)
        fs.invalidate_cache()  # other processes may have changed what it listed before
        return fs, root

    def has(self, name: str) -> bool:
        """Whether a file of that name exists at the URL."""
        fs, root = self._reach()
        return is_there(fs, posixpath.join(root, name))

    def __call__(self, source: str, target: str) -> None:
        fs, root = self._reach()
        if source == self.url:
            self._down(fs, root)
        else:
            self._up(fs, root, source)

    def _up(self, fs: Any, root: str, local: str) -> None:
        files: list[str] = []
        for folder, folders, names in os.walk(local):
            folders[:] = [name for name in folders if not _stays(name)]
            below = os.path.relpath(folder, local).replace(os.sep, "/")
            for name in [*names, *(n for n in folders if os.path.islink(os.path.join(folder, n)))]:
                if not _stays(name):
                    files.append(posixpath.normpath(posixpath.join(below, name)))
        self.checkpoints = sum(posixpath.basename(key) == "manifest.json" for key in files)
        for key in sorted(files, key=lambda key: (_turn(key), key)):
            self._send(fs, key, os.path.join(local, key), posixpath.join(root, key))

    def _send(self, fs: Any, key: str, here: str, there: str) -> None:
        if os.path.islink(here):
            fs.makedirs(posixpath.dirname(there), exist_ok=True)
            fs.pipe_file(there, (os.readlink(here) + "\n").encode())
            return
        try:
            status = os.stat(here)
        except FileNotFoundError:
            return  # retention has deleted it meanwhile
        mark = (key, status.st_size, status.st_mtime_ns)
        there_now = is_there(fs, there)
        if mark in self._equal and there_now:
            return
        if not (there_now and fs.size(there) == status.st_size and self._same(fs, here, there)):
            fs.makedirs(posixpath.dirname(there), exist_ok=True)
            fs.put_file(here, there)
            if not self._same(fs, here, there):
                raise CorruptError(f"{self.url}/{key}: the stored bytes differ from those sent")
        self._equal.add(mark)

    @staticmethod
    def _same(fs: Any, here: str, there: str) -> bool:
        with open(here, "rb") as ours, fs.open(there, "rb") as theirs:
            while True:
                piece = ours.read(_PIECE)
                if theirs.read(len(piece) or 1) != piece:
                    return False
                if not piece:
                    return True

    def prune(self, folders: list[str]) -> None:
        """Removes folders at the URL."""
        fs, root = self._reach()
        for there in (posixpath.join(root, folder) for folder in folders):
            for path in sorted(_tree(fs, there)[0], key=_turn, reverse=True):
                if _turn(path) > 0:  # first: the rest is then not a checkpoint
                    fs.rm_file(path)
            with contextlib.suppress(FileNotFoundError):  # it is gone with its last file
                remove_tree(fs, there)

    def _down(self, fs: Any, root: str) -> None:
        base = root.rstrip("/") + "/"
        found = [path for path in _tree(fs, root)[0] if path.startswith(base)]
        for path in sorted(found, key=lambda path: (_turn(path), path)):
            key = path[len(base) :]
            if any(part in ("", ".", "..") or _stays(part) for part in key.split("/")):
                continue
            here = os.path.join(self.local, *key.split("/"))
            os.makedirs(os.path.dirname(here), exist_ok=True)
            if posixpath.basename(key) in _POINTERS:
                continue  # only hints, which the next training run writes again
            if os.path.exists(here) and os.path.getsize(here) == fs.size(path) and "/checkpoints/" in f"/{key}":
                continue
            part = os.path.join(os.path.dirname(here), f".{os.path.basename(here)}.sync.tmp")
            fs.get_file(path, part)
            os.replace(part, here)
