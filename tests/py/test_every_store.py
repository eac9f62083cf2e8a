# SPDX-License-Identifier: Apache-2.0
"""What holds for every kind of store: mirrors, syncing, the doctor, and that no secret is ever left anywhere (P18)."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest
from azurite import KEY, azurite
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped, unused-ignore]
from gcs_fake import ACCESS_KEY, SECRET_KEY, GcsFake
from object_env import keys_for, take_environment
from s3_fake import Fake
from ssh_servers import sshd
from waiting import HANG_SECONDS

import cli
import pawl

SECRET = "CANARY-s3-5ecret"
TOKEN = "CANARY-s3-t0ken"


@dataclass(frozen=True)
class Store:
    kind: str
    url: str  # a place for anything
    env: dict[str, str]
    secrets: tuple[str, ...]


@contextlib.contextmanager
def start(kind: str) -> Iterator[Store]:
    if kind == "s3":
        with contextlib.closing(Fake()) as fake:
            env = keys_for(fake.endpoint, SECRET) | {"AWS_SESSION_TOKEN": TOKEN}
            yield Store(kind, "s3://bucket", env, (SECRET, TOKEN))
    elif kind == "gs":
        with contextlib.closing(GcsFake()) as fake:
            yield Store(kind, fake.url, fake.env | {"GS_ACCESS_KEY_ID": ACCESS_KEY}, (SECRET_KEY,))
    elif kind == "az":
        with azurite() as server:
            yield Store(kind, server.url, server.env, (KEY,))
    else:
        with sshd() as host:
            key = "".join(host.key.read_text().splitlines()[1:-1])
            yield Store(kind, host.url(), host.env, (key[-40:],))


KINDS = ["s3", "gs", *(pytest.param(kind, marks=pytest.mark.server) for kind in ("az", "ssh"))]


@pytest.fixture(name="started", scope="module", params=KINDS)
def started_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with start(request.param) as store:
        yield store


@pytest.fixture(name="store")
def store_of_the_test(started: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    take_environment(monkeypatch, started.env)
    return started


def state(step: int) -> dict[str, object]:
    return {"w": np.full(20_000, step, dtype=np.float32)}


def save(root: str | pathlib.Path, steps: range, mirrors: tuple[str, ...] = ()) -> None:
    with pawl.CheckpointManager(root, mirrors=mirrors) as m:
        for step in steps:
            m.save(step, state(step), wait=True)


def test_R51_R85_R107_a_run_is_mirrored_and_comes_back(store: Store, tmp_path: pathlib.Path) -> None:
    url = f"{store.url}/mirror"
    save(tmp_path / "run", range(1, 3), (url,))
    with pawl.CheckpointManager(url, read_only=True) as there:
        assert there.all_steps() == [1, 2] and there.verify() == []
    shutil.rmtree(tmp_path / "run")
    with pawl.CheckpointManager(tmp_path / "other", mirrors=[url]) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 2 and (restored.state["w"] == 2).all()
        assert [info.here for info in m.checkpoints()] == [False, False]
        there = m.checkpoint(step=1)  # by its place in the mirror, which is enough to read it
        assert there.path == m.checkpoints()[0].path == f"{url}/checkpoints/checkpoint_000001"
        assert (there.to_dict()["w"] == 1).all()


def test_R94_R144_sync_by_hand_works_the_queue_of_the_mirrors(store: Store, tmp_path: pathlib.Path) -> None:
    """A training run that ended without waiting for its uploads: `pawl sync RUN` sends what the mirror lacks."""
    root, url = tmp_path / "run", f"{store.url}/by-hand"
    save(root, range(1, 2), (url,))
    save_more = pawl.CheckpointManager(
        root, mirrors=[url], uploads=pawl.Uploads(leave_uploads=True, bytes_per_second=1)
    )
    for step in (2, 3):
        save_more.save(step, state(step), wait=True)
    save_more.close()
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert [info.level for info in m.checkpoints()] == ["remote", "local", "local"]  # negative control
    report = json.loads(cli.run("sync", str(root), "--json").stdout)
    assert [(row["done"], row["waiting"], row["code"]) for row in report["mirrors"]] == [(3, 0, None)]
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert [info.level for info in m.checkpoints()] == ["remote"] * 3
    with pawl.CheckpointManager(url, read_only=True) as there:
        assert there.all_steps() == [1, 2, 3] and there.verify() == []


def test_R108_R111_R112_R115_R129_R135_a_syncer_goes_up_and_a_driver_fetches(
    store: Store, tmp_path: pathlib.Path
) -> None:
    """Workers with nothing but the store in common: each sends its trial below the experiment's place, and whatever needs
    one fetches it first; before that it is not there (R115)."""
    config = pawl.SyncConfig(upload_dir=f"{store.url}/experiment")
    for trial in ("trial_1", "trial_2"):
        save(tmp_path / "worker" / trial, range(1, 3))
        with contextlib.closing(pawl.Syncer(tmp_path / "worker" / trial, config)) as syncer:
            report = syncer.up()
        assert report is not None and report.verified and report.checkpoints == 2
    here = tmp_path / "driver" / "trial_2"
    assert not here.exists()
    with contextlib.closing(pawl.Syncer(here, config)) as syncer:
        report = syncer.down()
    assert report is not None and report.verified and report.checkpoints == 2
    with pawl.CheckpointManager(here, read_only=True) as m:
        assert m.all_steps() == [1, 2]
    assert not (tmp_path / "driver" / "trial_1").exists()


def test_a_checkpoint_of_a_run_in_a_store_is_an_object_of_its_own(store: Store, tmp_path: pathlib.Path) -> None:
    url = f"{store.url}/objects"
    save(url, range(1, 3))
    with pawl.CheckpointManager(url, read_only=True) as m:
        newest, first = m.checkpoint(), m.checkpoint(step=1)
        restored = m.restore()
        assert restored is not None
        assert newest.path == m[2].path == restored.path == m.checkpoints()[-1].path  # all of them complete
    assert newest.path is not None and newest.path.startswith(store.url) and newest.path.endswith("/checkpoint_000002")
    assert (newest.to_dict()["w"] == 2).all()
    here = first.to_directory(tmp_path / "here")
    assert (pawl.Checkpoint(here).to_dict()["w"] == 1).all()
    with first.as_directory() as folder:
        assert (pawl.load(folder)["w"] == 1).all()
    with pytest.raises(pawl.UsageError, match="not on this machine"):
        first.set_metadata({"note": 1})
    with pytest.raises(pawl.NotFoundError, match="objects"):
        pawl.Checkpoint(f"{url}/checkpoints/checkpoint_000009").to_dict()
    with pawl.hold(url, 1) as held, pytest.raises(pawl.BusyError, match="held"):
        assert held.path == first.path
        with pawl.CheckpointManager(url) as m:
            m.delete(1, force=True)


def test_P20_the_doctor_tells_what_a_store_can_do(store: Store) -> None:
    done = cli.run("doctor", f"{store.url}/somewhere", "--json")
    found = json.loads(done.stdout)["found"]
    for row in ("writable", "reads what was written", "lists what was written", "exclusive put", "removes"):
        assert found[row] == "yes", row
    assert "warning" not in found
    assert not any(secret in done.stdout + done.stderr for secret in store.secrets)


def command_lines() -> bytes:
    lines = b""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines += path.read_bytes()
    return lines


def test_P18_no_secret_is_left_anywhere(
    store: Store,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Saves, mirrors, refusals: then every file, log, message, event and command line is searched for the secrets."""
    url = f"{store.url}/canary"
    told: list[str] = []
    monkeypatch.setenv("PAWL_STORE_LOG", str(tmp_path / "calls.log"))
    with caplog.at_level(logging.DEBUG), pawl.CheckpointManager(tmp_path / "run", mirrors=[url]) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        told.append(repr(m.mirrors()))
        lines = command_lines()
    save(f"{store.url}/direct", range(1, 3))
    for bad in (f"{store.url.replace('bucket', 'nobucket').replace('pawl', 'nopawl')}-none/x", f"{url}/../up"):
        with pytest.raises(pawl.PawlError) as refused:
            pawl.CheckpointManager(bad, read_only=True)
        told.append(str(refused.value))
    save(tmp_path / "back", range(1, 2))
    told += [cli.run("cp", f"{store.url}/direct", str(tmp_path / "fetched")).stdout]
    told += [cli.run("cp", url, str(tmp_path / "fetched-mirror")).stdout]  # what was written there
    told += [cli.run("sync", str(tmp_path / "run")).stdout]
    with contextlib.closing(pawl.Syncer(tmp_path / "run", remote=f"{url}-synced")) as syncer:
        told.append(repr(syncer.up()))
    for word in ("ls", "show", "verify"):
        told.append(cli.run(word, f"{store.url}/direct").stdout)
    out = capfd.readouterr()
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink())
    assert b"checkpoint_000001" in files and b"python" in lines  # there is what to search, this process too
    assert b"put" in (tmp_path / "calls.log").read_bytes()
    assert "mirrors" not in caplog.text
    for secret in store.secrets:
        assert secret.encode() not in files and secret.encode() not in lines
        assert secret not in "\n".join([*told, caplog.text, out.out, out.err])


