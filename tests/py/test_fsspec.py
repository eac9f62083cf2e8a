# SPDX-License-Identifier: Apache-2.0
"""Runs and mirrors in file systems that fsspec knows (docs/how-to/stores/fsspec.md): the library calls into Python for them."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped, unused-ignore]
from s3_servers import BUILD
from waiting import HANG_SECONDS

import pawl
from pawl import tune
from pawl.tune import places

SUITE = """
import ctypes, sys
from pawl import _pawl
suite = ctypes.CDLL(sys.argv[1])
sys.exit(suite.conformance(ctypes.c_void_p(_pawl.stores()), sys.argv[2].encode()))
"""


def state(step: int) -> dict[str, Any]:
    return {"w": np.full((60, 500), step, dtype=np.float32), "step": step}


@pytest.fixture(name="url", params=["memory", "local"])
def fresh_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield f"local://{tmp_path}/run"
    else:
        name = uuid.uuid4().hex
        yield f"memory://{name}/run"
        with contextlib.suppress(FileNotFoundError):
            MemoryFileSystem().rm(f"/{name}", recursive=True)


def test_the_conformance_suite_runs_over_fsspec(url: str) -> None:
    """The suite of every engine; skipped is what cannot be had without conditional puts and folders that are renamed."""
    library = BUILD / "tests" / "conformance.so"
    command = [sys.executable, "-c", SUITE, str(library), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert set(re.findall(r"SKIPPED \] (test_\w+)", out)) == {
        "test_what_was_put_is_cached_where_a_cache_is_known",
        "test_a_folder_is_no_object_and_an_object_no_folder",
        "test_publish_moves_a_folder_whole",
        "test_exclusive_put_refuses_an_existing_key",
        "test_P10_of_two_racing_exclusive_puts_exactly_one_wins",
        "test_P10_publish_never_replaces",
        "test_P10_of_two_racing_publishes_exactly_one_wins",
    }


def test_a_run_lives_in_any_file_system_of_fsspec(url: str) -> None:
    """Saved in the background, kept by its rules, verified, restored into live arrays, continued, deleted."""
    rules: dict[str, Any] = {"num_to_keep": 2, "score_attribute": "loss", "score_order": "min"}
    with pawl.CheckpointManager(url, **rules) as m:
        for step in range(1, 5):
            m.save(step, state(step), metrics={"loss": abs(step - 2)})
        m.wait_until_finished()
        assert m.all_steps() == [1, 2, 4]  # the two best, and the latest
        assert (m.latest_step(), m.best_step()) == (4, 2)
    with pawl.CheckpointManager(url, **rules) as m:
        live = state(0)
        m.restore(live, step=2)
        assert live["step"] == 2
        assert (live["w"] == 2).all()
        m.save(5, state(5), metrics={"loss": 9.0}, wait=True)
        assert m.latest_step() == 5
        m.delete(5, force=True)
        assert 5 not in m.all_steps()
    single = url.replace("/run", "/single")
    pawl.save({"a": np.arange(5)}, single)
    assert list(pawl.load(single)["a"]) == [0, 1, 2, 3, 4]


def test_a_run_is_mirrored_to_fsspec_and_comes_back(url: str, tmp_path: pathlib.Path) -> None:
    home = tmp_path / "home"
    with pawl.CheckpointManager(home, mirrors=[url]) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished(level="remote")
    for pack in home.glob("checkpoints/*/*.safetensors"):
        pack.write_bytes(b"damaged")
    with pawl.CheckpointManager(home, mirrors=[url]) as m:
        live = state(0)
        m.restore(live)
        assert live["step"] == 1
        assert (live["w"] == 1).all()
    with pawl.CheckpointManager(url, read_only=True) as m:
        assert m.all_steps() == [1]


class NoCopy(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """Cannot make an object of another by itself."""

    protocol = "nocopy"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    cp_file = fsspec.spec.AbstractFileSystem.cp_file

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("nocopy://", "memory://")))


@pytest.mark.parametrize("how", ["flip", "cut", "lose"])
@pytest.mark.parametrize("kind", ["memory", "local", "nocopy"])
def test_P1_a_damaged_pack_is_read_from_a_mirror_and_replaced_where_that_can_be(
    kind: str, how: str, tmp_path: pathlib.Path
) -> None:
    fsspec.register_implementation("nocopy", NoCopy, clobber=True)
    root = f"{kind}://{tmp_path}/run"
    mirror = str(tmp_path / "mirror")
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished(level="remote")
    fs, folder = fsspec.core.url_to_fs(root)
    (pack,) = (path for path in fs.find(folder) if path.endswith(".safetensors"))
    good = fs.cat_file(pack)
    if how == "lose":
        fs.rm_file(pack)
    else:
        fs.pipe_file(pack, good[:-100] if how == "cut" else good[:9000] + bytes([good[9000] ^ 1]) + good[9001:])
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        restored = m.restore()
        assert restored is not None
        assert (restored.state["w"] == 1).all()
        did = "read elsewhere" if kind == "nocopy" else "repaired"
        assert restored.report == [f"{did}: checkpoint_000001/{os.path.basename(pack)} from {mirror}"]
        assert bool(m.verify()) == (kind == "nocopy")
    assert (fs.exists(pack) and fs.cat_file(pack) == good) == (kind != "nocopy")
    fs.rm(folder, recursive=True)


def test_what_such_a_store_cannot_is_said(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """No conditional puts: one process at a time, which a job of many ranks is not."""
    with caplog.at_level(logging.WARNING, "pawl"), pawl.CheckpointManager(url):
        assert "nothing keeps two writers apart" in caplog.text
    with pytest.raises(pawl.UnsupportedError, match="keeps two writers apart"):
        pawl.CheckpointManager(url, ranks=pawl.Ranks(rank=0, world_size=2))


def test_such_a_run_is_copied_inspected_and_loaded_by_its_url(url: str, tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(url) as m:
        m.save(1, state(1))
        m.save(2, state(2))
    assert list(pawl.tree(url)) == [1, 2]
    assert pawl.tree(f"{url}@2")["step"] == 2
    there, back = f"{url}-copy", tmp_path / "back"
    assert sorted(row.id for row in pawl.copy(url, there)) == [1, 2]
    assert [row.was_there for row in pawl.copy(url, there)] == [True, True]
    assert len(pawl.copy(there, back)) == 2
    assert pawl.load(f"{back}@1")["step"] == 1
    pawl.copy(f"{url}@1", f"{url}-one")
    assert pawl.tree(f"{url}-one")["step"] == 1


def test_R142_P6_a_checkpoint_that_is_held_is_not_deleted(url: str) -> None:
    """A hold has a name of its own, so that it needs no conditional put."""
    with pawl.CheckpointManager(url, num_to_keep=1) as m:
        m.save(1, state(1), wait=True)
        with pawl.hold(url, m.checkpoints()[0].id) as held:
            m.save(2, state(2), wait=True)
            assert m.all_steps() == [1, 2]
            with pytest.raises(pawl.BusyError, match="held"):
                m.delete(1, force=True)
            assert held.path == m.checkpoint(step=1).path
        m.save(3, state(3), wait=True)
        assert m.all_steps() == [3]  # the control


def test_folders_that_others_remove_are_made_again(url: str) -> None:
    """What was made once may be gone: another process has swept up what was empty."""
    fs, root = fsspec.core.url_to_fs(url)
    with pawl.CheckpointManager(url) as m:
        m.save(1, state(1), wait=True)
        m.pin(1)
        m.unpin(1)
        for folder in (".pawl", "checkpoints"):
            with contextlib.suppress(FileNotFoundError):
                fs.rm(f"{root}/{folder}", recursive=True)
        m.save(2, state(2), wait=True)
        m.pin(2)
        assert m.all_steps() == [2]
    with pawl.CheckpointManager(url, read_only=True) as m:
        assert [info.pinned for info in m.checkpoints()] == [True]


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("nosuchkind://place/run", "cannot open: unknown kind of store, expected a path, file://path, s3://"),
        ("sftp://me:secret@host/run", "a password in a URL is shown and logged"),
        ("sftp://me:sec/secret@host/run", "a password in a URL is shown and logged"),
        ("memory://there/is/none", "there is no such folder"),
    ],
)
def test_roots_that_cannot_be_opened_are_named(root: str, text: str) -> None:
    with pytest.raises((pawl.UsageError, pawl.NotFoundError), match=re.escape(text)) as caught:
        pawl.CheckpointManager(root, read_only=True)
    assert "secret" not in str(caught.value)


class Failing(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """A memory of its own, whose operations do first what `before` has for their names."""

    protocol = "failing"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    before: dict[str, Callable[[str], None]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("failing://", "memory://")))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self.before.get("put", lambda _: None)(rpath)
        super().put_file(lpath, rpath, *args, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.before.get("read", lambda _: None)(path)
        return bytes(super().cat_file(path, *args, **kwargs))

    def rm(self, path: str, *args: Any, **kwargs: Any) -> None:
        self.before.get("remove", lambda _: None)(path)
        super().rm(path, *args, **kwargs)

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.before.get("list", lambda _: None)(path)
        return super().ls(path, *args, **kwargs)


@pytest.fixture(name="failing")
def failing_kind() -> Iterator[type[Failing]]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.store.clear()
    Failing.before.clear()
    yield Failing
    Failing.before.clear()


def test_what_may_pass_is_tried_again_and_what_may_not_is_told(failing: type[Failing]) -> None:
    tries: list[str] = []

    def twice(path: str) -> None:
        tries.append(path)
        if len(tries) <= 2:
            raise ConnectionResetError("gone")

    with pawl.CheckpointManager("failing://run") as m:
        failing.before["put"] = twice
        m.save(1, state(1), wait=True)
        assert len(tries) == 3

        def refuse(path: str) -> None:
            raise PermissionError(f"{path}: not yours")

        failing.before["put"] = refuse
        with pytest.raises(pawl.AccessError, match="not yours, PermissionError"):
            m.save(2, state(2), wait=True)
        failing.before.clear()
        assert m.all_steps() == [1]


def test_P1_a_file_system_that_lies_is_found_out(failing: type[Failing], monkeypatch: pytest.MonkeyPatch) -> None:
    with pawl.CheckpointManager("failing://lies") as m:
        m.save(1, state(1), wait=True)
        honest = failing.cat_file

        def lie(about: Callable[[bytes], bytes]) -> None:
            def read(self: Failing, path: str, *args: Any, **kwargs: Any) -> bytes:
                data = honest(self, path, *args, **kwargs)
                return about(data) if path.endswith(".safetensors") else data

            monkeypatch.setattr(failing, "cat_file", read)

        lie(lambda data: bytes(len(data)))
        with pytest.raises(pawl.CorruptError):
            m.restore(state(0))
        lie(lambda data: data[:-1])
        with pytest.raises(pawl.CorruptError, match="expected"):
            m.restore(state(0))
        monkeypatch.setattr(failing, "cat_file", honest)
        live = state(0)
        m.restore(live)
        assert live["step"] == 1


def test_R146_a_store_that_hangs_holds_nobody_else(failing: type[Failing]) -> None:
    """While a save waits for its store, the program continues, other threads and questions to the manager included."""
    reached, go = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        reached.set()
        assert go.wait(HANG_SECONDS)

    with pawl.CheckpointManager("failing://slow") as m:
        m.save(1, state(1), wait=True)
        failing.before["put"] = hang
        ticket = m.save(2, state(2))
        assert ticket
        assert reached.wait(HANG_SECONDS)
        assert m.all_steps() == [1]
        assert m.should_save(3)
        assert not ticket.done()
        go.set()
        m.wait_until_finished()
        assert m.all_steps() == [1, 2]


@pytest.mark.parametrize("who", ["reload", "pin", "prune"])
def test_R146_a_listing_that_is_slow_holds_only_who_wants_it(failing: type[Failing], who: str) -> None:
    """What is known stays known meanwhile, and the next save begins: the run's lock is not held over it."""
    reached, go = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        if path.endswith("/checkpoints"):
            reached.set()
            assert go.wait(HANG_SECONDS)

    with pawl.CheckpointManager(f"failing://slow-{who}", num_to_keep=5) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished()
        failing.before["list"] = hang
        slow = threading.Thread(
            target={"reload": m.reload, "pin": lambda: m.pin(1), "prune": m.prune}[who], daemon=True
        )
        slow.start()
        assert reached.wait(HANG_SECONDS)
        answers: list[object] = []

        def work() -> None:
            answers.extend([m.all_steps(), m.latest_step(), m.should_save(2), m.save(2, state(2)) is not None])

        ask = threading.Thread(target=work, daemon=True)
        ask.start()
        ask.join(HANG_SECONDS)
        held = ask.is_alive()
        failing.before.clear()
        go.set()
        slow.join(HANG_SECONDS)
        ask.join(HANG_SECONDS)
        assert not held
        assert answers == [[1], 1, True, True]
        m.wait_until_finished()
        assert m.all_steps() == [1, 2]
        assert [info.pinned for info in m.checkpoints()] == [who == "pin", False]


