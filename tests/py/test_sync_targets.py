# SPDX-License-Identifier: Apache-2.0
"""What a sync leaves at its target: the same in every store, through fsspec too."""

from __future__ import annotations

import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterator

import fsspec  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest
from waiting import HANG_SECONDS

import pawl
from cli import flip
from pawl._fsspec_store import Store

NEWEST = "checkpoints/checkpoint_000002"


def make_run(root: pathlib.Path, steps: int = 2) -> pathlib.Path:
    with pawl.CheckpointManager(root) as manager:
        for step in range(steps):
            manager.save(step, {"x": np.frombuffer(os.urandom(20000), dtype=np.uint8)}, wait=True)
    return root


def steps_of(root: object) -> list[int]:
    with pawl.CheckpointManager(str(root), read_only=True) as manager:
        assert manager.verify() == []
        return manager.all_steps()


def sync(run: pathlib.Path, remote: str, down: bool = False) -> pawl.SyncReport:
    syncer = pawl.Syncer(run, remote=remote)
    try:
        report = syncer.down() if down else syncer.up()
    finally:
        syncer.close()
    assert report is not None and report.verified
    return report


@pytest.fixture(name="place", params=["memory", "file"])
def target_place(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}/run" if request.param == "memory" else f"file://{tmp_path}/{name}/run"
    if request.param == "memory" and fsspec.filesystem("memory").exists(f"/{name}"):
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def test_P14_a_checkpoint_that_was_damaged_here_is_not_written_over_a_good_one(
    place: str, tmp_path: pathlib.Path
) -> None:
    run = make_run(tmp_path / "run")
    sync(run, place)
    for pack in run.glob(f"{NEWEST}/rank*"):
        flip(pack, pack.stat().st_size - 1)
    sync(run, place)
    assert steps_of(place) == [0, 1]


