# SPDX-License-Identifier: Apache-2.0
"""The command and the package read a run while its training saves and deletes; and what they may not read at all.

The log of a store's calls goes to a full pipe, so that a reader stops after a known number of calls. There the training
saves, which deletes the checkpoint that was read, and the reader continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import HANG_SECONDS

import cli
import pawl

ROOMS = range(0, 2800, 140)  # bytes of the log that fit: a line for each call has 100 to 200
F_SETPIPE_SZ = 1031


class Training:
    """Keeps one checkpoint; its values are its step's."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.step = 0
        self.manager = pawl.CheckpointManager(root, num_to_keep=1, score_attribute="m")
        self.save()

    def save(self) -> None:
        self.step += 1
        state = {"w": np.full(64, self.step, np.float32)}
        self.manager.save(self.step, state, metrics={"m": self.step}, metadata={"s": self.step}, wait=True)

    @property
    def newest(self) -> str:
        return os.path.realpath(self.root / "latest")


@pytest.fixture
def training(tmp_path: pathlib.Path) -> Iterator[Training]:
    made = Training(tmp_path / "run")
    with made.manager:
        yield made


class Gate:
    """A pipe that takes `room` bytes more, until it is opened."""

    def __init__(self, path: pathlib.Path, room: int) -> None:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        size = fcntl.fcntl(self._fd, F_SETPIPE_SZ, 4096)
        if size > room:
            os.write(self._fd, b"\n" * (size - room))

    def open(self, until: Callable[[], bool]) -> None:
        """Takes everything out until the reader has ended."""
        end = time.monotonic() + HANG_SECONDS
        while not until():
            assert time.monotonic() < end
            try:
                os.read(self._fd, 65536)
            except BlockingIOError:
                time.sleep(0.001)
        os.close(self._fd)


def sleeps(pid: int, thread: int | None = None) -> bool:
    place = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    try:
        return pathlib.Path(place, "stat").read_text().rpartition(")")[2].split()[0] == "S"
    except (FileNotFoundError, ProcessLookupError):  # it has ended, perhaps while the file was read
        return True


def wait_until(what: Callable[[], bool]) -> None:
    """A few looks in a row: that a thread sleeps for once is not a stop."""
    end, n = time.monotonic() + HANG_SECONDS, 0
    while n < 3:
        assert time.monotonic() < end
        n = n + 1 if what() else 0
        time.sleep(0.001)


def stopped(process: subprocess.Popen[str], fifo: pathlib.Path) -> bool:
    if process.poll() is not None:
        return True
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fds = pathlib.Path(f"/proc/{process.pid}/fd")
        return any(os.readlink(fd) == str(fifo) for fd in fds.iterdir()) and sleeps(process.pid)
    return False