def test_a_manifest_that_a_mirror_is_slow_to_give_holds_only_who_wants_it(
    failing: type[Failing], tmp_path: pathlib.Path
) -> None:
    """It is damaged here, and read from there without the run's lock."""
    reached, go, got = threading.Event(), threading.Event(), state(0)

    def hang(path: str) -> None:
        if path.endswith("manifest.json"):
            reached.set()
            assert go.wait(HANG_SECONDS)

    home = tmp_path / "home"
    with pawl.CheckpointManager(home, mirrors=["failing://mirror"]) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished(level="remote")
        manifest = next(home.glob("checkpoints/*/manifest.json"))
        manifest.write_bytes(manifest.read_bytes()[:-9])
        failing.before["read"] = hang
        restore = threading.Thread(target=lambda: m.restore(got), daemon=True)
        restore.start()
        assert reached.wait(HANG_SECONDS)
        answers: list[list[int]] = []
        ask = threading.Thread(target=lambda: answers.append(m.all_steps()), daemon=True)
        ask.start()
        ask.join(HANG_SECONDS)
        held = ask.is_alive()
        go.set()
        restore.join(HANG_SECONDS)
        assert not held
        assert answers == [[1]]
        assert got["step"] == 1


def test_a_root_that_looks_like_a_pattern_is_no_pattern(tmp_path: pathlib.Path) -> None:
    """What is removed there is its own, not what a pattern of that name fits."""
    name = uuid.uuid4().hex
    for top in (f"memory://{name}", f"local://{tmp_path}"):
        with pawl.CheckpointManager(f"{top}/lr1") as other:
            for step in (1, 2, 3):
                other.save(step, state(step), wait=True)
        with pawl.CheckpointManager(f"{top}/lr[12]", retention=pawl.Retention(keep_last=1)) as m:
            for step in (1, 2, 3):
                m.save(step, state(step), wait=True)
            assert m.all_steps() == [3]
        with pawl.CheckpointManager(f"{top}/lr[12]", read_only=True) as m:
            assert m.all_steps() == [3]
        with pawl.CheckpointManager(f"{top}/lr1", read_only=True) as other:
            assert other.all_steps() == [1, 2, 3]
        fs, path = fsspec.core.url_to_fs(f"{top}/lr[12]/checkpoints")
        assert [info["name"].rpartition("_")[2] for info in fs.ls(path, detail=True)] == ["000003"]
    MemoryFileSystem().rm(f"/{name}", recursive=True)


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_P8_a_sync_removes_only_the_folders_that_it_was_given(kind: str, tmp_path: pathlib.Path) -> None:
    """Their names may look like patterns."""
    top = f"{tmp_path}/{uuid.uuid4().hex}"
    fs = fsspec.filesystem(kind)
    files = [f"{top}/{folder}/{name}" for folder in ("t1", "t2", "t[12]") for name in ("a/manifest.json", "b")]
    for file in files:
        fs.makedirs(os.path.dirname(file), exist_ok=True)
        fs.pipe_file(file, b"x")
    sync = pawl.Syncer(tmp_path / "none", remote=f"{kind}://{top}")
    sync._prune(["t[12]", "t[3]"])
    assert sorted(fs.find(top)) == files[:4]
    sync._prune(["t2"])
    assert sorted(fs.find(top)) == files[:2]
    fs.rm(top, recursive=True)


