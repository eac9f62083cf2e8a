# SPDX-License-Identifier: Apache-2.0
"""Runs, single checkpoints, Composer's folders and searches as arguments of ls, show, verify and du, in a folder and in a
bucket; and addresses that are almost right."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import time
from collections.abc import Iterator

import pytest
import torch
from object_env import keys_for
from s3_fake import Answer, Fake, Object, error

import pawl
from cli import PACK, PAWL, checkpoint, flip, make, run, run_json

BUCKET = "s3://bucket/all"


class Place:
    """A folder, or a prefix in a bucket."""

    def __init__(self, root: pathlib.Path, fake: Fake | None) -> None:
        self.fake = fake
        self.local = root
        self.name = BUCKET if fake else str(root)

    def at(self, name: str) -> str:
        return f"{self.name}/{name}"

    def put(self, name: str, body: bytes, when: float) -> None:
        if self.fake:
            self.fake.objects[f"all/{name}"] = Object(body, f'"{name}"', {}, when)
            return
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        os.utime(path, (when, when))


@pytest.fixture(name="fake")
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with contextlib.closing(Fake()) as fake:
        for name, value in keys_for(fake.endpoint).items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture(name="place", params=["folder", "bucket"])
def place_of(request: pytest.FixtureRequest, tmp_path: pathlib.Path, fake: Fake) -> Place:
    return Place(tmp_path / "all", fake if request.param == "bucket" else None)


@pytest.fixture(name="demo")
def demo_run(tmp_path: pathlib.Path) -> pathlib.Path:
    return make("run", tmp_path / "demo", 3)


def composer_files(place: Place, folder: str) -> list[str]:
    """Its files, the last of which was written first."""
    names = [f"ep{batch // 10}-ba{batch}-rank0.pt" for batch in (2, 9, 10)]
    for age, name in enumerate(names):
        body = io.BytesIO()
        torch.save({"w": torch.ones(3)}, body)
        place.put(f"{folder}/{name}", body.getvalue(), 1_000_000 - 10 * age)
    return names


def test_ls_and_verify_of_a_folder_understand_runs_and_single_checkpoints(place: Place, demo: pathlib.Path) -> None:
    run("cp", demo, place.at("run10"))
    run("cp", demo, place.at("run2"))
    run("cp", f"{demo}@id:2", place.at("kept"))
    run("cp", f"{demo}@id:1", place.at("deep/one"))
    assert run("ls", "--names", place.name).stdout.split() == ["kept", "run2", "run10"]
    rows = run_json("ls", "-r", place.name)["runs"]
    assert [(pathlib.Path(row["run"]).name, row["checkpoints"], row["latest"]["step"]) for row in rows] == [
        ("one", 1, 100),
        ("kept", 1, 200),
        ("run2", 3, 300),
        ("run10", 3, 300),
    ]
    assert all(row["bytes"] > 0 for row in rows)
    assert [row["run"] for row in run_json("du", place.name)["runs"]] == [row["run"] for row in rows]
    found = run_json("verify", place.name)["places"]
    assert [(pathlib.Path(one["root"]).name, len(one["checkpoints"])) for one in found] == [
        ("one", 1),
        ("kept", 1),
        ("run2", 3),
        ("run10", 3),
    ]
    assert "s3://bucket/all/none: no run and no checkpoint here" in run("ls", BUCKET + "/none", status=3).stderr


def test_ls_of_one_checkpoint_shows_it_alone(place: Place, demo: pathlib.Path) -> None:
    run("cp", demo, place.at("run"))
    for name in ("run@200", "run@id:2", "run/checkpoints/checkpoint_000002"):
        assert run("ls", "--names", place.at(name)).stdout.split() == ["checkpoint_000002"]
    assert run("ls", "--names", place.at("run@latest")).stdout.split() == ["checkpoint_000003"]
    assert run("ls", "--names", place.at("run@best"), "--by", "loss").stdout.split() == ["checkpoint_000001"]
    assert "there are 100, 200, 300" in run("ls", place.at("run@400"), status=3).stderr


@pytest.mark.parametrize("folder", ["saved", "run/checkpoints"])
def test_composers_files_are_listed_shown_and_verified(place: Place, folder: str) -> None:
    names = composer_files(place, folder)
    above = place.at(folder.split("/")[0])
    parts = "checkpoints/" if "/" in folder else ""
    assert run("ls", "--names", above).stdout.split() == [parts + name for name in names]
    files = run_json("ls", place.at(folder))["files"]
    assert [(f["name"], f["epoch"], f["batch"]) for f in files] == [
        (name, int(name[2]), batch) for name, batch in zip(names, (2, 9, 10), strict=True)
    ]
    assert all(f["bytes"] > 0 and abs(f["unix_seconds"] - 1_000_000) <= 20 for f in files)
    assert run("ls", "--names", "-r", place.name).stdout.split() == [f"{folder}/{name}" for name in names]
    for target in (above, place.at(folder)):
        assert run("show", target).stdout.startswith(names[0])  # written last
    found = run_json("verify", above)["places"]
    assert [pathlib.Path(one["root"]).name for one in found] == names


@pytest.mark.parametrize("folder", ["saved", "run/checkpoints"])
def test_composers_folder_is_refused_with_one_of_its_files(place: Place, tmp_path: pathlib.Path, folder: str) -> None:
    [newest, *_] = composer_files(place, folder)
    target, new = place.at(folder), tmp_path / "new"
    answer = f"{target} holds checkpoint files of another program"
    for words in (["export", target, new], ["diff", target, target], ["cp", target, new], ["pin", target]):
        assert f"{answer}; name one of its files, such as {target}/{newest}" in run(*words, status=3).stderr
    for words in (["sync", target, new], ["prune", target, "--keep-last", 1]):
        told = run(*words, status=3).stderr
        assert f"{answer}, such as {target}/{newest}; '{words[0]}' works on a run" in told
    assert not new.exists()


def test_a_step_of_composers_folder_is_refused_with_one_of_its_files(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path, None)
    [newest, *_] = composer_files(place, "run/checkpoints")
    for target, name in ((place.at("run"), f"checkpoints/{newest}"), (place.at("run/checkpoints"), newest)):
        for words in (["show", f"{target}@9"], ["pin", target]):
            told = run(*words, status=3).stderr
            assert f"{target} holds checkpoint files of another program; name one of its files, such as" in told
            assert f"{target}/{name}" in told


def test_files_of_composer_without_a_suffix_are_listed_shown_and_verified(tmp_path: pathlib.Path) -> None:
    from pawl.composer import CheckpointSaver

    with CheckpointSaver(str(tmp_path / "ns"), "ep{epoch}-ba{batch}", latest_filename="latest") as saver:
        for batch in (2, 10):
            saver.save({"run_name": "r", "epoch": 0, "batch": batch}, {"w": torch.ones(3)})
    for name, body in {"README": b"# r", "notes.zip": b"PK\3\4" + bytes(100), "short": b"PK\3\4", "none": b""}.items():
        (tmp_path / "ns" / name).write_bytes(body)
    os.mkfifo(tmp_path / "ns" / "pipe")
    names = ["ep0-ba2", "ep0-ba10"]
    files = run_json("ls", tmp_path / "ns")["files"]
    assert [(one["name"], one["batch"], one.get("links")) for one in files] == [
        ("ep0-ba2", 2, None),
        ("ep0-ba10", 10, "latest"),
    ]
    assert run("show", tmp_path / "ns").stdout.startswith("ep0-ba10")
    assert [pathlib.Path(one["root"]).name for one in run_json("verify", tmp_path)["places"]] == names


def test_R89_the_object_that_names_composers_latest_is_a_link_and_no_checkpoint(place: Place) -> None:
    names = composer_files(place, "saved")
    key = ("all" if place.fake else str(place.local).strip("/")) + f"/saved/{names[2]}"
    place.put("saved/latest-rank0.pt.symlink", key.encode(), 1_000_000)
    files = run_json("ls", place.at("saved"))["files"]
    assert [(one["name"], one.get("links")) for one in files] == [
        (names[0], None),
        (names[1], None),
        (names[2], "latest-rank0.pt.symlink"),
    ]
    assert run("show", place.at("saved")).stdout.startswith(names[2])
    assert [pathlib.Path(one["root"]).name for one in run_json("verify", place.at("saved"))["places"]] == names
    assert [one["name"] for one in run_json("du", place.name)["files"]] == [f"saved/{name}" for name in names]


def make_search(place: Place, tmp_path: pathlib.Path, name: str) -> None:
    sweep = {"name": "s", "local_dir": str(tmp_path), "run": ["pawl", "report", "loss={lr}"], "mode": "min"}
    sweep |= {"metric": "loss", "space": {"lr": {"$grid": [0.1, 0.2]}}}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    run("tune", tmp_path / "sweep.json", PATH=f"{pathlib.Path(PAWL).parent}:{os.environ['PATH']}")
    for path in (tmp_path / "s").rglob("*"):
        if path.is_file():
            place.put(f"{name}/{path.relative_to(tmp_path / 's')}", path.read_bytes(), 1_000_000)


def test_a_search_is_listed_shown_and_verified(place: Place, tmp_path: pathlib.Path) -> None:
    make_search(place, tmp_path, "s")
    trials = run("tune", "ls", tmp_path / "s").stdout
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for command in ("ls", "show"):
        assert run(command, place.at("s"), TMPDIR=str(scratch)).stdout == trials
        shown = run_json(command, place.at("s"))
        assert shown["folder"].endswith("/all/s") and len(shown["trials"]) == 2
    assert "no trial has a checkpoint with checksums" in run("verify", place.at("s"), TMPDIR=str(scratch)).stderr
    assert run_json("verify", place.at("s"))["search"] == place.at("s")
    assert list(scratch.iterdir()) == []


def test_a_folder_of_searches_is_understood_as_one_of_runs(
    place: Place, demo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    make_search(place, tmp_path, "tune/first")
    run("cp", demo, place.at("demo"))
    summary = "search, 2 trials: 2 finished"
    assert run("ls", "--names", place.at("tune")).stdout.split() == ["first"]
    assert summary in run("ls", place.at("tune")).stdout
    rows = run("ls", "-r", place.name).stdout.splitlines()
    assert [(row.split()[0], summary in row) for row in rows[1:]] == [("demo", False), ("tune/first", True)]
    found = run_json("ls", "-r", place.name)
    assert [pathlib.Path(one["run"]).name for one in found["runs"]] == ["demo"]
    assert found["searches"] == [{"search": place.at("tune/first"), "trials": 2}]
    verified = run_json("verify", place.name)["places"]
    assert len(verified[0]["checkpoints"]) == 3 and verified[1] == {"search": place.at("tune/first")}
    assert "first: no trial has a checkpoint with checksums" in run("verify", place.at("tune")).stderr
    assert "; below it: first" in run("show", place.at("tune"), status=3).stderr


def test_a_search_that_cannot_be_read_is_a_row_and_gives_the_exit_status(
    place: Place, demo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    make_search(place, tmp_path, "tune/broken")
    run("cp", demo, place.at("demo"))
    place.put("tune/broken/experiment.json", b"xx", 1_000_000)
    problem = "experiment.json: byte 0: expected a value, found 'x'"
    assert problem in run("ls", place.at("tune/broken"), status=4).stderr
    table = run("ls", "-r", place.name, status=4).stdout
    assert "demo" in table and problem in table
    assert problem in run_json("ls", "-r", place.name, status=4)["searches"][0]["problem"]


def test_ls_lists_only_the_newest_runs_and_searches_if_asked(
    place: Place, demo: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """By the last save of a run, and the last entry in a search's journal."""
    make_search(place, tmp_path, "s")
    run("cp", demo, place.at("demo"))
    assert run("ls", "--names", "--last", 1, place.name).stdout.split() == ["demo"]
    place.put("s/journal", (tmp_path / "s" / "journal").read_bytes(), time.time() + 1000)
    assert run("ls", "--names", "--last", 1, place.name).stdout.split() == ["s"]
    assert run("ls", "--names", "--last", 2, place.name).stdout.split() == ["demo", "s"]


