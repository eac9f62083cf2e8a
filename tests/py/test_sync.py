# SPDX-License-Identifier: Apache-2.0
"""Syncing of folders: rsync over ssh to another host, commands, functions, fsspec, stores (E9, fault row 35)."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from ssh_servers import Host, started_host
from waiting import HANG_SECONDS, exists, wait_until

import cli
import pawl
from pawl._fsspec_store import Store

__all__ = ["started_host"]

CANARY = "CANARY-5ecret-value"


def make_run(root: pathlib.Path, steps: int = 2, nbytes: int = 1000) -> pathlib.Path:
    with pawl.CheckpointManager(root) as manager:
        for step in range(steps):
            manager.save(step, {"x": np.frombuffer(os.urandom(nbytes), dtype=np.uint8), "step": step})
            manager.wait_until_finished()
    return root


def steps_of(root: pathlib.Path) -> list[int]:
    with pawl.CheckpointManager(root, read_only=True) as manager:
        return manager.all_steps()


def script(path: pathlib.Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def alive(pattern: str) -> bool:
    """Is there a process with this in its command line?"""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and pattern in (entry / "cmdline").read_bytes().decode(errors="replace"):
                return True
        except OSError:
            continue
    return False


def ends(pattern: str) -> bool:
    """It does so soon: a process that was killed takes a moment to be gone."""
    wait_until(lambda: not alive(pattern), f"the end of {pattern!r}")
    return True


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------ configuration


def test_R113_R114_a_command_must_have_both_fields() -> None:
    for command in ("rsync {source} there", "rsync here {target}", "rsync"):
        with pytest.raises(pawl.UsageError, match="both"):
            pawl.SyncConfig(syncer=command)
    pawl.SyncConfig(syncer="aws s3 sync {source} {target}")
    with pytest.raises(pawl.UsageError, match="syncer must be"):
        pawl.SyncConfig(syncer=7)  # type: ignore[arg-type]
    with pytest.raises(pawl.UsageError, match="sync_period"):
        pawl.SyncConfig(sync_period=0)


@pytest.mark.parametrize("period", ["1h", timedelta(hours=1), 3600])
def test_a_period_is_a_number_a_text_or_a_timedelta(tmp_path: pathlib.Path, period: Any) -> None:
    run = make_run(tmp_path / "run")
    config = pawl.SyncConfig(str(tmp_path / "up"), sync_period=period, sync_timeout=period)
    syncer = pawl.Syncer(run, config)
    assert syncer.up_if_due() is not None and syncer.up_if_due() is None
    syncer.close(sync=False)


def test_R109_R110_a_shared_folder_is_not_synced(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    with pawl.Syncer(run, pawl.SyncConfig(upload_dir=str(tmp_path / "up"), syncer=None)) as syncer:
        assert not syncer.enabled and syncer.up() is None and syncer.down() is None
    assert not (tmp_path / "up").exists()
    assert steps_of(run) == [0, 1]


def test_R116_on_one_host_nothing_is_copied(tmp_path: pathlib.Path) -> None:
    """No place is given, and no other host: there is nothing to do (E9, R132)."""
    syncer = pawl.Syncer(make_run(tmp_path / "run"))
    assert not syncer.enabled and syncer.up() is None
    syncer.close()


def test_a_place_without_a_way_is_told_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="cannot copy there by itself"):
        pawl.Syncer(tmp_path, remote="nowhere-scheme://x/y")
    with pytest.raises(pawl.UsageError, match="host name is malformed"):
        pawl.Syncer(tmp_path, remote="-oProxyCommand=touch:/x")


def test_places_that_were_written_wrongly_are_refused_at_once(tmp_path: pathlib.Path) -> None:
    """An empty text would be the folder / or the working folder, and s3:/x the host s3."""
    with pytest.raises(pawl.UsageError, match="local must be a folder, received ''"):
        pawl.Syncer("", remote=str(tmp_path / "there"))
    with pytest.raises(pawl.UsageError, match="upload_dir must be a path or a URL, received ''"):
        pawl.SyncConfig(upload_dir="")
    with pytest.raises(pawl.UsageError, match="must name a place after '://', received 's3://'"):
        pawl.SyncConfig(upload_dir="s3://")
    for place, meant in (("s3:/b/x", "s3://b/x"), ("file:/x", "file:///x")):
        with pytest.raises(pawl.UsageError, match=f"{place}: a URL has two slashes, expected {meant}"):
            pawl.Syncer(tmp_path, remote=place)
    command = pawl.SyncConfig(syncer="true {source} {target}")  # it knows what its own places mean
    assert pawl.Syncer(tmp_path, command, remote="s3:/b/x").remote == "s3:/b/x"


def test_P18_a_password_in_a_place_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="password") as caught:
        pawl.Syncer(tmp_path, remote=f"ssh://me:{CANARY}@host/x")
    assert CANARY not in str(caught.value)


# ----------------------------------------------------------------------- commands


def test_R113_R118_a_command_moves_the_folder_and_back(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "a run's 'folder'")
    there = tmp_path / "up dir"
    shutil.rmtree(there, ignore_errors=True)
    config = pawl.SyncConfig(upload_dir=str(there), syncer="cp -rT {source} {target}")
    there.mkdir()
    syncer = pawl.Syncer(run, config)
    report = syncer.up()
    assert report is not None and report.verified and report.checkpoints == 2 and report.note == ""
    syncer.close()
    back = pawl.Syncer(tmp_path / "back" / run.name, config)
    report = back.down()
    assert report is not None and report.verified and report.checkpoints == 2
    assert steps_of(tmp_path / "back" / run.name) == [0, 1]
    back.close()


def test_a_folder_or_link_named_journal_is_synced_like_any_other(tmp_path: pathlib.Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "sub" / "journal").mkdir(parents=True)
    (here / "sub" / "journal" / "notes").write_text("n")
    (here / "journal").symlink_to("sub")
    there.mkdir()
    with pawl.Syncer(here, pawl.SyncConfig(upload_dir=str(there), syncer="cp -rT {source} {target}")) as syncer:
        assert syncer.up() is not None
    (target,) = there.iterdir()
    assert (target / "sub" / "journal" / "notes").read_text() == "n"
    assert (target / "journal").readlink() == pathlib.Path("sub")


def test_E9_no_shell_unless_asked_for(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run; touch INJECTED")
    mark = tmp_path / "mark"
    target = str(tmp_path / "there")
    plain = pawl.SyncConfig(syncer=f"cp -rT {{source}} {{target}} ; touch {mark}", verify=False)
    with pytest.raises(pawl.StorageError, match="cp: ended with status 1"):
        pawl.Syncer(run, plain, remote=target).up()
    assert not mark.exists()
    shell = pawl.SyncConfig(syncer=f"cp -rT {{source}} {{target}} ; touch {mark}", shell=True)
    report = pawl.Syncer(run, shell, remote=target).up()
    assert report is not None and report.verified and mark.exists()
    assert not list(tmp_path.glob("**/INJECTED"))


def ends_in_time(up: Callable[[float], None], has_begun: Callable[[], bool], message: str) -> None:
    """That a sync which hangs ends at its deadline. The deadline is longer until the sync begins before it, which
    takes what it takes."""
    for seconds in (0.5, 5, 50, 500):
        with pytest.raises(pawl.TimeoutError) as caught:
            up(seconds)
        if has_begun():
            break
    assert message.format(seconds) in str(caught.value)


def test_row_35_a_command_that_hangs_is_ended_with_its_children(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    tag, mark = f"sleep 61{os.getpid()}", tmp_path / "mark"
    hanging = script(tmp_path / "hang", f"trap '' TERM\n{tag} &\n: >{mark}\n{tag}")

    def up(seconds: float) -> None:
        config = pawl.SyncConfig(syncer=f"{hanging} {{source}} {{target}}", sync_timeout=seconds)
        pawl.Syncer(run, config, remote=str(tmp_path / "x")).up()

    ends_in_time(up, mark.exists, "hang: has not ended within {:.1f} s")
    assert ends(tag.replace(" ", "\0"))


def test_row_35_children_that_are_left_behind_are_ended(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    tag = f"sleep 62{os.getpid()}"
    leaving = script(tmp_path / "leave", f'{tag} &\nexec cp -rT "$1" "$2"')
    config = pawl.SyncConfig(syncer=f"{leaving} {{source}} {{target}}", sync_timeout=HANG_SECONDS)
    report = pawl.Syncer(run, config, remote=str(tmp_path / "x")).up()
    assert report is not None and report.verified
    assert ends(tag.replace(" ", "\0"))


def test_row_35_a_command_that_dies_is_told_with_its_last_words(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    dying = script(tmp_path / "die", "echo first\necho 'disk on fire' >&2\nexit 7")
    config = pawl.SyncConfig(syncer=f"{dying} {{source}} {{target}}")
    with pytest.raises(pawl.StorageError, match=r"die: ended with status 7: first\|disk on fire"):
        pawl.Syncer(run, config, remote=str(tmp_path / "x")).up()
    killed = script(tmp_path / "killed", "kill -9 $$")
    with pytest.raises(pawl.StorageError, match="ended by signal 9"):
        pawl.Syncer(run, pawl.SyncConfig(syncer=f"{killed} {{source}} {{target}}"), remote="x").up()
    with pytest.raises(pawl.NotFoundError, match="no such program"):
        pawl.Syncer(run, pawl.SyncConfig(syncer="no-such-program {source} {target}"), remote="x").up()


def test_P18_row_35_printed_secrets_are_hidden(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the environment's secrets, passwords in URLs and named ones; other words stay (negative control)."""
    monkeypatch.setenv("MY_SECRET_KEY", CANARY)
    run = make_run(tmp_path / "run")
    telling = script(
        tmp_path / "tell",
        'echo "using $MY_SECRET_KEY here" >&2\necho "https://me:OTHER-CANARY@host/x" >&2\n'
        'echo "password: THIRD-CANARY" >&2\necho plain words >&2\nexit 3',
    )
    with pytest.raises(pawl.StorageError) as caught:
        pawl.Syncer(run, pawl.SyncConfig(syncer=f"{telling} {{source}} {{target}}"), remote="x").up()
    text = str(caught.value)
    assert "CANARY" not in text and "plain words" in text and "using" in text and "status 3" in text