def test_P7_a_removal_that_is_cut_off_leaves_no_checkpoint(failing: type[Failing]) -> None:
    fs = fsspec.filesystem("failing")
    fs.pipe_file("/exp/t1/checkpoint_000001/manifest.json", b"{}")
    fs.pipe_file("/exp/t1/checkpoint_000001/a.safetensors", b"x")

    def refuse(path: str) -> None:
        raise PermissionError(path)

    failing.before["remove"] = refuse
    with pytest.raises(pawl.AccessError):
        pawl.Syncer("/none", remote="failing://exp")._prune(["t1/checkpoint_000001"])
    assert fs.find("/exp") == ["/exp/t1/checkpoint_000001/a.safetensors"]


def test_P17_names_that_are_no_text_are_passed_over(tmp_path: pathlib.Path) -> None:
    url = f"local://{tmp_path}/run"
    with pawl.CheckpointManager(url) as m:
        m.save(1, state(1), wait=True)
    for folder in ("", "checkpoints", "checkpoints/checkpoint_000001"):
        pathlib.Path(os.fsdecode(os.fsencode(tmp_path / "run" / folder) + b"/no\xfftext")).touch()
    with pawl.CheckpointManager(url) as m:
        m.save(2, state(2), wait=True)
        assert m.all_steps() == [1, 2]