def test_du_shows_what_checkpoints_of_all_kinds_take(place: Place, demo: pathlib.Path) -> None:
    names = composer_files(place, "saved")
    run("cp", f"{demo}@id:2", place.at("one"))
    files = run_json("du", place.at("saved"))["files"]
    assert [(file["name"], file["bytes"] > 0) for file in files] == [(name, True) for name in names]
    [row] = run_json("du", place.name)["runs"]
    alone = run_json("du", place.at("one"))
    assert alone["bytes"] == alone["used_bytes"] == alone["checkpoints"][0]["bytes"] == row["bytes"] > 0
    assert run_json("du", place.at(f"saved/{names[0]}"))["bytes"] > 0


def test_ls_of_a_folder_says_that_a_score_is_for_the_checkpoints_of_one_run(demo: pathlib.Path) -> None:
    listed = run("ls", demo.parent, "--by", "loss")
    assert demo.name in listed.stdout and "--by loss changes nothing here" in listed.stderr
    assert "--by" not in run("ls", demo.parent).stderr


@pytest.mark.parametrize("command", ["du", "gc", "prune", "sync"])
def test_a_file_that_is_no_checkpoint_is_not_called_one(demo: pathlib.Path, command: str) -> None:
    done = run(command, "/etc/passwd", *(["--keep-last", 1] if command == "prune" else []), status=2)
    assert "/etc/passwd is a file; expected a run" in done.stderr
    assert "names one checkpoint" in run("du", f"{demo}@100", status=2).stderr