OTHER = "CANARY-fsspec-pa55word"


class Guarded(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    """Lets in who gives the password, and shows it whenever something goes wrong."""

    protocol = "guarded"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    refuses = False

    def __init__(self, password: str = "", **more: Any) -> None:
        super().__init__(**more)
        assert password == OTHER

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("guarded://", "memory://")))

    def put_file(self, *args: Any, **kwargs: Any) -> None:
        if self.refuses:
            raise PermissionError(f"https://me:{OTHER}@host/x is not for {OTHER}")
        super().put_file(*args, **kwargs)

    def pipe_file(self, path: str, *args: Any, **kwargs: Any) -> None:
        if self.refuses and path.endswith(".safetensors"):
            raise PermissionError(f"https://me:{OTHER}@host/x is not for {OTHER}")
        super().pipe_file(path, *args, **kwargs)


@pytest.fixture(name="guarded")
def guarded_kind(monkeypatch: pytest.MonkeyPatch) -> type[Guarded]:
    """fsspec's own configuration has the password."""
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    monkeypatch.setitem(fsspec.config.conf, "guarded", {"password": OTHER})
    monkeypatch.setenv("FSSPEC_GUARDED_PASSWORD", OTHER)
    Guarded.store.clear()
    monkeypatch.setattr(Guarded, "refuses", False)
    return Guarded


