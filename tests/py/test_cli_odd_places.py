# SPDX-License-Identifier: Apache-2.0
"""Places with odd names, of odd kinds, or without permission, and runs of many checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess

import pytest
import torch
from object_env import keys_for
from s3_fake import Fake
from waiting import HANG_SECONDS

import pawl
from cli import PAWL, environment, make, obey_permissions, run, run_json

NAMES = ["-dash", "a b  c", "größe日本", "run@2", "x" * 200, "100%"]


def denied(*args: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [PAWL, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=environment(),
        preexec_fn=obey_permissions,
    )
    return done.returncode, done.stdout, done.stderr


def test_places_of_any_name_are_listed_and_verified(tmp_path: pathlib.Path) -> None:
    for name in NAMES:
        pawl.save({"w": torch.ones(2)}, tmp_path / name)
    make("run", tmp_path / "deeper one" / "run", 2)
    rows = run_json("ls", "-r", tmp_path)["runs"]
    assert sorted(pathlib.Path(row["run"]).name for row in rows) == sorted([*NAMES, "run"])
    assert run_json("du", tmp_path)["runs"] == rows
    assert sorted(run("ls", "--names", tmp_path).stdout.splitlines()) == sorted(NAMES)
    found = run_json("verify", tmp_path)["places"]
    assert sorted(pathlib.Path(one["root"]).name for one in found) == sorted([*NAMES, "run"])
    assert all(one["ok"] for one in found)
    assert "; below it: " in run("gc", tmp_path, status=3).stderr
    (tmp_path / os.fsdecode(b"not\xffutf8")).symlink_to(tmp_path / NAMES[0])
    assert len(run_json("ls", "-r", tmp_path)["runs"]) == len(rows)


def test_a_folder_with_a_control_character_in_its_name_is_a_row_with_the_reason(tmp_path: pathlib.Path) -> None:
    make("run", tmp_path / "new\nline", 2)
    pawl.save({"w": torch.ones(2)}, tmp_path / "good")
    [good, odd] = run("ls", tmp_path, status=1).stdout.splitlines()[1:]
    assert good.split()[0] == "good"
    assert odd.startswith("new?line") and odd.endswith("its name has control characters; name this folder itself")
    assert len(run_json("ls", tmp_path / "new\nline")["checkpoints"]) == 2


def test_a_folder_that_is_too_deep_is_a_row_with_the_reason(tmp_path: pathlib.Path) -> None:
    for depth, listed in ((32, True), (33, False)):
        root = tmp_path / str(depth)
        deep = root.joinpath(*"d" * (depth - 1), "run")
        make("run", deep, 1)
        [row] = run_json("ls", "-r", root, status=0 if listed else 1)["runs"]
        assert row["run"] == str(deep) and row["checkpoints"] == listed
        assert row.get("problem", "") == ("" if listed else "it is more than 32 folders deep; list this folder itself")


def test_runs_that_are_links_in_the_listed_folder_are_listed_once(tmp_path: pathlib.Path) -> None:
    away = make("run", tmp_path / "away", 3)
    pawl.save({"w": torch.ones(2)}, tmp_path / "one")
    folder = tmp_path / "all"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a").symlink_to("../away")
    (folder / "b").symlink_to("../one")
    (folder / "deeper" / "c").symlink_to(away)
    (folder / "up").symlink_to(tmp_path)
    for command in (["ls"], ["ls", "-r"], ["du"]):
        rows = run_json(*command, folder)["runs"]
        assert [(row["run"], row["checkpoints"]) for row in rows] == [(f"{folder}/a", 3), (f"{folder}/b", 1)]
    make("run", folder / "here", 2)
    (folder / "again").symlink_to("here")
    (folder / "part").symlink_to("here/latest")
    assert run("ls", "--names", folder).stdout.split() == ["a", "b", "here"]
    assert [one["ok"] for one in run_json("verify", folder)["places"]] == [True] * 3


def test_what_is_no_file_and_no_folder_is_named_as_such(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, contextlib.chdir(tmp_path):
        listener.bind("socket")  # an address holds about 100 bytes, the folder's path may be longer
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    answers = {
        "fifo": (1, "fifo: is not a regular file"),
        "socket": (1, "socket: is not a regular file"),
        "broken": (3, "broken: a link to nowhere, which does not exist"),
        "loop": (3, "loop: a link to loop, which leads back to itself"),
    }
    for name, (status, answer) in answers.items():
        for command in (["ls"], ["show"], ["verify"], ["du"], ["restore", tmp_path / "new"]):
            assert answer in run(command[0], tmp_path / name, *command[1:], status=status).stderr
    assert "the address is empty; name a run, a checkpoint or a file" in run("ls", "", status=2).stderr


def test_a_single_checkpoint_that_may_not_be_read_is_a_failure(tmp_path: pathlib.Path) -> None:
    pawl.save({"w": torch.ones(2)}, tmp_path / "single")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    for secret, place in [("single/manifest.json", "single"), ("model.pt", "model.pt")]:
        (tmp_path / secret).chmod(0)
        for command in ("ls", "du", "show", "verify"):
            status, _, err = denied(command, tmp_path / place)
            assert status == 1 and f"error: {tmp_path / place}: user " in err and "is unknown" not in err
        assert "may not read this" in denied("ls", tmp_path / place)[2]
    status, _, _ = denied("ls", "--bad", tmp_path / "single")
    assert status == 0


@pytest.mark.parametrize("command", ["restore", "sync", "cp"])
@pytest.mark.parametrize("below", ["new", "deep/new"])
def test_a_folder_in_which_nothing_can_be_made_is_named(tmp_path: pathlib.Path, command: str, below: str) -> None:
    run_folder, shut = make("run", tmp_path / "run", 1), tmp_path / "shut"
    shut.mkdir(mode=0o500)
    status, _, told = denied(command, run_folder, shut / below)
    assert status != 0 and f" {shut}: user " in told and "may not write here" in told
    assert list(shut.iterdir()) == []


def test_ls_of_a_folder_fails_where_a_checkpoint_in_it_may_not_be_read(tmp_path: pathlib.Path) -> None:
    pawl.save({"w": torch.ones(2)}, tmp_path / "single")
    pawl.save({"w": torch.ones(2)}, tmp_path / "whole")
    assert denied("ls", tmp_path)[0] == 0
    (tmp_path / "single/manifest.json").chmod(0)
    status, out, _ = denied("ls", tmp_path)
    assert status == 1 and "may not read" in out and "whole" in out


def test_du_and_ls_mention_a_checkpoint_that_may_not_be_read(tmp_path: pathlib.Path) -> None:
    many = make("run", tmp_path / "run", 3)
    (many / "checkpoints/checkpoint_000002/manifest.json").chmod(0)
    for command in ("ls", "du"):
        status, out, err = denied(command, many)
        assert status == 0 and len(out.splitlines()) == 3
        assert "1 more cannot be" in err and "'pawl ls --bad' prints the reason" in err
    assert "'pawl ls --bad'" not in run("du", make("run", tmp_path / "whole", 2)).stderr


def test_a_failure_is_one_json_document(tmp_path: pathlib.Path) -> None:
    (tmp_path / "none").mkdir()
    alone = run_json("verify", tmp_path / "none", status=3)
    assert alone["command"] == "verify" and alone["error"]["code"] == "not-found"
    pawl.save({"w": torch.ones(2)}, tmp_path / "good")
    pawl.save({"w": torch.ones(2)}, tmp_path / "locked")
    (tmp_path / "locked").chmod(0)
    status, out, _ = denied("verify", tmp_path, "--json")
    (tmp_path / "locked").chmod(0o700)
    [good, bad] = json.loads(out)["places"]
    assert status == 1 and good["ok"] and bad["root"].endswith("locked") and bad["error"]["code"] == "auth"


def test_verify_lists_a_run_of_many_checkpoints_a_few_times(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("run", tmp_path / "run", 12)
    with contextlib.closing(Fake()) as fake:
        for variable, value in keys_for(fake.endpoint).items():
            monkeypatch.setenv(variable, value)
        run("cp", tmp_path / "run", "s3://bucket/run")
        before = len(fake.requests)
        assert len(run_json("verify", "s3://bucket/run")["checkpoints"]) == 12
        lists = [row for row in fake.requests[before:] if "checkpoints%2F" in row and "max-keys=1&" not in row]
    assert 0 < len(lists) <= 3


@pytest.mark.parametrize("command", ["prune", "rm"])
def test_a_deletion_names_the_bytes_that_it_frees(tmp_path: pathlib.Path, command: str) -> None:
    many = make("many", tmp_path / "many", 4)

    def on_disk() -> int:
        return int(run_json("du", many)["used_bytes"])

    args: list[object] = {"prune": [many, "--keep-last", 2], "rm": [f"{many}@id:1"]}[command]
    before = on_disk()
    would = run(command, *args, "-n").stderr
    done = run(command, *args).stderr
    assert "which frees" in would and would.split("which frees ")[1] == done.split("which freed ")[1]
    assert before > on_disk()
    size = done.split("which freed ")[1].split(";")[0].split()
    assert abs(float(size[0]) * {"B": 1, "KiB": 1024, "MiB": 1 << 20}[size[1]] / (before - on_disk()) - 1) < 0.01


def test_du_invents_no_facts_of_a_file_of_another_program(tmp_path: pathlib.Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "model.pt")
    [_, row] = run("du", tmp_path / "model.pt").stdout.splitlines()
    assert row.split()[1] == row.split()[-1] == "-"
    assert json.loads(run("du", tmp_path / "model.pt", "--json").stdout)["checkpoints"][0]["step"] is None