def test_a_trials_folder_is_answered_as_a_trial_of_its_search(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path / "all", None)
    make_search(place, tmp_path, "tune/first")
    [trial, _] = sorted(path for path in (tmp_path / "all/tune/first").iterdir() if path.is_dir())
    search = os.path.realpath(trial.parent)
    answer = f"{trial}: a trial of the search {search}; 'pawl tune show {search} {trial.name}' shows it"
    for command in ("ls", "show", "verify"):
        assert answer in run(command, trial, status=3).stderr
    assert trial.name in run("tune", "show", search, trial.name).stdout


def test_a_folder_that_may_not_be_listed_is_a_row_and_a_failure(fake: Fake, demo: pathlib.Path) -> None:
    run("cp", demo, f"{BUCKET}/run")
    run("cp", demo, f"{BUCKET}/locked")

    def deny(method: str, target: str) -> Answer | None:
        return error(403, "AccessDenied") if "prefix=all%2Flocked" in target else None

    fake.always = deny
    rows = run_json("ls", BUCKET, status=1)["runs"]
    assert [("problem" in row, row["checkpoints"]) for row in rows] == [(True, 0), (False, 3)]
    assert "AccessDenied" in rows[0]["problem"]
    table = run("ls", BUCKET, status=1).stdout
    assert "problem" in table.splitlines()[0] and "AccessDenied" in table.splitlines()[1]
    run("verify", BUCKET, status=1)
    fake.always = lambda method, target: error(403, "AccessDenied")
    assert "AccessDenied" in run("ls", BUCKET, status=1).stderr