@pytest.mark.parametrize("way", ["fsspec", "command", "function"])
def test_P18_no_secret_is_left_by_what_others_do_and_say(
    way: str,
    guarded: type[Guarded],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stores of fsspec, commands and functions, that do their work, and that fail and say more than they should: all that
    pawl tells, logs and writes is searched. What was said is there but for the secret (negative control)."""
    run, told = tmp_path / "run", list[str]()
    tool = tmp_path / "tool"
    tool.write_text(
        '#!/bin/sh\necho "me is $FSSPEC_GUARDED_PASSWORD" >&2\n[ -z "$REFUSE" ] || exit 3\nexec cp -rT "$1" "$2"\n'
    )
    tool.chmod(0o755)

    def copy(source: str, target: str) -> None:
        if guarded.refuses:
            raise RuntimeError(f"me is {OTHER}")
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)

    def fail(call: Any) -> None:
        with pytest.raises(pawl.PawlError) as refused:
            call()
        assert "***" in str(refused.value)  # it was said, and covered
        told.append(str(refused.value))

    syncer: Any = {"fsspec": "auto", "command": f"{tool} {{source}} {{target}}", "function": copy}[way]
    remote = "guarded://there/synced" if way == "fsspec" else str(tmp_path / "synced")
    with caplog.at_level(logging.DEBUG):
        save(run, range(1, 2), ("guarded://there/mirror",) if way == "fsspec" else ())
        lines = command_lines()
        with contextlib.closing(pawl.Syncer(run, pawl.SyncConfig(syncer=syncer), remote=remote)) as sync:
            told.append(repr(sync.up()))
        if way == "fsspec":
            save("guarded://there/direct", range(1, 3))
        monkeypatch.setattr(guarded, "refuses", True)
        monkeypatch.setenv("REFUSE", "1")
        if way == "fsspec":
            with pawl.CheckpointManager("guarded://there/direct") as m:
                fail(lambda: m.save(3, state(3), wait=True))
            with (
                contextlib.suppress(pawl.PawlError),
                pawl.CheckpointManager(run, mirrors=["guarded://there/mirror"]) as m,
            ):
                m.save(2, state(2), wait=True)
                fail(lambda: m.wait_until_finished(level="remote", timeout=HANG_SECONDS))
                told.append(repr(m.mirrors()))
        remote = "guarded://there/refused" if way == "fsspec" else str(tmp_path / "refused")
        with contextlib.closing(pawl.Syncer(run, pawl.SyncConfig(syncer=syncer), remote=remote)) as sync:
            fail(sync.up)
    out = capfd.readouterr()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    files = b"".join(path.read_bytes() for path in kept) + b"".join(file.getvalue() for file in guarded.store.values())
    assert b"checkpoint_000001" in files and b"python" in lines
    assert OTHER.encode() not in files and OTHER.encode() not in lines
    assert OTHER not in "\n".join([*told, caplog.text, out.out, out.err])