INTERRUPTED = """
import sys, threading, numpy as np, pawl
from fsspec.implementations.memory import MemoryFileSystem
inner, n = MemoryFileSystem.cat_file, 0
def read(self, path, *args, **kwargs):
    global n
    if armed and threading.current_thread() is threading.main_thread() and "_000002/" in path:
        n += 1
        raise KeyboardInterrupt
    return inner(self, path, *args, **kwargs)
armed, MemoryFileSystem.cat_file = False, read
with pawl.CheckpointManager("memory://interrupted/run") as m:
    for step in (1, 2):
        m.save(step, {"step": step}, wait=True)
live, came = {"step": 0}, False
with pawl.CheckpointManager("memory://interrupted/run", read_only=True) as m:
    armed = True
    try:
        try:
            m.restore(live)
        except pawl.CancelledError:
            for _ in range(1000):
                pass
    except KeyboardInterrupt:
        came = True
    armed = False
    assert n, "nothing was read"
    assert live == {"step": 0}, live
    assert came, "lost"
    m.restore(live)
    assert live == {"step": 2}, live
"""


def test_a_restore_that_is_interrupted_takes_no_older_checkpoint() -> None:
    """Ctrl+C in the middle of a file system's function does no damage, and is not lost."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


LEFT_OPEN = """
import sys, numpy as np, pawl
m = pawl.CheckpointManager(sys.argv[1])
m.save(1, {"w": np.ones(1_000_000, dtype=np.float32)})
"""


def test_a_manager_that_is_left_open_is_closed_before_Python_ends(tmp_path: pathlib.Path) -> None:
    url = f"local://{tmp_path}/run"
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, url], capture_output=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    with pawl.CheckpointManager(url, read_only=True) as m:
        assert m.all_steps() == [1]


KILLED = """
import os, signal, sys, numpy as np, pawl, fsspec
from fsspec.implementations.local import LocalFileSystem
n = int(sys.argv[2])
def counted(name):
    inner = getattr(LocalFileSystem, name)
    def call(*args, **kwargs):
        global n
        n -= 1
        if n == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **kwargs)
    setattr(LocalFileSystem, name, call)