def test_a_run_without_run_json_is_still_verified_as_a_run(demo: pathlib.Path) -> None:
    (demo / "run.json").unlink()
    assert run("ls", "--names", demo).stdout.split() == [f"checkpoint_00000{i}" for i in (1, 2, 3)]
    assert len(run_json("verify", demo)["checkpoints"]) == 3
    flip(checkpoint(demo, 1) / PACK, 4100)
    assert "corrupt" in run("verify", demo, status=4).stdout


@pytest.mark.parametrize(
    ("wrong", "status", "answer"),
    [
        ("demoo", 3, "demoo: no such file or folder; did you mean demo?"),
        ("demoo/checkpoints", 3, "demoo/checkpoints: no such file or folder; did you mean demo/checkpoints?"),
        ("demoo/x", 3, "demoo/x: no such file or folder; did you mean demo?"),
        ("demoo@100", 3, "demoo: no such file or folder; did you mean demo?"),
        ("demo:100", 3, "demo:100: no such file or folder; did you mean demo@100?"),
        ("demo/400", 3, "demo/400: no such file or folder; did you mean demo@400?"),
        ("host:/runs/x", 3, "a folder of another machine is ssh://USER@HOST/PATH"),
        ("@100", 3, "@100: the current folder is not a run; write RUN@100, or set PAWL_RUN"),
        ("@latest/x", 2, "@latest/x: '@' comes after the run: RUN@SELECTOR"),
        ("s3:bucket/run", 2, "s3:bucket/run: a URL has two slashes, expected s3://bucket/run"),
        ("file:/x", 2, "file:/x: a URL has two slashes, expected file:///x"),
        ("mem:/", 2, "mem:/: mem: is lost when it is closed; expected a folder or a URL"),
        ("demo/checkpoints", 3, "demo/checkpoints: a part of the run"),
        (".", 3, "no run and no checkpoint here (expected run.json, manifest.json or .metadata); below it: demo"),
    ],
)
def test_an_address_that_is_almost_right_gets_the_right_one(
    demo: pathlib.Path, monkeypatch: pytest.MonkeyPatch, wrong: str, status: int, answer: str
) -> None:
    monkeypatch.chdir(demo.parent)
    assert answer in run("show", wrong, status=status).stderr
    assert [path.name for path in demo.parent.iterdir()] == ["demo"]


