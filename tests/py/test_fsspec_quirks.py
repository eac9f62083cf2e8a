# SPDX-License-Identifier: Apache-2.0
"""File systems of fsspec that cannot be reached, remember listings, or do not replace files by a move."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped, unused-ignore]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped, unused-ignore]
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped, unused-ignore]

import pawl
from pawl import Syncer, tune
from pawl._fsspec_store import Store
from pawl.tune import places


class Remote(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """A memory of its own, which cannot be reached below the paths that `down` matches."""

    protocol = "remote"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    down: re.Pattern[str] | None = None
    exists = AbstractFileSystem.exists
    isfile = AbstractFileSystem.isfile
    isdir = AbstractFileSystem.isdir

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("remote://", "memory://")))

    def _reach(self, path: str) -> None:
        if self.down is not None and self.down.match(self._strip_protocol(path)):
            raise ConnectionError("the network is down")

    def info(self, path: str, **kwargs: Any) -> Any:
        self._reach(path)
        return super().info(path, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._reach(path)
        return super().ls(path, detail=detail, **kwargs)


@pytest.fixture(name="remote")
def remote_kind() -> Iterator[type[Remote]]:
    fsspec.register_implementation("remote", Remote, clobber=True)
    Remote.store.clear()
    Remote.pseudo_dirs[:] = [""]
    Remote.down = None
    fs = fsspec.filesystem("remote")
    for name in ("experiment.json", "t1/checkpoint_000001/manifest.json", "t1/checkpoint_000001/a.safetensors"):
        fs.pipe_file(f"/up/exp/{name}", b"{}")
    yield Remote
    Remote.down = None


def fetch(local: pathlib.Path) -> None:
    syncer = Syncer(str(local), tune.SyncConfig(), remote="remote://up/exp")
    try:
        syncer.down()
    finally:
        syncer.close()


SYNC = tune.SyncConfig(upload_dir="remote://up")
ASKED: dict[str, Callable[[pathlib.Path], object]] = {
    "open": lambda _: Store("remote://up/exp", False),
    "down": fetch,
    "find": lambda local: places.find(str(local / "exp"), SYNC, None),
    "find AUTO": lambda local: places.find(str(local / "exp"), SYNC, "AUTO"),
    "can_continue": lambda _: places.can_continue("remote://up/exp"),
    "prune": lambda _: Syncer("/none", remote="remote://up/exp")._prune(["t1"]),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_cannot_be_reached_is_not_taken_for_missing(
    remote: type[Remote], asked: str, tmp_path: pathlib.Path
) -> None:
    before = dict(remote.store)
    remote.down = re.compile("/up")
    with pytest.raises((ConnectionError, pawl.PawlError), match="the network is down"):
        ASKED[asked](tmp_path)
    assert remote.store == before


def test_a_folder_that_cannot_be_listed_makes_a_sync_fail(remote: type[Remote], tmp_path: pathlib.Path) -> None:
    remote.down = re.compile("/up/exp/t1/")
    with pytest.raises((ConnectionError, pawl.PawlError), match="the network is down"):
        fetch(tmp_path)


@pytest.mark.parametrize("folder", ["t1", "t[1]"])
@pytest.mark.parametrize("down", ["/up", "/up/exp/[^/]*/"])
def test_a_folder_that_cannot_be_reached_is_not_taken_for_removed(remote: type[Remote], folder: str, down: str) -> None:
    fsspec.filesystem("remote").pipe_file("/up/exp/t[1]/checkpoint_000001/a.safetensors", b"{}")
    opened = Store("remote://up/exp", False)
    remote.down = re.compile(down)
    with pytest.raises(OSError, match=r"the network is down|not empty") as caught:
        opened.remove(folder, True)
    assert not isinstance(caught.value, FileNotFoundError)
    assert f"/up/exp/{folder}/checkpoint_000001/a.safetensors" in remote.store
    remote.down = None
    opened.remove(folder, True)
    assert not [name for name in remote.store if name.startswith(f"/up/exp/{folder}/")]
    with pytest.raises(FileNotFoundError):
        opened.remove(folder, True)


def test_nothing_is_found_where_nothing_is_stored(remote: type[Remote], tmp_path: pathlib.Path) -> None:
    other = tune.SyncConfig(upload_dir="remote://other")
    assert places.find(str(tmp_path / "exp"), other, None) == 0
    assert not places.can_continue("remote://other/exp")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        Store("remote://other/exp", False)


class Cached(LocalFileSystem):  # type: ignore[misc, unused-ignore]
    """Finds files in the listings of their folders, which it remembers."""

    protocol = "cached"
    cachable = True
    exists = AbstractFileSystem.exists

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("cached://")))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            with os.scandir(path) as entries:
                self.dircache[path] = [LocalFileSystem.info(self, entry) for entry in entries]
        found = self.dircache[path]
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        for info in self.ls(self._parent(path)):
            if info["name"] == path:
                return info
        raise FileNotFoundError(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not (exist_ok and self.exists(path)):
            super().makedirs(path, exist_ok)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_what_another_process_has_changed_meanwhile_is_seen(tmp_path: pathlib.Path) -> None:
    fsspec.register_implementation("cached", Cached, clobber=True)
    url, folder, local = f"cached://{tmp_path}/exp", tmp_path / "exp", tmp_path / "local"
    with pytest.raises(FileNotFoundError):
        Store(url, False)
    assert not places.can_continue(url)
    sync = Syncer(local, remote=url)
    for n in (1, 2):
        (folder / f"t{n}").mkdir(parents=True)
        (folder / f"t{n}" / "a").write_bytes(b"x")
        Store(url, False)
        sync.down()
        assert (local / f"t{n}" / "a").read_bytes() == b"x"
    (folder / "experiment.json").write_bytes(b"{}")
    assert places.can_continue(url)
    (folder / "t2" / "b").mkdir()
    (folder / "t2" / "b" / "c").write_bytes(b"x")
    sync._prune(["t2/b"])
    assert not (folder / "t2" / "b").exists()


def test_a_folder_that_another_process_has_removed_is_made_again(tmp_path: pathlib.Path) -> None:
    fsspec.register_implementation("cached", Cached, clobber=True)
    url, folder = f"cached://{tmp_path}/exp", tmp_path / "exp"
    opened = Store(url, True)
    opened.put("t/a", b"x")
    assert [name for name, *_ in opened.list("t")] == ["a"]
    assert opened.stat("t")[3]
    shutil.rmtree(folder / "t")
    opened.put("t/b", b"x")
    assert os.listdir(folder / "t") == ["b"]
    shutil.rmtree(folder)
    Store(url, True)
    assert folder.is_dir()


class NoReplace(LocalFileSystem):  # type: ignore[misc, unused-ignore]
    """Does not move a file over another one."""

    protocol = "noreplace"
    is_silent = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("noreplace://")))

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if not os.path.exists(self._strip_protocol(path2)):
            super().mv(path1, path2, **kwargs)
        elif not self.is_silent:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path2)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_file_is_replaced_where_a_move_does_not_replace(
    is_silent: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    fsspec.register_implementation("noreplace", NoReplace, clobber=True)
    monkeypatch.setattr(NoReplace, "is_silent", is_silent)
    opened = Store(f"noreplace://{tmp_path}/run", True)
    for data in (b"old", b"new"):
        opened.put("latest", data)
        assert (tmp_path / "run" / "latest").read_bytes() == data
        assert os.listdir(tmp_path / "run") == ["latest"]
