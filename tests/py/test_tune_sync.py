# SPDX-License-Identifier: Apache-2.0
"""`pawl tune` with an upload_dir: the search is brought there while it runs, found there when its machine is lost, and resumes:
in a bucket, on another host, by a command."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from object_env import keys_for
from s3_fake import Fake
from ssh_servers import Host, started_host
from sweeps import COUNT, Sweep
from waiting import HANG_SECONDS, wait_until

from cli import PAWL, run

__all__ = ["started_host"]

# It waits at its third iteration until there is a gate.
GATED = COUNT.replace(
    '\t"$PAWL" report', '\tif [ "$n" = 4 ]; then while [ ! -e "$0.gate" ]; do sleep 0.02; done; fi\n\t"$PAWL" report'
)
ENDS = {"lr": {"$grid": [1, 2, 3]}}


@pytest.fixture(name="fake")
def fake_server() -> Iterator[Fake]:
    with contextlib.closing(Fake()) as fake:
        yield fake


def lose_the_machine(sweep: Sweep, there: Callable[[str], str], **env: str) -> None:
    """Runs until two trials are at the gate and all of that has been brought away; then everything here is gone."""
    with sweep.running("--resume", **env) as process:

        def is_brought_away() -> bool:
            return there("journal").count('"c": "checkpoint_000003"') == 2  # once of each of the two

        wait_until(is_brought_away, process=process)
        process.kill()
        process.wait(HANG_SECONDS)
    wait_until(lambda: "no process runs" in run("tune", "stop", sweep.folder, status=3).stderr)
    shutil.rmtree(sweep.folder)
    pathlib.Path(f"{sweep.script}.gate").touch()


def check_end(sweep: Sweep) -> None:
    """All have reached their end; those that were at the gate continued from there."""
    trials = sweep.trials()
    assert [(trial["state"], trial["iteration"]) for trial in trials] == [("TERMINATED", 6)] * 3
    assert [trial["metric"] for trial in trials] == [1000 - 6 * lr for lr in (1, 2, 3)]
    assert [sweep.starts(trial)[-1] for trial in trials] == ["checkpoint_000003", "checkpoint_000003", "new"]


def test_R107_R111_R112_R115_R128_R130_R135_a_search_in_a_bucket_goes_on_when_its_machine_is_lost(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    env = keys_for(fake.endpoint)
    sweep = Sweep(tmp_path, GATED, space=ENDS, sync={"upload_dir": "s3://bucket/searches/"}, max_concurrent=2)

    def there(name: str) -> str:
        return fake.state().get(f"searches/s/{name}", b"").decode()

    lose_the_machine(sweep, there, **env)
    kept = [key for key in fake.state() if "/checkpoint_000003/" in key]
    said = sweep.run("--resume", status=0, **env)
    assert "fetched from s3://bucket/searches/s" in said and len(kept) == 2
    check_end(sweep)
    for trial in sweep.trials():  # and it is all there again
        assert there(f"{trial['name']}/result.json") == (sweep.folder / trial["name"] / "result.json").read_text()
        assert there(f"{trial['name']}/checkpoint_000006/n") == "6\n"
    assert there("journal") == (sweep.folder / "journal").read_text()


@pytest.mark.server
def test_R107_R116_R122_R133_a_search_goes_on_on_another_host(tmp_path: pathlib.Path, host: Host) -> None:
    """By rsync over ssh to a host of its own; there it resumes in place, and a third machine fetches it from there."""
    env = {"PAWL_SSH": host.ssh}
    sweep = Sweep(tmp_path, GATED, space=ENDS, sync={"upload_dir": host.place("/results")}, max_concurrent=2)
    copy = host.home / "results" / "s"

    def there(name: str) -> str:
        return (copy / name).read_text() if (copy / name).exists() else ""

    lose_the_machine(sweep, there, **env)
    document: dict[str, Any] = sweep.document | {"local_dir": str(copy.parent), "sync": {}}
    (tmp_path / "there.json").write_text(json.dumps(document))
    command = f"env PAWL={PAWL} {PAWL} tune {tmp_path}/there.json --resume --cpus 2"
    ssh = [*shlex.split(host.ssh), f"{host.user}@{host.address}", command]
    done = subprocess.run(ssh, capture_output=True, text=True, timeout=HANG_SECONDS, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "fetched from" in sweep.run("--resume", status=0, **env)  # finished trials stay finished
    check_end(sweep)


def test_R113_R118_a_command_brings_it_away_and_a_shared_folder_needs_none(tmp_path: pathlib.Path) -> None:
    copy = 'sh -c \'mkdir -p "$1" && cp -r "$0". "$1"\' {source} {target}'
    sweep = Sweep(tmp_path, COUNT, sync={"upload_dir": str(tmp_path / "there"), "syncer": copy})
    sweep.run("--resume")
    assert len(list((tmp_path / "there" / "s").glob("*/checkpoint_000006/n"))) == 3
    sweep.change(name="t", sync={"upload_dir": str(tmp_path / "none"), "syncer": None})
    sweep.run()
    assert not (tmp_path / "none").exists()


def test_R127_what_is_kept_here_is_kept_there(tmp_path: pathlib.Path, fake: Fake) -> None:
    """In a bucket, at a path, and at a path that a command copies to."""

    def kept(names: Any) -> list[str]:
        return sorted({name.split("/")[-2] for name in map(str, names) if "/checkpoint_" in name})

    keep = {"keep": 2, "score_attr": "min-loss"}
    sweep = Sweep(tmp_path, COUNT, checkpoint=keep, space={"lr": {"$grid": [1]}}, sync={"upload_dir": "s3://bucket/x"})
    sweep.run(**keys_for(fake.endpoint))
    here = kept(sweep.folder.glob("*/*/n"))
    assert here == ["checkpoint_000005", "checkpoint_000006"] == kept(fake.state())
    for name, more in (("path", {}), ("command", {"syncer": "cp -rT {source} {target}"})):
        sweep.change(name=name, sync={"upload_dir": str(tmp_path / "there"), **more})
        sweep.run()
        assert kept((tmp_path / "there" / name).glob("*/*/n")) == here


@pytest.mark.parametrize(
    ("sync", "status", "message"),
    [
        ({"upload_dir": "s3://nowhere/x"}, 3, "there is no bucket"),
        ({"upload_dir": "/x", "syncer": "cp {source} there"}, 2, "{target}"),
        ({"upload_dir": 3}, 2, "'upload_dir' must be a text or null"),
        ({"upload": "x"}, 2, "key 'upload' is not known (known: upload_dir"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_told_before_a_trial_begins(
    tmp_path: pathlib.Path, fake: Fake, sync: dict[str, Any], status: int, message: str
) -> None:
    sweep = Sweep(tmp_path, COUNT, sync=sync)
    assert message in sweep.run(status=status, **keys_for(fake.endpoint))
    assert not list(sweep.folder.glob("*/params.json"))


def test_a_new_search_does_not_write_over_one_that_was_brought_there(tmp_path: pathlib.Path) -> None:
    sweep = Sweep(tmp_path, COUNT, sync={"upload_dir": str(tmp_path / "there")})
    sweep.run()
    before = (tmp_path / "there" / "s" / "journal").read_bytes()
    shutil.rmtree(sweep.folder)  # another machine
    said = sweep.run(status=7)
    assert "already holds something" in said and "--resume continues it" in said
    assert (tmp_path / "there" / "s" / "journal").read_bytes() == before and not sweep.folder.exists()
    assert "fetched from" in sweep.run("--resume")


def test_a_fetch_that_was_cut_off_is_no_search(tmp_path: pathlib.Path) -> None:
    there, cut = tmp_path / "there", tmp_path / "cut"
    command = f"""sh -c 'mkdir -p "$1" && cp -r "$0". "$1" && test ! -e {cut}' {{source}} {{target}}"""
    sweep = Sweep(tmp_path, COUNT, sync={"upload_dir": str(there), "syncer": command})
    sweep.run()
    shutil.rmtree(sweep.folder)  # another machine
    cut.touch()
    sweep.run("--resume", status=1)
    assert not (sweep.folder / "experiment.json").exists()
    cut.unlink()
    assert "fetched from" in sweep.run("--resume")
    assert len(list(sweep.folder.glob("*/checkpoint_000006/n"))) == 3


def test_what_does_not_come_over_is_told_and_costs_no_trial(tmp_path: pathlib.Path) -> None:
    """A place that goes away in the middle."""
    there = tmp_path / "there"
    command = f'sh -c \'test ! -e {tmp_path}/broken && mkdir -p "$1" && cp -r "$0". "$1"\' {{source}} {{target}}'
    script = COUNT.replace("#!/bin/sh\n", f"#!/bin/sh\ntouch {tmp_path}/broken\n")
    sweep = Sweep(tmp_path, script, sync={"upload_dir": str(there), "syncer": command})
    assert "the search was not synced completely" in sweep.run(status=1)
    assert {trial["state"] for trial in sweep.trials()} == {"TERMINATED"}
    (tmp_path / "broken").unlink()
    sweep.run("--resume")
    assert len(list(there.glob("s/*/checkpoint_000006/n"))) == 3