def test_P14_what_came_over_damaged_does_not_count(tmp_path: pathlib.Path) -> None:
    """The command succeeds and some bytes differ; and with nothing changed it counts (negative control)."""
    run = make_run(tmp_path / "run", nbytes=200000)
    lying = script(
        tmp_path / "lie",
        'cp -rT "$1" "$2"\nfor f in "$2"/checkpoints/checkpoint_000002/rank*; do\n'
        'printf another-thing | dd of="$f" bs=1 seek=70000 conv=notrunc 2>/dev/null\ndone',
    )
    config = pawl.SyncConfig(syncer=f"{lying} {{source}} {{target}}")
    with pytest.raises(pawl.CorruptError, match="checkpoint_000002: the synced copy failed verification"):
        pawl.Syncer(run, config, remote=str(tmp_path / "bad")).up()
    with pytest.raises(pawl.CorruptError, match="failed verification"):
        pawl.Syncer(tmp_path / "back", config, remote=str(run)).down()
    honest = pawl.SyncConfig(syncer="cp -rT {source} {target}")
    report = pawl.Syncer(run, honest, remote=str(tmp_path / "good")).up()
    assert report is not None and report.verified


def test_P14_a_command_that_does_nothing_does_not_count(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    config = pawl.SyncConfig(syncer="true {source} {target}")
    with pytest.raises(pawl.NotFoundError) as found:
        pawl.Syncer(run, config, remote=str(tmp_path / "x")).up()
    assert str(found.value) == f"{tmp_path}/x: the sync command 'true' ended with success, but left nothing there"
    (tmp_path / "x").mkdir()
    with pytest.raises(pawl.NotFoundError, match="x/run: the run was not copied"):
        pawl.Syncer(tmp_path, config, remote=str(tmp_path / "x")).up()


# ---------------------------------------------------------------------- functions


def test_R119_a_function_syncs(tmp_path: pathlib.Path) -> None:
    """It runs on a Python thread, is given both places, and what it did is verified."""
    run = make_run(tmp_path / "run")
    calls: list[tuple[str, str]] = []

    def copy(source: str, target: str) -> None:
        calls.append((source, target))
        assert threading.current_thread().name == "pawl-sync-function"
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)

    config = pawl.SyncConfig(syncer=copy, sync_period=60)
    report = pawl.Syncer(run, config, remote=str(tmp_path / "there")).up()
    assert report is not None and report.verified and report.checkpoints == 2
    assert [target for _, target in calls] == [str(tmp_path / "there")]
    assert calls[0][0].endswith("/run/") and calls[0][0] != f"{run}/"  # a view of it, which is gone now
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there"]
    report = pawl.Syncer(tmp_path / "back", config, remote=str(tmp_path / "there")).down()
    assert report is not None and report.verified and steps_of(tmp_path / "back") == [0, 1]


