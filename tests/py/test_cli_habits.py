# SPDX-License-Identifier: Apache-2.0
"""The command as people expect it: questions before a deletion, a pager, a default run, sizes, late scores, summaries."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import torch

import pawl
from cli import (
    COMMANDS,
    ESCAPES,
    PACK,
    PAWL,
    Terminal,
    checkpoint,
    environment,
    flip,
    make,
    making,
    on_terminal,
    run,
    run_json,
    tree_of,
)


@pytest.fixture
def many(tmp_path: pathlib.Path) -> pathlib.Path:
    return make("run", tmp_path / "many", 12)


def answer(text: str, *args: object, status: int) -> str:
    """Runs the command on a terminal and answers its question."""
    terminal = Terminal(*args)
    terminal.read(until=lambda output: "[y/N]" in output)
    os.write(terminal.fd, f"{text}\n".encode())
    assert terminal.status() == status, terminal.output
    return terminal.output


@pytest.mark.parametrize("command", ["rm", "prune"])
def test_a_deletion_is_asked_about_on_a_terminal_and_nowhere_else(many: pathlib.Path, command: str) -> None:
    args = {"rm": [f"{many}@id:2"], "prune": [many, "--keep-last", 11]}[command]
    before = tree_of(many / "checkpoints")
    for no in ["", "n", "maybe"]:
        assert "nothing was deleted" in answer(no, command, *args, status=1)
        assert tree_of(many / "checkpoints") == before
    assert "deleted" in answer("y", command, *args, status=0)
    assert tree_of(many / "checkpoints") != before
    asked = on_terminal(command, *({"rm": [f"{many}@id:3"], "prune": [many, "--keep-last", 9]}[command]), "-y")
    assert "[y/N]" not in asked and "deleted" in asked
    run(command, *({"rm": [f"{many}@id:4"], "prune": [many, "--keep-last", 7]}[command]))  # no terminal: no question
    assert not checkpoint(many, 4).exists()


def test_gc_asks_only_if_there_is_something_to_remove(many: pathlib.Path) -> None:
    assert "nothing was left behind" in on_terminal("gc", many)
    partial = many / "checkpoints" / f".checkpoint_000099.{'a' * 32}.partial"
    partial.mkdir()
    (partial / "rank00000-00000.safetensors").write_bytes(b"x" * 5000)
    assert "nothing was deleted" in answer("n", "gc", many, status=1)
    assert partial.exists()
    answer("y", "gc", many, status=0)
    assert not partial.exists()


def test_long_output_goes_through_the_pager_on_a_terminal_only(many: pathlib.Path) -> None:
    pager = "sed s/^/page:/"
    for args in (
        ["ls", many],
        ["show", many],
        ["du", many],
        ["help", "ls"],
        ["ls", "--help"],
        ["--help"],
        ["diff", f"{many}@id:1", "@id:2"],
    ):
        status = 1 if args[0] == "diff" else 0
        lines = ESCAPES.sub("", on_terminal(*args, status=status, PAGER=pager)).splitlines()
        assert sum(line.startswith("page:") for line in lines) > 3, lines
        assert "page:" not in on_terminal(*args, "--no-pager", status=status, PAGER=pager)
        assert "page:" not in run(*args, status=status, PAGER=pager).stdout
    assert "page:" not in on_terminal("ls", many, "--json", PAGER=pager)


def test_a_pager_that_ends_early_breaks_nothing(many: pathlib.Path) -> None:
    assert "id" in on_terminal("ls", many, PAGER="head -1")


@pytest.mark.parametrize("pager", ["no-such-pager", "no-such-pager -R", "/dev/null"])
def test_without_the_pager_that_is_named_the_output_is_printed(many: pathlib.Path, pager: str) -> None:
    rows = [line.split() for line in ESCAPES.sub("", on_terminal("ls", many, PAGER=pager)).splitlines()]
    assert [row[0] for row in rows if "saved" in row] == [str(number) for number in range(1, 13)]


def test_a_pager_may_outlive_an_interrupt(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pager = tmp_path / "pager"
    trap = "trap 'echo caught; read -r key </dev/tty; echo end; exit' INT\n"
    # it has all of the output: pawl only waits for it
    pager.write_text(trap + "cat >/dev/null\necho ready\nwhile :; do sleep 1; done\n")
    terminal = Terminal("ls", many, PAGER=f"sh {pager}")
    terminal.read(lambda text: "ready" in text)
    terminal.interrupt()
    terminal.read(lambda text: "caught" in text)
    os.write(terminal.fd, b"\n")
    assert terminal.status() == 0 and "end" in terminal.output


def test_the_environment_names_the_run_that_is_meant(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    env = {"PAWL_RUN": str(many)}
    assert run("ls", "--names", **env).stdout == run("ls", many, "--names").stdout
    assert "checkpoint_000003" in run("show", "@id:3", **env).stdout
    assert run("verify", "-q", **env).stdout == ""
    run("restore", "@id:3", tmp_path / "three", **env)
    assert "checkpoint_000002" in run("rm", "@id:2", **env).stderr
    assert run("ls", tmp_path / "three" / "..", **env).stdout != run("ls", **env).stdout  # what is given counts
    assert f"{many} has no mirrors" in run("sync", status=2, **env).stderr


def test_an_address_without_a_run_replaces_the_selector_of_the_default_run(many: pathlib.Path) -> None:
    env = {"PAWL_RUN": f"{many}@id:2"}
    assert "checkpoint_000002" in run("show", **env).stdout
    assert "checkpoint_000003" in run("show", "@id:3", **env).stdout


def test_a_folder_of_runs_shows_size_sharing_and_which_is_open(tmp_path: pathlib.Path) -> None:
    make("many", tmp_path / "runs" / "b10", 3)
    make("many", tmp_path / "runs" / "b9", 3)
    with making("busy", tmp_path / "runs" / "deep" / "c"):
        listed = run_json("ls", "-r", tmp_path / "runs")["runs"]
        table = run("ls", "-r", tmp_path / "runs").stdout.splitlines()
    assert [pathlib.Path(each["run"]).name for each in listed] == ["b9", "b10", "c"]
    assert [each["open"] for each in listed] == [False, False, True]
    assert table[0].split() == ["run", "checkpoints", "step", "size", "shared", "last", "save", "state"]
    assert "open" in table[3] and "open" not in table[1]
    assert run_json("du", tmp_path / "runs")["runs"][0]["bytes"] == listed[0]["bytes"]


def test_du_counts_a_shared_file_once_and_names_what_is_free_after_a_deletion(many: pathlib.Path) -> None:
    used = run_json("du", many)
    on_disk = {
        (s.st_dev, s.st_ino): s.st_size for s in (p.stat() for p in (many / "checkpoints").rglob("*") if p.is_file())
    }
    assert used["used_bytes"] == sum(on_disk.values()) and used["leftover_bytes"] == 0
    assert used["bytes"] == sum(each["bytes"] for each in used["checkpoints"]) >= used["used_bytes"]
    own = used["checkpoints"][0]["own_bytes"]
    run("rm", f"{many}@id:{used['checkpoints'][0]['id']}")
    assert run_json("du", many)["used_bytes"] == used["used_bytes"] - own
    (many / "checkpoints" / ".x.partial").mkdir()
    (many / "checkpoints" / ".x.partial" / "pack").write_bytes(b"x" * 700)
    for each in (many / "checkpoints").glob("[!.]*/*.safetensors"):  # a later save linked them
        (many / "checkpoints" / ".x.partial" / f"{each.parent.name}-{each.name}").hardlink_to(each)
    assert run_json("du", many)["leftover_bytes"] == 700
    assert "'pawl gc' removes" in run("du", many).stderr


def test_a_late_score_is_added_and_the_best_chosen_again(tmp_path: pathlib.Path) -> None:
    scored = make("scored", tmp_path / "scored")
    first = run_json("ls", scored)["checkpoints"][0]
    assert "accuracy = 99" in run("score", f"{scored}@id:{first['id']}", "accuracy=99", "f1=0.5").stderr
    metrics = run_json("show", f"{scored}@best")["checkpoint"]["metrics"]
    assert metrics["accuracy"] == 99 and metrics["f1"] == 0.5
    for wrong in ["accuracy", "=1", "accuracy=", "accuracy=good"]:
        assert "expected NAME=NUMBER, such as accuracy=0.91" in run("score", scored, wrong, status=2).stderr
    assert "'a=1e400': the number is too large" in run("score", f"{scored}@latest", "a=1e400", status=2).stderr


def test_score_and_pin_want_a_checkpoint_to_be_named(many: pathlib.Path) -> None:
    for words in (["score", many, "accuracy=1"], ["pin", many], ["unpin", many]):
        assert f"{many} is a run; name a checkpoint, such as {many}@latest" in run(*words, status=2).stderr
    answer = "TARGET is missing before accuracy=1; name it, such as RUN@400 or @400"
    assert answer in run("score", "accuracy=1", status=2, PAWL_RUN=str(many)).stderr
    assert "NAME=VALUE is missing" in run("score", many, status=2).stderr


def test_a_selector_without_its_at_sign_is_understood_where_a_run_is_known(
    many: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "did you mean @latest?" in run("show", "latest", status=3, PAWL_RUN=str(many)).stderr
    monkeypatch.chdir(many.parent)
    assert "did you mean" not in run("show", "latest", status=3).stderr
    monkeypatch.chdir(many / "checkpoints")
    assert "did you mean @300?" in run("show", "300", status=3, PAWL_RUN=str(many)).stderr


def test_ls_of_a_folder_that_holds_only_folders_names_the_option(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    many.rename(deep / "c")
    assert f"; 'pawl ls -r {tmp_path / 'a'}' lists what is deeper" in run("ls", tmp_path / "a", status=3).stderr


def test_diff_counts_by_branch_and_sorts_by_change(many: pathlib.Path) -> None:
    pair = (f"{many}@id:1", "@id:12")
    rows = run_json("diff", *pair, status=1)["rows"]
    branches = {row["path"].split("/")[0] for row in rows}
    top = run("diff", *pair, status=1).stdout.split("\n\n")[0].splitlines()
    assert top[0].split()[:2] == ["branch", "changed"] and {line.split()[0] for line in top[1:]} == branches
    changes = [row["max_rel"] for row in run_json("diff", *pair, "--sort", "change", status=1)["rows"]]
    numbers = [change for change in changes if change is not None]
    assert changes[: len(changes) - len(numbers)] == [None] * (len(changes) - len(numbers))
    assert numbers == sorted(numbers, reverse=True) and len(numbers) > 0


def test_restore_makes_the_folders_above_its_destination(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("restore", many, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c" / "manifest.json").exists()
    assert "no checkpoint" in run("restore", f"{many}@id:77", tmp_path / "d" / "e", status=3).stderr
    assert not (tmp_path / "d").exists()
    inside = many / "checkpoints" / "new" / "one"
    assert "where only pawl may write" in run("restore", many, inside, status=2).stderr
    assert not inside.parent.exists()


def test_export_makes_the_folders_above_its_output(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("export", many, tmp_path / "a" / "b" / "m.safetensors")
    assert (tmp_path / "a" / "b" / "m.safetensors").exists()


def test_names_in_natural_order_and_renamed_by_patterns(tmp_path: pathlib.Path) -> None:
    for number in (1, 2):
        torch.save({f"layer{i}.w": torch.full((2,), i * number) for i in (10, 2, 1)}, tmp_path / f"{number}.pt")
    rows = run_json("diff", tmp_path / "1.pt", tmp_path / "2.pt", status=1)["rows"]
    assert [row["path"] for row in rows] == ["layer1.w", "layer2.w", "layer10.w"]
    run("convert", tmp_path / "1.pt", tmp_path / "new.pt", "--rename", "layer*.w=part.*.w")
    assert sorted(torch.load(tmp_path / "new.pt")) == ["part.1.w", "part.10.w", "part.2.w"]


def test_show_puts_numbers_in_order_and_leaves_the_rest_as_saved(tmp_path: pathlib.Path) -> None:
    names = ["wte", "h.10.b", "h.10.a", "h.9.b", "h.9.a", "h.09.b", "7", "head", "h.1.b", "01", "h", "12x", "h.9.a2"]
    expected = ["wte", "h.1.b", "h.9.b", "h.9.a", "h.9.a2", "h.09.b", "h.10.b", "h.10.a", "01", "7", "12x"]
    expected += ["head", "h"]
    pawl.save({"m": {name: torch.ones(1) for name in names}, "ids": {10: 1, 2: 1}}, tmp_path / "one")
    shown = [line.split()[0] for line in run("show", tmp_path / "one", "--tensors").stdout.splitlines()[1:]]
    tree = [re.sub(r"^\W+", "", line).split() for line in run("show", tmp_path / "one").stdout.splitlines()]
    assert shown == [f"m/{name}" for name in expected]
    assert [line[0] for line in tree if line[1:2] == ["F32"]] == expected
    assert [line[0] for line in tree if line[1:] == ["1"]] == ["2", "10"]


def test_a_step_chooses_from_a_run_only(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for source in (f"{many}@200", f"{many}@latest", many / "latest", checkpoint(many, 1)):
        done = run("convert", source, tmp_path / "m.pt", "--step", 200, status=2)
        assert f"{source} names one checkpoint; --step chooses from a run" in done.stderr
    assert "no checkpoint has the step 1;" in run("convert", many, tmp_path / "m.pt", "--step", 1, status=3).stderr
    assert "expected a whole number" in run("convert", many, tmp_path / "m.pt", "--step", "x", status=2).stderr
    run("convert", many, tmp_path / "m.pt", "--step", 200)
    run("convert", tmp_path / "m.pt", tmp_path / "n.pt")
    assert "names one checkpoint" in run("convert", tmp_path / "m.pt", tmp_path / "o.pt", "--step", 1, status=2).stderr
    assert not (tmp_path / "o.pt").exists()


def test_export_is_convert_under_another_name(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for command in ("convert", "export"):
        run(command, many, tmp_path / command, "--max-shard-size", "1MB")
        run(command, many, tmp_path / command / "model.pt")
    assert tree_of(tmp_path / "convert") == tree_of(tmp_path / "export")
    options = {
        name: json.loads(run("help", name, "--json").stdout)["commands"][0]["options"] for name in ("convert", "export")
    }
    assert options["convert"] == options["export"]


def test_show_and_verify_understand_a_folder_of_checkpoint_files(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    for batch in (1, 10, 2):
        file = folder / f"ep0-ba{batch}-rank0.pt"
        torch.save({"w": torch.ones(3)}, file)
        os.utime(file, (1000, 1000 - batch))
    make("run", folder / "inner" / "run", 2)
    (folder / "latest-rank0.pt").symlink_to("ep0-ba10-rank0.pt")
    assert run("show", folder).stdout.startswith("ep0-ba10-rank0.pt")
    (folder / "latest-rank0.pt").unlink()
    assert run("show", folder).stdout.startswith("ep0-ba1-rank0.pt")  # written last
    places = run_json("verify", folder)["places"]
    assert [pathlib.Path(place["root"]).name for place in places] == [
        "run",
        "ep0-ba1-rank0.pt",
        "ep0-ba2-rank0.pt",
        "ep0-ba10-rank0.pt",
    ]
    flip(checkpoint(folder / "inner" / "run", 1) / PACK, 4100)
    assert "corrupt" in run("verify", folder, status=4).stdout


def test_a_checkpoint_without_its_manifest_is_no_folder_of_files(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("restore", many, tmp_path / "one")
    (tmp_path / "one" / "manifest.json").unlink()
    for command in ("ls", "show", "verify"):
        assert "no run and no checkpoint here" in run(command, tmp_path / "one", status=3).stderr


def test_ls_show_and_verify_understand_a_search(tmp_path: pathlib.Path) -> None:
    sweep = {
        "name": "s",
        "local_dir": str(tmp_path),
        "run": ["pawl", "report", "loss={lr}"],
        "metric": "loss",
        "mode": "min",
    }
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(sweep | {"space": {"lr": {"$grid": [0.1, 0.2]}}}))
    run("tune", path, PATH=f"{pathlib.Path(PAWL).parent}:{os.environ['PATH']}")
    trials = run("tune", "ls", tmp_path / "s").stdout
    assert trials.count("TERMINATED") == 2
    assert run("ls", tmp_path / "s").stdout == run("show", tmp_path / "s").stdout == trials
    names = [trial["name"] for trial in run_json("ls", tmp_path / "s")["trials"]]
    assert run("ls", "--names", tmp_path / "s").stdout.splitlines() == names
    assert run("ls", "--names", "--last", 1, tmp_path / "s").stdout.splitlines() == names[1:]
    assert run("ls", "--last", 1, tmp_path / "s").stdout.count("TERMINATED") == 1
    assert [trial["name"] for trial in run_json("ls", "--last", 1, tmp_path / "s")["trials"]] == names[1:]
    assert run_json("ls", tmp_path / "s")["trials"] == run_json("tune", "ls", tmp_path / "s")["trials"]
    assert "no trial has a checkpoint with checksums" in run("verify", tmp_path / "s").stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_manual_page(tmp_path: pathlib.Path, command: str) -> None:
    page = tmp_path / f"pawl-{command}.1"
    page.write_text(run("man", command).stdout)
    for option in run_json("help", command)["commands"][0]["options"]:
        assert "Fl \\-" + option["name"].replace("-", "\\-") in page.read_text()
    assert shutil.which("mandoc"), "mandoc is not installed"
    done = subprocess.run(["mandoc", "-Tlint", page], capture_output=True, text=True, env=environment())
    assert done.stdout == "" and done.returncode == 0