m = pawl.CheckpointManager(sys.argv[1])
m.save(1, {"step": 1}, wait=True)
for name in ("put_file", "pipe_file", "mv", "rm_file", "rm", "info", "ls"):
    counted(name)
m.save(2, {"step": 2}, wait=True)
m.close()
"""


@pytest.mark.parametrize("n", [1, 4, 7, 10, 14])
def test_P2_killed_at_any_call_the_run_goes_on(n: int, tmp_path: pathlib.Path) -> None:
    url = f"local://{tmp_path}/run"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, url, str(n)], capture_output=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    with pawl.CheckpointManager(url) as m:
        found = m.restore()
        assert found.state["step"] in (1, 2)
        m.save(3, {"step": 3}, wait=True)
        assert m.latest_step() == 3
        assert 1 in m.all_steps()


def test_R128_a_new_experiment_does_not_write_over_one_that_fsspec_finds(tmp_path: pathlib.Path) -> None:
    sync = tune.SyncConfig(upload_dir="memory://searches")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/searches/exp/experiment.json", b"{}")
    try:
        with pytest.raises(pawl.ExistsError, match="memory://searches/exp already holds something"):
            tune.run(lambda config: None, name="exp", local_dir=tmp_path, sync_config=sync)
        assert places.find(str(tmp_path / "other"), sync, None) == 0
    finally:
        memory.rm("/searches", recursive=True)