def test_R113_R119_what_a_function_is_given_is_complete_and_does_not_change(tmp_path: pathlib.Path) -> None:
    """The training saves and removes checkpoints while the function runs; a running save is not seen."""
    (tmp_path / "run" / "checkpoints" / ".checkpoint_000009.x.partial").mkdir(parents=True)
    found: list[list[str]] = []

    def names(folder: str) -> list[str]:
        return sorted(os.path.relpath(path, folder) for path in pathlib.Path(folder).rglob("*"))

    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1) as manager:

        def save(step: int) -> None:
            manager.save(step, {"x": np.arange(5000) + step})
            manager.wait_until_finished()

        def copy(source: str, target: str) -> None:
            before = names(source)
            save(2)  # and checkpoint 1, which is being copied, is removed
            found.extend([before, names(source)])
            shutil.copytree(source, target, symlinks=True)

        save(1)
        with contextlib.closing(
            pawl.Syncer(tmp_path / "run", pawl.SyncConfig(syncer=copy), remote=str(tmp_path / "a" / "b" / "run"))
        ) as syncer:
            report = syncer.up()
        assert report is not None and report.verified
    assert steps_of(tmp_path / "run") == [2] and steps_of(tmp_path / "a" / "b" / "run") == [1]
    assert found[0] == found[1] and "checkpoints/checkpoint_000001/manifest.json" in found[0]
    assert not [name for name in found[0] if "partial" in name or "lease" in name or "holds/" in name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "run"]


def test_R113_R118_a_command_runs_beside_a_training_that_removes_checkpoints(tmp_path: pathlib.Path) -> None:
    """The command lists the folder, waits, and copies what it has listed: all of that is still there."""
    program = script(
        tmp_path / "copy",
        f'cd "$1" && find . -type f >{tmp_path}/list && touch {tmp_path}/listed\n'
        f"until [ -e {tmp_path}/go ]; do sleep 0.02; done\n"
        f'while read -r f; do mkdir -p "$2/$(dirname "$f")" && cp -p "$f" "$2/$f" || exit 24; done <{tmp_path}/list',
    )
    config = pawl.SyncConfig(syncer=f"{program} {{source}} {{target}}", sync_period=3600, sync_on_checkpoint=False)
    there = tmp_path / "new" / "there"
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1) as manager:
        manager.save(1, {"x": 1})
        manager.wait_until_finished()
        with pawl.Syncer(tmp_path / "run", config, remote=str(there)) as syncer:
            syncer.request()
            exists(tmp_path / "listed")
            for step in (2, 3):
                manager.save(step, {"x": step})
                manager.wait_until_finished()
            assert manager.all_steps() == [3]
            (tmp_path / "go").touch()
            syncer.wait(HANG_SECONDS)
            assert steps_of(there) == [1]
    assert set(steps_of(there)) == {1, 3} and not list(there.glob("**/.*partial*"))