def run_beside(
    folder: pathlib.Path, room: int, args: list[str], act: Callable[[], object]
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Stops the command after some calls, acts, and lets it end. Also: whether it had ended before."""
    gate = Gate(folder / "calls", room)
    process = subprocess.Popen(
        [cli.PAWL, *args],
        env=cli.environment(PAWL_STORE_LOG=str(gate.path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: stopped(process, gate.path))
    ended = process.poll() is not None
    act()
    gate.open(lambda: process.poll() is not None)
    out, err = process.communicate(timeout=HANG_SECONDS)
    return subprocess.CompletedProcess(args, process.returncode, out, err), ended


def _newest(root: pathlib.Path) -> int:
    with pawl.CheckpointManager(root, read_only=True) as manager:
        return manager.latest_step() or 0


def check_beside(words: tuple[str, ...], room: int, done: subprocess.CompletedProcess[str], *wrong: str) -> None:
    allowed = (0, 1) if words[0] == "diff" else (0,)  # the two may be different ones
    assert done.returncode in allowed, (room, done)
    assert not any(word in done.stdout + done.stderr for word in ("corrupt", "damaged", *wrong)), done


@pytest.mark.parametrize(
    "words",
    [
        ("show", "{run}"),
        ("show", "{run}@best"),
        ("show", "{run}/latest"),
        ("show", "file://{run}/latest"),
        ("ls", "{run}", "--bad"),
        ("verify", "{run}"),
        ("verify", "{run}@latest"),
        ("verify", "{run}/latest"),
        ("restore", "{run}", "{new}"),
        ("restore", "{run}/latest", "{new}"),
        ("export", "{run}", "{new}.safetensors"),
        ("convert", "{run}/latest", "{new}.npz"),
        ("cp", "{run}@latest", "{new}"),
        ("cp", "{run}", "{new}"),
        ("cp", "{run}", "{new}", "--last", "1", "--json"),
        ("cp", "{run}", "{new}", "--only", "best"),
        ("sync", "{run}", "{new}"),
        ("diff", "{run}", "{run}/latest"),
        ("pin", "{run}@latest"),
        ("pin", "{run}/latest"),
        ("unpin", "{run}@latest"),
        ("score", "{run}@latest", "n=1"),
        ("score", "{run}@best", "n=1"),
    ],
    ids=" ".join,
)
def test_R137_a_command_at_any_call_while_a_save_deletes(training: Training, words: tuple[str, ...]) -> None:
    folder = training.root.parent
    for n, room in enumerate(ROOMS):
        training.save()  # the one before may be pinned
        args = [word.format(run=training.root, new=folder / f"new{n}") for word in words]
        done, ended = run_beside(folder, room, args, training.save)
        check_beside(words, room, done, "skipped", "bad ")
        if words[:3] in (("cp", "{run}", "{new}"), ("sync", "{run}", "{new}")):
            assert "has just been deleted" not in done.stdout, done
            assert _newest(folder / f"new{n}") in (training.step - 1, training.step), (room, done)
        if ended:
            break
    assert n > 1  # it was stopped at some


@pytest.mark.parametrize(
    "words",
    [
        ("show", "{link}"),
        ("verify", "{link}"),
        ("export", "{link}", "{new}.safetensors"),
        ("convert", "{link}", "{new}.npz"),
        ("diff", "{link}", "{link}"),
    ],
    ids=" ".join,
)
def test_R81_a_command_reads_one_file_of_a_saver_that_replaces_its_link(
    tmp_path: pathlib.Path, words: tuple[str, ...]
) -> None:
    link = tmp_path / "latest-rank0.pt"
    pawl.save({"w": np.full(64, 0, np.float32)}, tmp_path / "ba0.pt")
    link.symlink_to("ba0.pt")

    def replace(n: int) -> None:
        pawl.save({"w": np.full(64, n + 1, np.float32)}, tmp_path / f"ba{n + 1}.pt")
        (tmp_path / "next").symlink_to(f"ba{n + 1}.pt")
        (tmp_path / "next").rename(link)
        (tmp_path / f"ba{n}.pt").unlink()

    for n, room in enumerate(ROOMS):
        args = [word.format(link=link, new=tmp_path / f"new{n}") for word in words]
        done, ended = run_beside(tmp_path, room, args, functools.partial(replace, n))
        check_beside(words, room, done, "deleted")
        if ended:
            break
    assert n > 1  # it was stopped at some


@pytest.mark.parametrize("words", [("ls", "-r"), ("ls", "-r", "--json"), ("du",)], ids=" ".join)
def test_a_checkpoint_that_is_removed_while_its_folder_is_listed_is_not_shown(
    tmp_path: pathlib.Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "trials"
    folder.mkdir()
    pawl.save({"w": 1}, folder / "stays")
    n_gone = 0
    for room in ROOMS:
        pawl.save({"w": 1}, folder / "one", overwrite=True)
        args = [words[0], str(folder), *words[1:]]
        done, _ = run_beside(tmp_path, room, args, functools.partial(shutil.rmtree, folder / "one"))
        assert done.returncode == 0 and "stays" in done.stdout, (room, done)
        n_gone += "one" not in done.stdout
    assert n_gone > 0


def in_thread(fn: Callable[[], Any], training: Training, room: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stops fn after some calls, saves, and lets it end. Its result, or what it raised; None: it had ended before."""
    gate = Gate(training.root.parent / "calls", room)
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(fn())
        except pawl.PawlError as error:
            result.append(error)

    monkeypatch.setenv("PAWL_STORE_LOG", str(gate.path))
    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: bool(result) or sleeps(os.getpid(), thread.native_id))
    monkeypatch.delenv("PAWL_STORE_LOG")
    ended = bool(result)
    training.save()
    gate.open(lambda: not thread.is_alive())
    thread.join()
    return None if ended else result[0]


def _checkpoints(root: pathlib.Path) -> int:
    with pawl.CheckpointManager(root, read_only=True) as manager:
        manager.verify()
        found = manager.checkpoints(with_bad=True)
    assert not any(info.bad for info in found), found
    return found[-1].step


def _restore(root: pathlib.Path) -> int:
    with pawl.CheckpointManager(root, read_only=True) as manager:
        restored = manager.restore()
    assert restored is not None
    assert not restored.fallbacks
    return int(restored.state["w"][0])