def test_P14_a_damaged_checkpoint_does_not_count_as_synced(place: str, tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    for pack in run.glob(f"{NEWEST}/rank*"):
        flip(pack, pack.stat().st_size - 1)
    with pytest.raises(pawl.CorruptError, match="failed verification"):
        sync(run, place)


def test_P8_two_runs_are_not_mixed_in_one_place(place: str, tmp_path: pathlib.Path) -> None:
    sync(make_run(tmp_path / "a"), place)
    for down in (False, True):
        with pytest.raises(pawl.ExistsError, match="another run"):
            sync(make_run(tmp_path / f"b{down}"), place, down)
    assert steps_of(place) == [0, 1]


def test_another_checkpoint_of_the_same_name_is_a_conflict(place: str, tmp_path: pathlib.Path) -> None:
    """Two machines have continued one run from the same checkpoint."""
    run = make_run(tmp_path / "run", steps=1)
    shutil.copytree(run, tmp_path / "other", symlinks=True)
    for root in (run, tmp_path / "other"):
        with pawl.CheckpointManager(root) as manager:
            manager.save(1, {"x": np.frombuffer(os.urandom(20000), dtype=np.uint8)}, wait=True)
    sync(run, place)
    with pytest.raises(pawl.ConflictError, match="another checkpoint checkpoint_000002 of this run is stored there"):
        sync(tmp_path / "other", place)
    assert steps_of(place) == [0, 1]


def test_pointers_come_back(place: str, tmp_path: pathlib.Path) -> None:
    sync(make_run(tmp_path / "run"), place)
    sync(tmp_path / "back", place, down=True)
    assert os.readlink(tmp_path / "back" / "latest") == NEWEST


def test_a_file_with_the_name_of_a_pointer_comes_back_as_it_was(place: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "here" / "results").mkdir(parents=True)
    texts = {"results/best": "b\n" * 3000, "results/latest": "nothing of this name\n"}
    for name, text in texts.items():
        (tmp_path / "here" / name).write_text(text)
    sync(tmp_path / "here", place)
    sync(tmp_path / "back", place, down=True)
    assert {name: (tmp_path / "back" / name).read_text() for name in texts} == texts


def test_a_file_that_changed_in_the_moment_of_the_sync_is_sent_again(tmp_path: pathlib.Path) -> None:
    note, there = tmp_path / "here" / "note", tmp_path / "there" / "note"
    note.parent.mkdir()
    note.write_text("old")
    sync(note.parent, str(there.parent))
    note.write_text("new")  # of the same size
    now = there.stat().st_mtime_ns
    os.utime(note, ns=(now, now))
    sync(note.parent, str(there.parent))
    assert there.read_text() == "new"


def note_puts(monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
    put = Store.put

    def noting(self: Store, key: str, data: bytes) -> None:
        before(key)
        put(self, key, data)

    monkeypatch.setattr(Store, "put", noting)


def test_a_file_that_is_written_to_while_it_is_sent_is_sent_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, left = tmp_path / "here" / "note", ["new"]
    note.parent.mkdir()
    note.write_text("old")

    def write(key: str) -> None:
        if left:
            now = note.stat().st_mtime_ns + 10**9  # the two may be in one tick of the clock
            note.write_text(left.pop())
            os.utime(note, ns=(now, now))

    note_puts(monkeypatch, write)
    place = f"memory://{uuid.uuid4().hex}"
    sync(note.parent, place)
    assert Store(place, False).get("note", 10) == b"new"


def test_no_pointer_names_a_checkpoint_that_was_saved_during_the_sync(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, left = f"memory://{uuid.uuid4().hex}", [2]
    with pawl.CheckpointManager(make_run(tmp_path / "run")) as manager:

        def train(key: str) -> None:
            if key.endswith("manifest.json") and left:
                manager.save(left.pop(), {"x": np.zeros(9)}, wait=True)

        note_puts(monkeypatch, train)
        sync(tmp_path / "run", place)
        assert manager.all_steps() == [0, 1, 2] and steps_of(place) == [0, 1]
        names = {name for name, *_ in Store(place, False).list("")}
        assert "latest" not in names or Store(place, False).get("latest", 100) == f"{NEWEST}\n".encode()
        sync(tmp_path / "run", place)
        assert Store(place, False).get("latest", 100) == b"checkpoints/checkpoint_000003\n"


def test_folders_of_users_named_checkpoints_are_synced_like_any_other(tmp_path: pathlib.Path) -> None:
    """Nothing in them is a checkpoint of pawl: no file is complete, and any may change."""
    here, there = tmp_path / "here", tmp_path / "there" / "here"
    (here / "checkpoints" / "epoch1").mkdir(parents=True)
    for name in ("weights.bin", "manifest.json"):
        (here / "checkpoints" / "epoch1" / name).write_text("old")
    (here / "checkpoints" / "epoch2").mkdir()
    (here / "checkpoints" / "epoch2" / "weights.bin").write_text("2")
    there.parent.mkdir()
    for command in ("cp -rT {source} {target}", "auto"):
        config = pawl.SyncConfig(upload_dir=str(there.parent), syncer=command, sync_period=3600)
        with pawl.Syncer(here, config) as syncer:
            syncer.up()
        for name in ("epoch1/weights.bin", "epoch1/manifest.json", "epoch2/weights.bin"):
            file = pathlib.Path("checkpoints") / name
            assert (there / file).read_bytes() == (here / file).read_bytes()
            (here / file).write_text(f"longer, {command}")


def test_rsync_leaves_out_no_file_of_a_user_that_has_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what never changes is sent with --ignore-existing. An rsync writes down what it is asked to send."""
    run, sent = make_run(tmp_path / "here" / "run", steps=1), tmp_path / "sent"
    mine = "checkpoints/epoch1/weights.bin"
    (tmp_path / "here" / mine).parent.mkdir(parents=True)
    (tmp_path / "here" / mine).write_text("x")
    (run / "latest").unlink()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rsync"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--ignore-existing*) k=fixed;; *) k=any;; esac\n'
        f"tr '\\0' '\\n' | sed \"s/^/$k /\" >> {sent}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    pawl.Syncer(tmp_path / "here", pawl.SyncConfig(verify=False), remote="host:/there").up()
    lines = sent.read_text().splitlines()
    assert f"any {mine}" in lines
    assert "fixed run/checkpoints/checkpoint_000001/manifest.json" in lines


def test_an_error_of_the_block_takes_precedence_over_one_of_the_sync(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    config = pawl.SyncConfig(syncer="false {source} {target}", sync_period=3600, sync_on_checkpoint=False)

    class Stop(Exception):
        pass

    with pytest.raises(Stop):
        with pawl.Syncer(run, config, remote=str(tmp_path / "x")) as syncer:
            syncer.request()
            with syncer._wake:
                assert syncer._wake.wait_for(lambda: syncer._done >= syncer._begun, HANG_SECONDS)
            raise Stop
    with pytest.raises(pawl.StorageError, match="ended with status 1"):
        with pawl.Syncer(run, config, remote=str(tmp_path / "x")):
            pass