@pytest.mark.parametrize("words", [("export", "x.pt"), ("reshard", "x", "--world", "1"), ("restore", "x")])
def test_a_destination_that_is_almost_a_url_is_refused(
    demo: pathlib.Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """It would be a file or a folder below s3: here."""
    monkeypatch.chdir(demo.parent)
    command, name, *options = words
    (demo.parent / "s3:").mkdir()
    told = run(command, demo, f"s3:/{name}", *options, status=2).stderr
    assert f"s3:/{name}: a URL has two slashes, expected s3://{name}; a folder of this name is ./s3:/{name}" in told
    assert list((demo.parent / "s3:").iterdir()) == []


def test_a_benchmark_needs_a_folder_of_this_machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3:/bucket", "s3://bucket"):
        assert f"{url}: expected a folder of this machine, found a URL" in run("bench", url, status=2).stderr


def test_a_file_url_is_its_path_for_every_command(
    demo: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command uses the path itself. A relative path would appear in the current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    url = f"file://{demo}"
    run("restore", f"{url}@id:1", f"file://{tmp_path}/restored")
    run("convert", url, f"file://{tmp_path}/model.safetensors")
    run("reshard", url, f"file://{tmp_path}/two", "--world", 2)
    run("cp", url, f"file://{tmp_path}/copy")
    run("sync", url, f"file://{tmp_path}/synced")
    for command in (["cp", f"{url}@id:1"], ["restore", url], ["sync", url]):
        assert "inside the run" in run(*command, f"{url}/checkpoints/x", status=2).stderr
    for folder in (demo, tmp_path):
        for command in ("ls", "du"):
            assert run_json(command, f"file://{folder}") == run_json(command, folder)
        assert run("verify", f"file://{folder}").stdout == run("verify", folder).stdout
    assert f"PAWL_RUN: {tmp_path}/none: no such file" in run("ls", status=3, PAWL_RUN=f"file://{tmp_path}/none").stderr
    run("score", f"{url}@id:1", "file://loss=1")
    assert "file://loss" in str(run_json("show", f"{url}@id:1")["checkpoint"]["metrics"])
    assert list((tmp_path / "here").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("copy", "demo", "here", "model.safetensors", "restored", "synced", "two"),
    ]


def test_a_search_at_a_file_url_is_that_of_its_path(tmp_path: pathlib.Path) -> None:
    make_search(Place(tmp_path / "all", None), tmp_path, "s")
    trials = run("tune", "ls", tmp_path / "s").stdout
    for command in (["tune", "ls"], ["ls"], ["show"]):
        assert run(*command, f"file://{tmp_path}/s").stdout == trials
    assert run("tune", "show", f"file://{tmp_path}/s", "0").stdout == run("tune", "show", tmp_path / "s", "0").stdout


def test_an_at_sign_alone_means_the_current_folder_or_the_default_run(
    demo: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("show", "@100", PAWL_RUN=str(demo)).stdout.startswith("checkpoint_000001")
    monkeypatch.chdir(demo)
    assert run("show", "@100").stdout.startswith("checkpoint_000001")


def test_ls_of_a_run_in_a_bucket_lists_its_checkpoints_once(fake: Fake, demo: pathlib.Path) -> None:
    run("cp", demo, f"{BUCKET}/run")
    before = len(fake.requests)
    run("ls", f"{BUCKET}/run")
    asked = fake.requests[before:]
    assert len([line for line in asked if "checkpoints%2F" in line and "max-keys=1&" not in line]) == 1
    assert not [line for line in asked if "experiment.json" in line]


def test_an_error_about_the_default_run_says_where_it_is_from(tmp_path: pathlib.Path) -> None:
    none = tmp_path / "none"
    for words in (["ls"], ["show"], ["show", "@best"], ["gc"]):
        assert f"error: PAWL_RUN: {none}: no such file or folder" in run(*words, status=3, PAWL_RUN=str(none)).stderr


def test_ls_invents_no_facts_of_a_file_of_another_program(tmp_path: pathlib.Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "model.pt")
    header, row = run("ls", tmp_path / "model.pt").stdout.splitlines()
    assert header.split() == ["id", "name", "step", "size", "new", "age", "blocked", "state", "marks"]
    assert [word for word in row.split() if word == "-"] == ["-"] * 5 and "latest" not in row
    [found] = run_json("ls", tmp_path / "model.pt")["checkpoints"]
    assert found["step"] is found["new_bytes"] is found["blocked_seconds"] is None


def test_ls_of_a_bucket_asks_nothing_twice(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In addition to whether a place is there, which each opening of a store asks."""
    with contextlib.closing(Fake()) as fake:
        for variable, value in keys_for(fake.endpoint).items():
            monkeypatch.setenv(variable, value)
        for name in ("ada", "bob"):
            with pawl.CheckpointManager(f"s3://bucket/runs/{name}") as manager:
                manager.save(1, {"w": torch.ones(3)}, wait=True)
        asked = {}
        for place in ("s3://bucket/runs/ada", "s3://bucket/runs"):
            at = len(fake.requests)
            run("ls", place)
            asked[place] = [row for row in fake.requests[at:] if "max-keys=1&" not in row]
    ada, runs = asked.values()
    assert len(ada) == len(set(ada)) and not [row for row in ada if row.startswith("HEAD") and "run.json" in row]
    lists = [row.rpartition("prefix=")[2] for row in runs if "delimiter" in row and ".pawl" not in row]
    # once for the kind of the place and once for what is below it
    assert sorted(lists) == ["runs%2F", "runs%2F", "runs%2Fada%2F", "runs%2Fbob%2F"]
