# SPDX-License-Identifier: Apache-2.0
"""URLs that pawl has no engine for, where fsspec is installed and knows them."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import Any

from ._pawl import url_schemes

_OWN = (*url_schemes(), "rsync")
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


def has(url: str, name: str) -> bool:
    """Whether a file of that name exists at a URL."""
    import fsspec

    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()  # other processes may have changed what it listed before
    return is_there(fs, posixpath.join(root, name))