def test_R111_a_store_gets_no_part_of_a_checkpoint_that_is_removed_meanwhile(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training saves, and removes the checkpoint of which the store has got the first file."""
    there = f"memory://removed-{os.getpid()}/run"
    put = Store.put
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1) as manager:

        def save(step: int) -> None:
            manager.save(step, {"x": np.arange(5000) + step})
            manager.wait_until_finished()

        def put_and_save(self: Store, key: str, data: bytes) -> None:
            put(self, key, data)
            if "rank00000" in key and manager.all_steps() == [1]:
                save(2)

        save(1)
        monkeypatch.setattr(Store, "put", put_and_save)
        pawl.Syncer(tmp_path / "run", remote=there).up()
        assert manager.all_steps() == [2]
        pawl.Syncer(tmp_path / "run", remote=there).up()
    pawl.Syncer(tmp_path / "back", remote=there).down()
    assert steps_of(tmp_path / "back") == [1, 2]
    assert pawl.verify(tmp_path / "back") == []


def test_R116_rsync_is_given_files_that_stay(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An rsync that waits after it has read the names: all of these files are still there."""
    (tmp_path / "bin").mkdir()
    script(
        tmp_path / "bin" / "rsync",
        f'for last; do from="$to"; to="$last"; done; names=$(tr "\\0" "\\n"); touch {tmp_path}/listed\n'
        f"until [ -e {tmp_path}/go ]; do sleep 0.02; done\n"
        f'for name in $names; do test -e "$from$name" || exit 24; echo "$name" >> {tmp_path}/found; done',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    config = pawl.SyncConfig(sync_period=3600, sync_on_checkpoint=False, verify=False)
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1) as manager:
        manager.save(1, {"x": 1})
        manager.wait_until_finished()
        with pawl.Syncer(tmp_path / "run", config, remote="host:/there/run") as syncer:
            syncer.request()
            exists(tmp_path / "listed")
            manager.save(2, {"x": 2})
            manager.wait_until_finished()
            assert manager.all_steps() == [2]
            (tmp_path / "go").touch()
            syncer.wait(HANG_SECONDS)
            assert "checkpoints/checkpoint_000001/manifest.json" in (tmp_path / "found").read_text().split()


DENIED = """
import sys
import pawl
source, target, command = sys.argv[1:]
try:
    pawl.Syncer(source, pawl.SyncConfig(syncer=command), remote=target).up()
except pawl.PawlError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("auto", "AccessError {}/run/checkpoints/checkpoint_000001: user .* may not read this"),
        ("cp -r {source} {target}", "StorageError cp: ended with status 1: .*'{}/run/.*: Permission denied"),
    ],
)
def test_an_error_names_the_run_and_not_its_frozen_view(tmp_path: pathlib.Path, command: str, expected: str) -> None:
    manifest = make_run(tmp_path / "run") / "checkpoints" / "checkpoint_000001" / "manifest.json"
    manifest.chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", DENIED, tmp_path / "run", tmp_path / "there", command],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        preexec_fn=cli.obey_permissions,
        check=True,
    )
    assert re.match(expected.format(tmp_path), done.stdout) and "sync.tmp" not in done.stdout, done


@pytest.mark.parametrize("way", ["function", "store"])
def test_R113_files_that_are_set_aside_for_reuse_are_not_sent(tmp_path: pathlib.Path, way: str) -> None:
    copy = pawl.SyncConfig(syncer=lambda source, target: shutil.copytree(source, target, symlinks=True))
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1, packs=pawl.Packs(recycle=2)) as manager:
        for step in range(3):
            manager.save(step, {"x": np.full(1 << 18, step)})
            manager.wait_until_finished()
        assert list((tmp_path / "run" / ".pawl" / "recycle").iterdir())
        pawl.Syncer(tmp_path / "run", copy if way == "function" else None, remote=str(tmp_path / "there")).up()
    assert not list(tmp_path.glob("there/**/recycle*"))
    assert steps_of(tmp_path / "there") == [2]


def test_a_request_without_a_with_block_syncs_and_close_syncs_once_more(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    config = pawl.SyncConfig(tmp_path / "up", sync_period=3600, sync_on_checkpoint=False)
    syncer = pawl.Syncer(run, config)
    syncer.request()
    syncer.wait(HANG_SECONDS)
    assert steps_of(tmp_path / "up" / "run") == [0, 1]
    (run / "late").write_text("late")
    syncer.close()
    assert (tmp_path / "up" / "run" / "late").read_text() == "late"


def test_an_error_of_a_request_without_a_with_block_is_raised(tmp_path: pathlib.Path) -> None:
    failing = pawl.SyncConfig(tmp_path / "up", "false {source} {target}", 3600, sync_on_checkpoint=False)
    syncer = pawl.Syncer(make_run(tmp_path / "run"), failing)
    syncer.request()
    with pytest.raises(pawl.StorageError, match="false: ended with status 1"):
        syncer.wait(HANG_SECONDS)
    syncer.close(sync=False)


def test_close_after_a_fetch_sends_nothing(tmp_path: pathlib.Path) -> None:
    """Without a request and outside of a with block there is no sync in the background."""
    run = make_run(tmp_path / "run")
    syncer = pawl.Syncer(tmp_path / "back", remote=str(run))
    syncer.down()
    (tmp_path / "back" / "new").touch()
    syncer.close()
    assert not (run / "new").exists()


def test_an_error_is_forgotten_once_a_later_sync_has_succeeded(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, broken = make_run(tmp_path / "run"), threading.Event()

    def copy(source: str, target: str) -> None:
        if broken.is_set():
            raise RuntimeError("no way through")
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)

    config = pawl.SyncConfig(syncer=copy, sync_period=3600, sync_on_checkpoint=False)

    def sync(syncer: pawl.Syncer) -> None:
        syncer.request()
        with syncer._wake:
            while syncer._done < syncer._begun:
                syncer._wake.wait(0.5)

    with pawl.Syncer(run, config, remote=str(tmp_path / "there")) as syncer:
        broken.set()
        sync(syncer)
        broken.clear()
    assert steps_of(tmp_path / "there") == [0, 1]
    assert [record.levelname for record in caplog.records if "no way through" in record.message] == ["WARNING"]
    with pytest.raises(pawl.StorageError, match="no way through"):
        with pawl.Syncer(run, config, remote=str(tmp_path / "there")) as syncer:
            sync(syncer)
            broken.set()  # the last one fails


def test_a_call_of_up_that_succeeds_drops_the_error_of_the_background(tmp_path: pathlib.Path) -> None:
    calls: list[str] = []

    def copy(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) != 2:
            raise RuntimeError(f"no way through {len(calls)}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)

    config = pawl.SyncConfig(syncer=copy, sync_period=3600, sync_on_checkpoint=False)
    syncer = pawl.Syncer(make_run(tmp_path / "run"), config, remote=str(tmp_path / "there"))
    syncer.request()
    wait_until(lambda: syncer._done == 1, "the sync that fails")
    syncer.up()
    syncer.check_for_errors()
    syncer.request()
    with pytest.raises(pawl.StorageError, match="no way through 3"):
        syncer.wait(HANG_SECONDS)
    syncer.close(sync=False)
    assert len(calls) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_the_background_waits_for_a_call_of_up(tmp_path: pathlib.Path, fails: bool) -> None:
    """What was requested meanwhile is sent after it, whether it succeeds or not."""
    run, inside, hold = make_run(tmp_path / "run"), threading.Event(), threading.Event()
    errors: list[Exception] = []

    def copy(source: str, target: str) -> None:
        is_first = not inside.is_set()
        inside.set()
        if is_first:
            hold.wait()
            if fails:
                raise RuntimeError("no way through")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)

    def up() -> None:
        try:
            syncer.up()
        except pawl.StorageError as error:
            errors.append(error)

    config = pawl.SyncConfig(syncer=copy, sync_period=3600, sync_timeout=HANG_SECONDS, sync_on_checkpoint=False)
    syncer = pawl.Syncer(run, config, remote=str(tmp_path / "there"))
    thread = threading.Thread(target=up)
    thread.start()
    assert inside.wait(HANG_SECONDS)
    (run / "late").write_text("late")
    syncer.request()
    wait_until(lambda: syncer._wake._waiters, "the background to wait")  # type: ignore[attr-defined]
    with pytest.raises(pawl.BusyError, match="is already being synced"):
        syncer.up()
    hold.set()
    syncer.wait(HANG_SECONDS)
    thread.join()
    assert (tmp_path / "there" / "late").read_text() == "late" and len(errors) == fails
    syncer.up()  # not busy
    syncer.close(sync=False)


def test_close_does_not_wait_for_the_turn_of_the_background(tmp_path: pathlib.Path) -> None:
    inside, hold = threading.Event(), threading.Event()

    def blocks(source: str, target: str) -> bool:
        inside.set()
        hold.wait()
        return False

    config = pawl.SyncConfig(syncer=blocks, sync_period=3600, sync_timeout=HANG_SECONDS, sync_on_checkpoint=False)
    syncer = pawl.Syncer(make_run(tmp_path / "run"), config, remote=str(tmp_path / "there"))
    thread = threading.Thread(target=lambda: pytest.raises(pawl.StorageError, syncer.up))
    thread.start()
    assert inside.wait(HANG_SECONDS)
    syncer.request()
    wait_until(lambda: syncer._wake._waiters, "the background to wait")  # type: ignore[attr-defined]
    syncer.close(sync=False)
    hold.set()
    thread.join()


def test_R119_functions_that_fail_hang_or_do_nothing(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    called, hold = threading.Event(), threading.Event()

    def raising(source: str, target: str) -> None:
        raise RuntimeError("no way through")

    def hanging(source: str, target: str) -> None:
        called.set()
        hold.wait()

    def syncer(function: Callable[[str, str], object], seconds: float = HANG_SECONDS) -> pawl.Syncer:
        return pawl.Syncer(run, pawl.SyncConfig(syncer=function, sync_timeout=seconds), remote=str(tmp_path / "x"))

    with pytest.raises(pawl.StorageError, match="no way through"):
        syncer(raising).up()
    with pytest.raises(pawl.StorageError, match="returned False"):
        syncer(lambda source, target: False).up()
    with pytest.raises(
        pawl.NotFoundError, match="after the sync function .*<lambda>: .*x: the sync left nothing there"
    ):
        syncer(lambda source, target: True).up()
    stuck: list[pawl.Syncer] = []

    def up(seconds: float) -> None:
        stuck.append(syncer(hanging, seconds))
        stuck[-1].up()

    ends_in_time(up, called.is_set, "not returned within {:g} s")
    with pytest.raises(pawl.BusyError, match="still not returned"):
        stuck[-1].up()
    hold.set()


def test_fsspec_is_the_fallback_for_other_urls(tmp_path: pathlib.Path) -> None:
    """A real fsspec file system, up and down; damage there is found."""
    fsspec = pytest.importorskip("fsspec")
    run = make_run(tmp_path / "run", nbytes=50000)
    url = f"memory://bucket-{os.getpid()}"
    syncer = pawl.Syncer(run, pawl.SyncConfig(upload_dir=url))
    report = syncer.up()
    assert report is not None and report.verified and report.checkpoints == 2
    fs = fsspec.filesystem("memory")
    names = fs.find(f"/bucket-{os.getpid()}/run")
    assert any(name.endswith("manifest.json") for name in names) and not any(".lease" in name for name in names)
    report = pawl.Syncer(tmp_path / "back" / "run", pawl.SyncConfig(upload_dir=url)).down()
    assert report is not None and report.verified and steps_of(tmp_path / "back" / "run") == [0, 1]
    pack = next(name for name in names if "rank0" in name)
    data = bytearray(fs.cat_file(pack))
    data[-1] ^= 1
    fs.pipe_file(pack, bytes(data))
    with pytest.raises(pawl.CorruptError, match="failed verification"):
        pawl.Syncer(tmp_path / "other" / "run", pawl.SyncConfig(upload_dir=url)).down()


# A search's files in an order that is neither theirs nor alphabetical.
SEARCH_FILES = ("experiment.json", "journal", "trial_1/checkpoint_000001/w", "trial_1/result.json", "zeta.txt")


def make_search(folder: pathlib.Path) -> pathlib.Path:
    for name in SEARCH_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"token": "t"}')
    return folder


def assert_in_order_of_a_search(sent: list[str]) -> None:
    """The journal comes after all that it may name, and the file that makes the folder a search is last."""
    assert sorted(sent) == sorted(SEARCH_FILES)
    assert sent[-2:] == ["journal", "experiment.json"]


def test_rsync_sends_the_journal_of_a_search_late_and_its_document_last(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An rsync that writes down what each of its passes is asked to send."""
    search, sent = make_search(tmp_path / "s"), tmp_path / "sent"
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "rsync", f"(tr '\\0' ' '; echo) >> {sent}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    pawl.Syncer(search, pawl.SyncConfig(verify=False), remote="host:/there").up()
    passes = [line.split() for line in sent.read_text().splitlines()]
    assert_in_order_of_a_search([name for names in passes for name in names])
    assert passes[-2:] == [["journal"], ["experiment.json"]]  # rsync sorts the files of one pass itself


def test_fsspec_sends_the_journal_of_a_search_late_and_its_document_last(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    put = Store.put

    def note(self: Store, key: str, data: bytes) -> None:
        sent.append(key)
        put(self, key, data)

    monkeypatch.setattr(Store, "put", note)
    pawl.Syncer(make_search(tmp_path / "s"), remote=f"memory://search-{os.getpid()}/s").up()
    assert_in_order_of_a_search(sent)


# ------------------------------------------------------------ stores, in background


def test_R108_R111_many_runs_and_other_files_go_to_one_place(tmp_path: pathlib.Path) -> None:
    """The state of the experiment and the checkpoints of its trials; what is there is not sent again."""
    experiment = tmp_path / "experiment"
    for trial in ("trial_1", "trial_2"):
        make_run(experiment / trial, nbytes=20000)
    (experiment / "experiment_state.json").write_text("{}")
    config = pawl.SyncConfig(upload_dir=f"file://{tmp_path}/store")
    syncer = pawl.Syncer(experiment, config)
    report = syncer.up()
    assert report is not None and report.verified and report.checkpoints == 4
    there = tmp_path / "store" / "experiment"
    assert (there / "experiment_state.json").read_text() == "{}"
    assert os.readlink(there / "trial_1" / "latest") == "checkpoints/checkpoint_000002"
    assert not (there / "trial_1" / ".lease").exists()
    before = {p: p.stat().st_ino for p in there.glob("**/rank*")}
    make_run(experiment / "trial_1", steps=1)
    report = syncer.up()
    assert report is not None and report.checkpoints == 5
    assert all(p.stat().st_ino == inode for p, inode in before.items())


def test_R120_R134_the_background_follows_checkpoints_and_the_period(tmp_path: pathlib.Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "run").mkdir()
    config = pawl.SyncConfig(sync_period=3600)
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        with pawl.Syncer(tmp_path / "run", config, remote=str(there)):
            manager.save(1, {"x": 1})
            manager.wait_until_finished()
            wait_until((there / "latest").is_symlink, "the sync")
            assert steps_of(there) == [1]  # long before its period is over
            manager.save(2, {"x": 2})
            manager.wait_until_finished()
    assert steps_of(there) == [1, 2]  # the last ones on the way out
    often = pawl.SyncConfig(sync_period=0.2, sync_on_checkpoint=False)
    (tmp_path / "run" / "note.txt").write_text("x")
    with pawl.Syncer(tmp_path / "run", often, remote=str(there)):
        exists(there / "note.txt")


def test_errors_of_the_background_are_raised_later(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    syncer = pawl.Syncer(run, pawl.SyncConfig(syncer="false {source} {target}"), remote=str(tmp_path / "x"))
    syncer.start()
    syncer.request()
    with pytest.raises(pawl.StorageError, match="false: ended with status 1"):
        syncer.wait(HANG_SECONDS)
    syncer.close(sync=False)


# --------------------------------------------------------------- another machine


@pytest.fixture(autouse=True)
def _ssh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "host" in request.fixturenames:
        monkeypatch.setenv("PAWL_SSH", request.getfixturevalue("host").ssh)


@pytest.mark.server
def test_R116_R121_R122_R133_rsync_over_ssh_between_hosts(host: Host, tmp_path: pathlib.Path) -> None:
    """The worker's folder to another host; and from a worker to the driver, which then has all checkpoints."""
    run = make_run(tmp_path / "trial1", steps=3, nbytes=300000)
    syncer = pawl.Syncer(run, pawl.SyncConfig(upload_dir=host.place("/results")))
    assert syncer.remote == f"{host.user}@{host.address}:{host.home}/results/trial1"
    report = syncer.up()
    assert report is not None and report.verified and report.checkpoints == 3 and report.note == ""
    there = host.home / "results" / "trial1"
    assert steps_of(there) == [0, 1, 2] and not (there / ".lease").exists()
    assert os.readlink(there / "latest") == "checkpoints/checkpoint_000003"
    driver = tmp_path / "driver" / "trial1"
    report = pawl.Syncer(driver, remote=host.place("/results/trial1")).down()
    assert report is not None and report.verified and report.checkpoints == 3
    assert steps_of(driver) == [0, 1, 2] and os.readlink(driver / "latest") == "checkpoints/checkpoint_000003"


@pytest.mark.server
def test_R106_R107_a_run_goes_on_on_another_host(host: Host, tmp_path: pathlib.Path) -> None:
    """Its checkpoints are where it ran; on another node they are fetched, and the training resumes from the latest."""
    first = make_run(tmp_path / "node1" / "trial", steps=2)
    pawl.Syncer(first, remote=host.place("/nodes/trial")).up()
    second = tmp_path / "node2" / "trial"
    pawl.Syncer(second, remote=host.place("/nodes/trial")).down()
    shutil.rmtree(first)
    with pawl.CheckpointManager(second) as manager:
        restored = manager.restore()
        assert restored is not None and restored.step == 1 and restored.state["step"] == 1
        manager.save(2, {"step": 2})
        manager.wait_until_finished()
        assert manager.all_steps() == [0, 1, 2]


@pytest.mark.server
def test_P14_damage_on_the_other_host_is_found(host: Host, tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "damaged", nbytes=300000)
    report = pawl.Syncer(run, remote=host.place("/damaged")).up()
    assert report is not None and report.verified
    (pack,) = (host.home / "damaged/checkpoints/checkpoint_000001").glob("rank*")
    status = pack.stat()
    flip(pack)
    os.utime(pack, ns=(status.st_atime_ns, status.st_mtime_ns))  # rsync sees no difference
    with pytest.raises(pawl.CorruptError, match="checkpoint_000001: the synced copy failed verification"):
        pawl.Syncer(run, remote=host.place("/damaged")).up()
    with pytest.raises(pawl.CorruptError, match="failed verification"):
        pawl.Syncer(tmp_path / "back", remote=host.place("/damaged")).down()


def damage_and_sync(run: pathlib.Path, remote: str, there: pathlib.Path) -> None:
    """A checkpoint that is complete there is not written over by one that was damaged here, nor the other way about."""
    (run / ".pawl" / "holds").mkdir(parents=True, exist_ok=True)
    (run / ".pawl" / "holds" / "x.json").write_text("{}")
    with pawl.Syncer(run, remote=remote) as syncer:
        with pawl.CheckpointManager(run):  # which has the lease now
            syncer.up()
        assert not list(there.glob(".lease*")) and not (there / ".pawl" / "holds" / "x.json").exists()
        for name in ("rank*", "manifest.json"):
            (file,) = (run / "checkpoints" / "checkpoint_000001").glob(name)
            file.write_bytes(file.read_bytes()[:-7])  # another size, and newer
        syncer.up()
        with pawl.CheckpointManager(there, read_only=True) as manager:
            assert manager.verify() == []
            assert manager.all_steps() == [0, 1]
        (pack,) = (there / "checkpoints" / "checkpoint_000002").glob("rank*")
        pack.write_bytes(pack.read_bytes()[:-7])
        with pytest.raises(pawl.PawlError):
            pawl.Syncer(run, remote=remote).down()
    with pawl.CheckpointManager(run, read_only=True) as manager:
        restored = manager.restore(step=1)
        assert restored is not None and restored.state["step"] == 1


@pytest.mark.server
def test_P14_rsync_writes_over_no_checkpoint(host: Host, tmp_path: pathlib.Path) -> None:
    damage_and_sync(make_run(tmp_path / "run", nbytes=300000), host.place("/kept"), host.home / "kept")


@pytest.mark.server
def test_rsync_fetches_what_changed_in_folders_of_users_named_checkpoints(host: Host, tmp_path: pathlib.Path) -> None:
    """Such folders hold files of users, not checkpoints. A file that only this side has is kept."""
    names = [f"checkpoints/epoch1/{name}" for name in ("weights.bin", "manifest.json", "experiment.json")]
    here, there = tmp_path / "here", host.home / "mine"
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("old")
    run = make_run(here / "run", steps=1)
    pawl.Syncer(here, remote=host.place("/mine")).up()
    for name in names:
        (there / name).write_text("newer")
    (pack,) = (there / "run" / "checkpoints" / "checkpoint_000001").glob("rank*")
    flip(pack)
    (here / "checkpoints" / "epoch1" / "own").write_text("here")
    pawl.Syncer(here, remote=host.place("/mine")).down()
    assert [(here / name).read_text() for name in names] == ["newer"] * 3
    assert (here / "checkpoints" / "epoch1" / "own").read_text() == "here"
    assert steps_of(run) == [0]


def test_P14_a_store_as_target_writes_over_no_checkpoint(tmp_path: pathlib.Path) -> None:
    damage_and_sync(make_run(tmp_path / "run", nbytes=300000), f"file://{tmp_path}/kept", tmp_path / "kept")


def test_P8_a_store_that_holds_another_run_is_refused(tmp_path: pathlib.Path) -> None:
    remote = f"file://{tmp_path}/one"
    pawl.Syncer(make_run(tmp_path / "a"), remote=remote).up()
    other = make_run(tmp_path / "b", steps=3)
    with pytest.raises(pawl.ExistsError, match="another run"):
        pawl.Syncer(other, remote=remote).up()
    with pytest.raises(pawl.ExistsError, match="another run"):
        pawl.Syncer(other, remote=remote).down()
    assert steps_of(tmp_path / "one") == [0, 1] and steps_of(other) == [0, 1, 2]


@pytest.mark.server
def test_R118_a_template_of_the_seed(host: Host, tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "seed")
    ssh = host.ssh.removeprefix("ssh ")
    config = pawl.SyncConfig(syncer=f'rsync -savz -e "ssh {ssh}" {{source}} {{target}}')
    report = pawl.Syncer(run, config, remote=host.place("/some/deep/seed")).up()  # rsync makes no folders above it
    assert report is not None and report.verified and steps_of(host.home / "some/deep/seed") == [0, 1]


@pytest.mark.server
def test_the_ssh_store_is_a_target_too(host: Host, tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "store", nbytes=9 << 20)
    report = pawl.Syncer(run, remote=host.url("/store")).up()
    assert report is not None and report.verified and report.checkpoints == 2
    report = pawl.Syncer(tmp_path / "back", remote=host.url("/store")).down()
    assert report is not None and report.verified and steps_of(tmp_path / "back") == [0, 1]


@pytest.mark.server
def test_R117_wrong_keys_and_hosts_are_told_early(
    host: Host, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    with monkeypatch.context() as changed:
        changed.setenv("PAWL_SSH", host.ssh.replace("user_key", "other_key"))
        with pytest.raises(pawl.AccessError, match="ermission denied"):
            pawl.Syncer(run, remote=host.place("/refused")).up()
        changed.setenv("PAWL_SSH", host.ssh.replace("known_hosts", "known_hosts.wrong"))
        with pytest.raises(pawl.AccessError, match="Host key"):
            pawl.Syncer(run, remote=host.place("/refused")).up()
    assert not (host.home / "refused").exists()


def pull_in_mid_transfer(host: Host, folder: pathlib.Path, over: threading.Event, pulled: threading.Event) -> None:
    """Takes the cable away once bytes of a pack have arrived there, unless the sync ends before."""
    while not over.wait(0.01):
        with contextlib.suppress(FileNotFoundError):  # rsync's names come and go
            if any(path.stat().st_size > 0 for path in folder.rglob("*rank0*")):
                host.link("down")
                pulled.set()
                return


@pytest.mark.server
@pytest.mark.root
def test_a_host_that_vanishes_in_mid_transfer(host: Host, tmp_path: pathlib.Path) -> None:
    """The cable is pulled: the sync ends at its deadline, leaves no process, and the next one completes it."""
    if host.namespace is None:
        pytest.skip("network namespaces are for root")
    run = make_run(tmp_path / "run", steps=2, nbytes=40 << 20)
    # slower than the longest deadline, so that no sync is done before it
    slow = f'rsync -a --bwlimit=100k -e "{host.ssh}" {{source}} {{target}}'
    for seconds in (4, 20, 100, 500):  # enough for the first bytes, however busy the machine is
        config = pawl.SyncConfig(syncer=slow, sync_timeout=seconds)
        over, pulled = threading.Event(), threading.Event()
        args = (host, host.home / "vanishing", over, pulled)
        watch = threading.Thread(target=pull_in_mid_transfer, args=args)
        watch.start()
        try:
            with pytest.raises(pawl.TimeoutError, match="has not ended within"):
                pawl.Syncer(run, config, remote=host.place("/vanishing")).up()
        finally:
            over.set()
            watch.join()
            host.link("up")
        assert ends("--bwlimit=100k\0-e")
        if pulled.is_set():
            break
    assert pulled.is_set()
    report = pawl.Syncer(run, remote=host.place("/vanishing")).up()
    assert report is not None and report.verified and report.checkpoints == 2


def test_ctrl_c_ends_a_sync_and_its_processes(tmp_path: pathlib.Path) -> None:
    run = make_run(tmp_path / "run")
    tag = f"sleep 63{os.getpid()}"
    hanging = script(tmp_path / "hang", tag)
    code = (
        "import pawl, sys\n"
        f"config = pawl.SyncConfig(syncer='{hanging} {{source}} {{target}}')\n"
        f"syncer = pawl.Syncer({str(run)!r}, config, remote={str(tmp_path / 'x')!r})\n"
        "print('ready', flush=True)\ntry:\n    syncer.up()\nexcept KeyboardInterrupt:\n    sys.exit(42)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    wait_until(lambda: alive(tag.replace(" ", "\0")), tag)
    process.send_signal(2)
    assert process.wait(HANG_SECONDS) == 42
    process.stdout.close()
    assert ends(tag.replace(" ", "\0"))