def _convert(place: str, target: pathlib.Path) -> int:
    pawl.convert(place, target)
    return int(pawl.load(target)["w"][0])


def _copy(root: pathlib.Path, target: pathlib.Path) -> int:
    pawl.copy(root, target)
    return _newest(target)


def _steps(trees: dict[int, Any]) -> int:
    return max(trees, default=0)


READS: dict[str, Callable[[Training, int], int]] = {
    "restore": lambda t, n: _restore(t.root),
    "verify, checkpoints": lambda t, n: _checkpoints(t.root),
    "load latest": lambda t, n: int(pawl.load(t.root / "latest")["w"][0]),
    "load @latest": lambda t, n: int(pawl.load(f"{t.root}@latest")["w"][0]),
    "load @best": lambda t, n: int(pawl.load(f"{t.root}@best")["w"][0]),
    "tree": lambda t, n: _steps(pawl.tree(t.root)),
    "tree @latest": lambda t, n: t.step if pawl.tree(f"{t.root}@latest") else 0,
    "diff": lambda t, n: t.step if pawl.diff(f"{t.root}@latest", f"{t.root}@best") is not None else 0,
    "convert @latest": lambda t, n: _convert(f"{t.root}@latest", t.root.parent / f"new{n}.npz"),
    "copy": lambda t, n: _copy(t.root, t.root.parent / f"new{n}"),
    "to_dict": lambda t, n: int(pawl.Checkpoint(t.root / "latest").to_dict()["w"][0]),
    "get_metadata": lambda t, n: int(pawl.Checkpoint(t.root / "latest").get_metadata()["s"]),
    "to_directory": lambda t, n: int(
        pawl.load(pawl.Checkpoint(t.root / "latest").to_directory(t.root.parent / f"new{n}"))["w"][0]
    ),
}


@pytest.mark.parametrize("name", READS)
def test_R137_the_package_at_any_call_while_a_save_deletes(
    training: Training, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_stops = 0
    for n, room in enumerate(ROOMS):
        got = in_thread(lambda n=n: READS[name](training, n), training, room, monkeypatch)
        if got is None:
            break
        assert got in (training.step - 1, training.step), f"room {room}: {got!r}"
        n_stops += 1
    assert n_stops > 1


def test_R137_a_load_of_a_path_that_is_deleted_meanwhile_is_not_found(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, or it is not; it is never corrupt."""
    gone = 0
    for room in ROOMS:
        path = training.newest
        got = in_thread(lambda path=path: pawl.load(path), training, room, monkeypatch)
        if got is None:
            break
        assert isinstance(got, dict | pawl.NotFoundError), f"room {room}: {got!r}"
        gone += isinstance(got, pawl.NotFoundError)
    assert gone > 0


# ---- no permission


def run_denied(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [cli.PAWL, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=cli.environment(),
        preexec_fn=cli.obey_permissions,
        check=False,
    )


@contextlib.contextmanager
def shut(path: pathlib.Path) -> Iterator[None]:
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


PROGRAM = """
import os
import sys
import pawl
root, one = sys.argv[1:]
def name(call):
    try:
        return str(call())
    except pawl.PawlError as error:
        return type(error).__name__
print(name(lambda: pawl.load(one)))
print(name(lambda: pawl.Checkpoint(one).get_metadata()))
print(name(lambda: pawl.Checkpoint(one).to_directory()))
print(name(lambda: pawl.convert(one, root + "/x.npz")))
print(name(lambda: pawl.CheckpointManager(root).restore()))  # a training that would resume
with pawl.CheckpointManager(root, read_only=True) as manager:
    print(name(manager.restore), name(lambda: manager.restore(step=1).step))
    print(name(manager.latest_step), name(manager.best_step), name(manager.all_steps))
    print([(info.id, info.bad, info.denied) for info in manager.checkpoints(with_bad=True)])
for place in (root, os.path.dirname(root)):
    print(name(lambda: pawl.tree(place)), name(lambda: pawl.verify(place)))
"""


def test_R137_a_training_does_not_go_on_from_an_older_one_for_lack_of_permission(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, {"w": np.ones(4)}, wait=True)
    one = root / "checkpoints" / "checkpoint_000002"
    for what in (one / "manifest.json", one):
        with shut(what):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, root, one],
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                preexec_fn=cli.obey_permissions,
                check=False,
            )
        assert done.stdout.splitlines() == [
            *["AccessError"] * 5,
            "AccessError 1",
            "AccessError AccessError [1]",
            "[(1, False, False), (2, True, True)]",
            *["AccessError AccessError"] * 2,
        ], done


def test_R137_the_command_tells_what_it_may_not_read_from_what_is_not_there(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, {"w": np.ones(4)}, wait=True)
    one = tmp_path / "one"
    pawl.save({"w": np.ones(4)}, one)
    for shut_one, target in (
        (root, root),
        (root / "checkpoints", root),
        (root / "run.json", root),
        (root, root / "checkpoints" / "checkpoint_000002"),
        (one, one),
        (one / "manifest.json", one),
        (tmp_path, one),
        (tmp_path, f"{root}@latest"),
    ):
        with shut(shut_one):
            done = run_denied("ls" if target == root else "show", target)
        assert done.returncode == 1, (shut_one, target, done)
        assert "may not read this; ask the owner for permission" in done.stderr, (shut_one, target, done)
        assert "no run and no checkpoint" not in done.stderr
        assert "no such f" not in done.stderr
    for shut_one in (root / "checkpoints" / "checkpoint_000002", root / "checkpoints/checkpoint_000002/manifest.json"):
        with shut(shut_one):
            listed, shown = run_denied("ls", root, "--bad"), run_denied("show", root)
            plain, verified = run_denied("ls", root), run_denied("verify", root)
        assert "denied" in listed.stdout
        assert "may not read this" in listed.stdout
        assert shown.returncode == 1
        assert "checkpoint_000002 cannot be read" in shown.stderr
        assert plain.returncode == 0
        assert "1 more cannot be read" in plain.stderr
        assert "damaged" not in plain.stderr
        assert "latest" not in plain.stdout + listed.stdout  # it is unknown, as `show` says
        assert verified.returncode == 1
        assert "not verified" in verified.stdout
        assert "1 of 2 checkpoints could not be verified" in verified.stderr


def test_R137_the_command_copies_and_restores_no_older_one_for_lack_of_permission(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"w": np.full(4, step)}, wait=True)
    newest, middle = (root / "checkpoints" / f"checkpoint_00000{n}" for n in (3, 2))
    dest = tmp_path / "copy"
    with shut(newest):
        refused = run_denied("cp", root, dest, "--last", 1)
    assert refused.returncode == 1 and not dest.exists(), refused
    assert "checkpoint_000003 cannot be read" in refused.stderr
    with shut(middle):
        refused = run_denied("cp", root, dest, "--last", 2)
        assert refused.returncode == 1 and "checkpoint_000002 cannot be read" in refused.stderr, refused
        assert run_denied("cp", root, dest, "--last", 1).returncode == 0  # an older one does not matter
        cli.flip(newest / cli.PACK, (newest / cli.PACK).stat().st_size - 1)
        refused = run_denied("restore", root, tmp_path / "restored")
    assert refused.returncode == 1 and "checkpoint_000002 cannot be read" in refused.stderr, refused
    assert "skipped: " in refused.stderr and not (tmp_path / "restored").exists()


FIND = """
import sys
import pawl
from pawl.composer import find_latest, load_checkpoint
for call in find_latest, lambda name, folder: load_checkpoint("latest", run_name=name, folder=folder):
    try:
        print(call("demo", folder=sys.argv[1]))
    except pawl.PawlError as error:
        print(type(error).__name__)
"""


def test_R81_no_permission_for_a_saver_s_folder_is_an_access_error(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "demo" / "ck"
    folder.mkdir(parents=True)
    pawl.save({"w": 1}, folder / "ep1.pt")
    (folder / "latest-rank0.pt").symlink_to("ep1.pt")
    for what in (folder, folder.parent):
        with shut(what):
            done = subprocess.run(
                [sys.executable, "-c", FIND, str(tmp_path / "{run_name}" / "ck")],
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                preexec_fn=cli.obey_permissions,
                check=False,
            )
        assert done.stdout.split() == ["AccessError", "AccessError"], (what, done)


AGAIN = """
import sys
import pawl.tune
try:
    pawl.tune.Tuner.restore(sys.argv[1], print)
except pawl.PawlError as error:
    print(type(error).__name__)
"""


def test_R137_no_permission_for_an_experiment_is_an_access_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "experiment.json").write_text("{}")
    with shut(tmp_path / "exp"):
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, str(tmp_path / "exp")],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            preexec_fn=cli.obey_permissions,
            check=False,
        )
    assert done.stdout.split() == ["AccessError"], done
