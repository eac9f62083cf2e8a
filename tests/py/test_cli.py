# SPDX-License-Identifier: Apache-2.0
"""The command: what each verb does to runs, and what it tells. R150: inspect, diff, verify and prune without loading
tensors."""

from __future__ import annotations

import json
import math
import pathlib
import shutil

import pytest
from safetensors.numpy import load_file

from cli import PACK, checkpoint, flip, make, making, run, run_json, tree_of


@pytest.fixture(name="demo")
def demo_run(tmp_path: pathlib.Path) -> pathlib.Path:
    """Five checkpoints, steps 100 to 500; accuracy 0.5 0.75 0.7 NaN 0.6, loss 1/n."""
    return make("run", tmp_path / "demo", 5)


# ---------------------------------------------------------------- ls


def test_ls_shows_a_row_for_each_checkpoint(demo: pathlib.Path) -> None:
    head, *rows = run("ls", demo).stdout.splitlines()
    assert " ".join(head.split()) == "id step epoch accuracy loss size new age blocked state marks"
    assert [row.split()[:4] for row in rows] == [
        ["1", "100", "1", "0.5"],
        ["2", "200", "2", "0.75"],
        ["3", "300", "3", "0.7"],
        ["4", "400", "4", "NaN"],
        ["5", "500", "5", "0.6"],
    ]
    assert "latest" in rows[4]
    assert not any("latest" in row for row in rows[:4])


def test_ls_marks_the_best_by_the_metric_asked_for(demo: pathlib.Path) -> None:
    """R155: NaN is never best."""
    for metric, order, best in (("accuracy", "max", 2), ("accuracy", "min", 1), ("loss", "min", 5), ("loss", "max", 1)):
        listed = run_json("ls", demo, "--by", metric, "--order", order)["checkpoints"]
        assert [row["id"] for row in listed if "best" in row["marks"]] == [best], (metric, order)


def test_ls_json_has_everything_in_the_manifest(demo: pathlib.Path) -> None:
    listed = run_json("ls", demo)
    assert listed["run"] == str(demo.resolve())
    assert len(listed["run_id"]) == 32
    row = listed["checkpoints"][3]
    assert (row["id"], row["step"], row["name"], row["state"]) == (4, 400, "checkpoint_000004", "saved")
    assert row["metrics"] == {"accuracy": "NaN", "loss": 0.25}
    assert row["progress"]["epoch"] == 4
    packs = list(checkpoint(demo, 4).glob("*.safetensors"))
    assert row["bytes"] == sum(path.stat().st_size for path in packs)
    assert row["tensors"] == 4 and row["files"] == len(packs) and row["world_size"] == 1
    assert row["path"] == str(checkpoint(demo.resolve(), 4))


def test_ls_last_and_names(demo: pathlib.Path) -> None:
    assert run("ls", demo, "--last", 2, "--names").stdout.split() == ["checkpoint_000004", "checkpoint_000005"]


def test_ls_tells_that_something_is_damaged_and_what(demo: pathlib.Path) -> None:
    flip(checkpoint(demo, 3) / "manifest.json", 40)
    done = run("ls", demo)
    assert len(done.stdout.splitlines()) == 5
    assert "1 more is damaged" in done.stderr
    listed = run_json("ls", demo, "--bad")["checkpoints"]
    assert [row["state"] for row in listed] == ["saved", "saved", "bad", "saved", "saved"]
    assert listed[2]["problem"]
    assert listed[2]["problem"] in run("ls", demo, "--bad").stdout


def test_ls_of_an_empty_run_is_no_error(tmp_path: pathlib.Path) -> None:
    make("run", tmp_path / "empty", 0)
    done = run("ls", tmp_path / "empty")
    assert done.stdout == ""
    assert "no checkpoints" in done.stderr
    assert run_json("ls", tmp_path / "empty")["checkpoints"] == []


def test_ls_works_on_the_current_folder_and_with_chdir(demo: pathlib.Path) -> None:
    assert run("ls", "-C", demo, "--names").stdout == run("ls", demo, "--names").stdout
    assert run("-C", demo, "ls", "--names").stdout == run("ls", demo, "--names").stdout


def test_ls_of_many_checkpoints(tmp_path: pathlib.Path) -> None:
    make("many", tmp_path / "many", 120)
    lines = run("ls", tmp_path / "many").stdout.splitlines()
    assert len(lines) == 121
    assert len({len(line.split("saved")[0]) for line in lines[1:]}) == 1, "columns are not aligned"


# -------------------------------------------------------------- show


def test_show_prints_head_and_tree(demo: pathlib.Path) -> None:
    out = run("show", f"{demo}@id:2").stdout
    assert out.startswith("checkpoint_000002\n")
    for text in ("step       200", "accuracy 0.75, loss 0.5", "F32 [64, 32]", "tied to model/embed.weight"):
        assert text in out
    for text in ("(0.9, 0.999)", '"a "small" run"', "4 bytes", "none", "NaN", "9223372036854775807", "8.00 KiB"):
        assert text in out


def test_show_depth_and_all(demo: pathlib.Path) -> None:
    assert "exp_avg" not in run("show", demo).stdout
    assert "exp_avg" in run("show", demo, "--all").stdout
    assert "exp_avg" in run("show", demo, "--depth", 4).stdout
    assert "embed.weight" not in run("show", demo, "--depth", 1).stdout


def test_show_tensors_is_a_flat_list(demo: pathlib.Path) -> None:
    rows = [line.split() for line in run("show", demo, "--tensors").stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == [
        "model/embed.weight",
        "model/layer.weight",
        "optimizer/state/0/exp_avg",
        "late",
    ]
    assert all(row[1:] == ["F32", "[64,", "32]", "8.00", "KiB"] for row in rows)


def test_show_files(demo: pathlib.Path) -> None:
    out = run("show", demo, "--files").stdout
    assert PACK in out and "manifest.json" in out


def test_show_json_holds_the_state_in_its_documented_form(demo: pathlib.Path) -> None:
    shown = run_json("show", f"{demo}@step:300")
    state = shown["state"]
    assert shown["checkpoint"]["id"] == 3
    assert state["model"]["$odict"][2] == ["head.weight", {"$tensor": "model/embed.weight", "as": "torch"}]
    assert state["optimizer"]["state"]["$dict"][0][0] == 0
    assert state["optimizer"]["betas"] == {"$tuple": [0.9, 0.999]}
    assert state["rng"] == {"$bytes": "AAECAw=="}
    assert state["large"] == {"$int": "9223372036854775807"}
    assert state["worst"]["$float"].startswith("7ff8")
    assert state["nothing"] is None and state["epoch"] == 3
    assert shown["tensors"][0] == {"name": "model/embed.weight", "dtype": "F32", "shape": [64, 32], "bytes": 8192}
    assert {file["name"] for file in shown["files"]} == {path.name for path in checkpoint(demo, 3).iterdir()}


def test_show_reads_no_tensor_R150(demo: pathlib.Path) -> None:
    """R150: with the tensor files gone, what ls, show and prune say is the same."""
    before = [run("ls", demo, "--names").stdout, run("show", demo, "--all").stdout]
    for pack in demo.rglob(PACK):
        pack.unlink()
    assert [run("ls", demo, "--names").stdout, run("show", demo, "--all").stdout] == before
    assert run_json("prune", demo, "--keep-last", 1, "-n")["deleted"] == 4


def test_show_names_the_step_that_is_missing(demo: pathlib.Path) -> None:
    assert "step 77" in run("show", f"{demo}@step:77", status=3).stderr


# ------------------------------------------------------------ target


def test_every_form_of_target_names_the_same_checkpoint(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    forms = [
        f"{demo}@id:2",
        f"{demo}@id:2",
        f"{demo}@step:200",
        f"{demo}@checkpoint_000002",
        checkpoint(demo, 2),
        checkpoint(demo, 2) / "manifest.json",
        f"file://{demo}@id:2",
    ]
    assert [run_json("show", form)["checkpoint"]["id"] for form in forms] == [2] * len(forms)
    for form in (demo, f"{demo}@latest", demo / "latest", f"{demo}/"):
        assert run_json("show", form)["checkpoint"]["id"] == 5
    assert run_json("show", f"{demo}@best", "--by", "accuracy")["checkpoint"]["id"] == 2
    assert run_json("-C", demo, "show", "@id:3")["checkpoint"]["id"] == 3
    odd = tmp_path / "user@host"
    demo.rename(odd)
    assert run_json("show", odd)["checkpoint"]["id"] == 5
    assert run_json("show", f"{odd}@id:4")["checkpoint"]["id"] == 4


def test_a_single_checkpoint_is_a_target(tmp_path: pathlib.Path) -> None:
    single = make("single", tmp_path / "one", 1)
    assert run_json("show", single)["checkpoint"]["step"] == 100
    assert run_json("verify", single)["ok"]
    assert "selects nothing" in run("show", f"{single}@latest", status=2).stderr


def test_what_is_no_run_is_refused_and_not_made_one(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for command in (["ls"], ["show"], ["verify"], ["gc"], ["prune", "--keep-last", 1], ["repair"]):
        assert "no run and no checkpoint here" in run(command[0], folder, *command[1:], status=3).stderr
    assert list(folder.iterdir()) == []
    assert "demo" in run("ls", tmp_path).stdout
    assert "no such file or folder" in run("ls", tmp_path / "nothing", status=3).stderr
    assert "is a file" in run("ls", demo / "run.json", status=2).stderr
    assert "nothing after '@'" in run("show", f"{demo}@", status=2).stderr


# -------------------------------------------------------------- diff


def test_diff_lists_what_was_added_and_changed(demo: pathlib.Path) -> None:
    rows = {row["path"]: row for row in run_json("diff", f"{demo}@id:2", "@id:3", status=1)["rows"]}
    assert set(rows) == {"epoch", "late", "model/layer.weight", "optimizer/state/0/step"}
    assert rows["late"]["change"] == "added" and rows["late"]["tensor"]
    assert (rows["epoch"]["from"], rows["epoch"]["to"]) == ("2", "3")
    assert rows["model/layer.weight"]["change"] == "changed"
    assert rows["model/layer.weight"]["max_abs"] == 1.0
    assert math.isclose(rows["model/layer.weight"]["max_rel"], 1 / 3, rel_tol=1e-6)
    done = run("diff", f"{demo}@id:3", f"{demo}@id:2", status=1)
    assert [line for line in done.stdout.splitlines() if line.startswith("-")][0].split()[1] == "late"
    assert "3 changed, 0 added, 1 removed" in done.stderr


def test_diff_of_equal_checkpoints_says_so(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(demo, tmp_path / "copy", symlinks=True)
    done = run("diff", f"{demo}@id:2", f"{tmp_path / 'copy'}@id:2")
    assert done.stdout == "" and "equal, bit for bit" in done.stderr
    assert run_json("diff", f"{demo}@id:2", "@id:2")["equal"]


def test_diff_names_only(demo: pathlib.Path) -> None:
    paths = run("diff", f"{demo}@id:4", "@id:5", "--names", status=1).stdout.split()
    assert sorted(paths) == ["epoch", "model/layer.weight", "optimizer/state/0/step"]


def test_diff_does_not_believe_damaged_tensors(demo: pathlib.Path) -> None:
    flip(checkpoint(demo, 3) / PACK, 9000)
    assert PACK in run("diff", f"{demo}@id:2", "@id:3", status=4).stderr


# ------------------------------------------------------------ verify


def test_verify_reads_all_checkpoints_R136(demo: pathlib.Path) -> None:
    done = run("verify", demo)
    assert [line.split()[0::3] for line in done.stdout.splitlines()] == [
        [f"checkpoint_{i:06d}", "ok"] for i in range(1, 6)
    ]
    found = run_json("verify", demo)
    assert found["ok"] and found["bytes"] == sum(path.stat().st_size for path in demo.rglob("*.safetensors"))


def test_verify_names_file_range_and_tensor_and_exits_4(demo: pathlib.Path) -> None:
    """R136, R150."""
    flip(checkpoint(demo, 2) / PACK, 4096 + 5)
    done = run("verify", demo, status=4)
    lines = done.stdout.splitlines()
    assert lines[1].endswith("corrupt")
    assert PACK in lines[2] and "bytes 0 to " in lines[2] and "tensor model/layer.weight" in lines[2]
    assert len(lines) == 6 and "1 of 5 checkpoints is not as written" in done.stderr
    report = run_json("verify", f"{demo}@id:2", status=4)
    finding = report["checkpoints"][0]["findings"][0]
    assert not report["ok"] and finding["file"] == PACK
    assert finding["begin"] <= 4101 < finding["end"] and finding["tensor"].startswith("model/layer.weight")
    run("verify", f"{demo}@id:3")


def test_verify_finds_missing_and_short_files_and_bad_manifests(demo: pathlib.Path) -> None:
    (checkpoint(demo, 1) / PACK).unlink()
    with (checkpoint(demo, 2) / PACK).open("r+b") as file:
        file.truncate(8000)
    flip(checkpoint(demo, 3) / "manifest.json", 100)
    (checkpoint(demo, 4) / "manifest.json").unlink()
    report = run_json("verify", demo, status=4)
    assert [row["ok"] for row in report["checkpoints"]] == [False, False, False, False, True]
    assert "4 of 5 checkpoints are not as written" in run("verify", demo, status=4).stderr
    for number in (1, 2, 3, 4):
        run("verify", f"{demo}@checkpoint_{number:06d}", status=4)
        run("verify", checkpoint(demo, number), status=4)
    run("verify", f"{demo}@latest")


def test_verify_quietly_prints_only_what_is_wrong(demo: pathlib.Path) -> None:
    done = run("verify", demo, "-q")
    assert done.stdout == done.stderr == ""
    flip(checkpoint(demo, 2) / PACK, 9000)
    assert "checkpoint_000002" in run("verify", demo, "-q", status=4).stdout


# ---------------------------------------------------- restore, export


def test_restore_makes_a_checkpoint_of_its_own(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    dest = tmp_path / "kept"
    assert run("restore", f"{demo}@id:2", dest).stdout == f"{dest}\n"
    assert tree_of(dest) == tree_of(checkpoint(demo, 2))
    shutil.rmtree(demo)
    assert run_json("verify", dest)["ok"]
    assert run_json("show", dest)["checkpoint"]["step"] == 200
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_restore_takes_an_older_one_where_the_latest_is_damaged(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """R137: with the reason."""
    flip(checkpoint(demo, 5) / PACK, 9000)
    done = run("restore", demo, tmp_path / "a")
    assert "skipped: checkpoint_000005" in done.stderr and PACK in done.stderr
    assert tree_of(tmp_path / "a") == tree_of(checkpoint(demo, 4))
    report = run_json("restore", f"{demo}@latest", tmp_path / "b")
    assert report["checkpoint"]["id"] == 4 and "checkpoint_000005" in report["fallbacks"][0]
    for args in (["--no-fallback", demo], [f"{demo}@id:5"]):
        assert PACK in run("restore", *args, tmp_path / "c", status=4).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "demo"]


def test_restore_overwrites_nothing(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").write_text("mine")
    assert "already exists" in run("restore", demo, tmp_path / "there", status=7).stderr
    assert (tmp_path / "there").read_text() == "mine"
    for suffix in (".safetensors", ".pt", ".pth", ".npz", ".npy"):
        place = tmp_path / f"x{suffix}"
        assert f"pawl convert {demo} {place}" in run("restore", demo, place, status=2).stderr
        assert not place.exists()


def test_export_writes_a_file_that_safetensors_opens(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    dest = tmp_path / "model.safetensors"
    run("export", f"{demo}@id:2", dest, "--include", "model/*", "--strip-prefix", "model/")
    tensors = load_file(dest)
    assert set(tensors) == {"embed.weight", "layer.weight"}
    assert tensors["layer.weight"][0, 0] == 2.0
    assert run("export", demo, dest, status=7).stderr
    assert run_json("export", demo, dest, "--overwrite")["checkpoint"]["id"] == 5
    assert "optimizer/state/0/exp_avg" in load_file(dest)


def test_export_in_shards_with_index(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("export", demo, tmp_path / "hub", "--max-shard-size", "10kB", "--dots")
    index = json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())
    assert "optimizer.state.0.exp_avg" in index["weight_map"]
    assert len(set(index["weight_map"].values())) == 4
    assert all((tmp_path / "hub" / name).exists() for name in index["weight_map"].values())


# ------------------------------------------------------ prune, pin, rm


def names(folder: pathlib.Path) -> list[int]:
    return [row["id"] for row in run_json("ls", folder)["checkpoints"]]


def test_prune_keeps_one_an_hour_a_day_and_a_week_R141(demo: pathlib.Path) -> None:
    for rule, word in (("--keep-hourly", "hour"), ("--keep-daily", "day"), ("--keep-weekly", "week")):
        first = run_json("prune", demo, rule, "7d", "-n")["decisions"][0]
        assert first["keep"] and first["reason"] == f"first of its {word}"


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (["--keep-last", 2], [4, 5]),
        (["--keep-best", 1, "--by", "accuracy"], [2, 5]),
        (["--keep-best", 2, "--by", "loss", "--order", "min"], [4, 5]),
        (["--keep-best", 1, "--by", "accuracy", "--drop-latest"], [2]),
        (["--keep-every", 200], [1, 2, 4, 5]),
        (["--keep-every", 200, "--keep-last", 2], [1, 2, 4, 5]),
        (["--younger-than", "7d"], [1, 2, 3, 4, 5]),
        (["--max-bytes", "1B"], [5]),
        (["--max-bytes", "1GiB"], [1, 2, 3, 4, 5]),
    ],
)
def test_prune_rules_R141(demo: pathlib.Path, rules: list[object], kept: list[int]) -> None:
    """R141, R150: retention as an algebra, a dry run with a reason for each decision."""
    before = tree_of(demo)
    plan = run_json("prune", demo, *rules, "-n")
    assert [row["id"] for row in plan["decisions"] if row["keep"]] == kept
    assert all(row["reason"] for row in plan["decisions"]) and plan["dry_run"]
    assert tree_of(demo) == before
    done = run_json("prune", demo, *rules)
    assert done["deleted"] == 5 - len(kept) == plan["deleted"]
    assert names(demo) == kept


def test_prune_tells_what_it_deletes_and_why(demo: pathlib.Path) -> None:
    plan = run("prune", demo, "--keep-last", 2, "--dry-run")
    assert [line.split()[5] for line in plan.stdout.splitlines()[1:]] == ["delete"] * 3 + ["keep"] * 2
    assert "not among the newest 2" in plan.stdout and "would delete 3 checkpoints" in plan.stderr
    done = run("prune", demo, "--keep-last", 2)
    assert len(done.stdout.splitlines()) == 4 and "deleted 3 checkpoints" in done.stderr


def test_prune_by_a_metric_that_no_checkpoint_has_is_a_mistake(demo: pathlib.Path) -> None:
    """P13: what nothing is known about must not decide what goes."""
    said = run("prune", demo, "--keep-best", 1, "--by", "acuracy", status=2).stderr
    assert "acuracy" in said and "accuracy" in said and "loss" in said
    assert len(names(demo)) == 5


def test_prune_says_when_the_budget_cannot_be_met(demo: pathlib.Path) -> None:
    assert "cannot be met" in run("prune", demo, "--max-bytes", "1B").stderr
    assert "cannot be met" not in run("prune", demo, "--max-bytes", "1GiB").stderr


def test_a_checkpoint_that_a_run_was_begun_in_is_still_looked_at(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "alone"
    shutil.copytree(demo / "checkpoints" / "checkpoint_000003", copy)
    (copy / "run.json").write_text((demo / "run.json").read_text())
    assert "no checkpoint" not in run("verify", copy).stderr
    pack = copy / PACK
    pack.write_bytes(pack.read_bytes()[:-1] + b"?")
    run("verify", copy, status=4)


def test_prune_without_a_rule_is_a_mistake(demo: pathlib.Path) -> None:
    assert "--keep-last" in run("prune", demo, status=2).stderr
    assert "--by METRIC" in run("prune", demo, "--keep-best", 1, status=2).stderr
    assert "--by METRIC" in run("prune", demo, "--keep-last", 1, "--order", "min", status=2).stderr
    assert len(names(demo)) == 5


def test_pins_hold_against_prune_and_rm(demo: pathlib.Path) -> None:
    assert "pinned checkpoint_000001 (step 100)" in run("pin", f"{demo}@id:1", f"{demo}@step:200").stderr
    run("prune", demo, "--keep-last", 1)
    assert names(demo) == [1, 2, 5]
    assert "pinned" in run("rm", f"{demo}@id:1", status=6).stderr
    assert run_json("unpin", f"{demo}@id:1")["checkpoints"][0]["marks"] == []
    run("rm", f"{demo}@id:1")
    run("rm", f"{demo}@id:2", "--force")
    assert names(demo) == [5]


def test_rm_protects_the_latest_and_asks_for_a_name(demo: pathlib.Path) -> None:
    assert "latest" in run("rm", f"{demo}@latest", status=6).stderr
    assert "name a checkpoint" in run("rm", demo, status=2).stderr
    assert "would delete" in run("rm", f"{demo}@latest", "--force", "-n").stderr
    assert names(demo) == [1, 2, 3, 4, 5]
    assert run_json("rm", f"{demo}@latest", "--force")["checkpoints"][0]["id"] == 5
    assert names(demo) == [1, 2, 3, 4]
    assert not checkpoint(demo, 5).exists()


def test_what_a_reader_holds_stays_R156(demo: pathlib.Path) -> None:
    """R156, R142."""
    with making("hold", demo, "id:2"):
        assert "held" in run_json("ls", demo)["checkpoints"][1]["marks"]
        assert "reader" in run("rm", f"{demo}@id:2", "--force", status=6).stderr
        run("prune", demo, "--keep-last", 1)
        assert names(demo) == [2, 5]
    run("rm", f"{demo}@id:2")


def test_looking_works_beside_a_training_and_changing_is_refused(demo: pathlib.Path) -> None:
    with making("busy", demo):
        for args in (["ls"], ["show"], ["verify"], ["prune", "--keep-last", 1, "-n"], ["gc", "-n"], ["repair", "-n"]):
            run(args[0], demo, *args[1:])
        for args in (["prune", demo, "--keep-last", 1], ["rm", f"{demo}@id:1"], ["gc", demo]):
            refused = run(*args, status=6).stderr
            assert refused.endswith("which is alive; end that process first\n"), refused
        run("pin", f"{demo}@id:1")  # a note next to it, which the training's retention obeys
        assert "pinned" in run_json("ls", demo)["checkpoints"][0]["marks"]
        assert names(demo) == [1, 2, 3, 4, 5]


def test_looking_changes_nothing(demo: pathlib.Path) -> None:
    """R150."""
    before = tree_of(demo)
    for command in ("ls", "show", "verify"):
        run(command, demo)
    run("diff", f"{demo}@id:1", "@id:2", status=1)
    assert tree_of(demo) == before


# ----------------------------------------------- gc, repair, doctor, bench


def test_gc_removes_what_a_crash_left_and_says_how_much(demo: pathlib.Path) -> None:
    partial = demo / "checkpoints" / f".checkpoint_000006.{'0' * 32}.partial"
    shutil.copytree(checkpoint(demo, 5), partial)
    (partial / "manifest.json").unlink()
    size = (partial / PACK).stat().st_size
    plan = run_json("gc", demo, "-n")
    assert plan["bytes"] >= size and plan["removed"] >= 1 and partial.exists()
    assert run_json("gc", demo)["bytes"] == plan["bytes"]
    assert not partial.exists()
    assert "nothing was left behind" in run("gc", demo).stderr
    assert names(demo) == [1, 2, 3, 4, 5]


def test_repair_rebuilds_lost_and_damaged_manifests(demo: pathlib.Path) -> None:
    before = run_json("show", f"{demo}@id:4")
    (checkpoint(demo, 4) / "manifest.json").unlink()
    flip(checkpoint(demo, 2) / "manifest.json", 60)
    assert names(demo) == [1, 3, 5]
    plan = run_json("repair", demo, "-n")
    assert [row["repaired"] for row in plan["checkpoints"]] == [True, True] and names(demo) == [1, 3, 5]
    assert "repaired" in run("repair", f"{demo}@checkpoint_000004").stdout
    assert names(demo) == [1, 3, 4, 5]
    run("repair", demo)
    assert names(demo) == [1, 2, 3, 4, 5]
    assert run_json("verify", demo)["ok"]
    after = run_json("show", f"{demo}@id:4")
    assert (after["state"], after["tensors"]) == (before["state"], before["tensors"])
    assert "nothing is damaged" in run("repair", demo).stderr


def test_repair_refuses_what_is_incomplete_and_leaves_it(demo: pathlib.Path) -> None:
    (checkpoint(demo, 4) / "manifest.json").unlink()
    with (checkpoint(demo, 4) / PACK).open("r+b") as file:
        file.truncate(9000)
    report = run_json("repair", checkpoint(demo, 4), status=4)
    assert not report["checkpoints"][0]["repaired"] and report["checkpoints"][0]["message"]
    assert (checkpoint(demo, 4) / PACK).stat().st_size == 9000


def test_doctor_tells_what_the_folder_can_do_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    found = run_json("doctor", tmp_path)["found"]
    assert len(found) >= 4 and all(isinstance(value, str) and value for value in found.values())
    out = run("doctor", tmp_path).stdout
    assert all(key in out for key in found)
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}/nothing: there is no such folder" in run("doctor", tmp_path / "nothing", status=3).stderr


def test_bench_measures_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    report = run_json("bench", tmp_path, "--size", "2MiB", "--tensors", 4, "--repeat", 2)
    assert report["bytes"] == 2 << 20 and report["run"] is None
    for figure in ("first_blocked", "blocked", "durable", "restore", "memcpy", "direct_write", "direct_read"):
        assert report["figures"][figure]["median_seconds"] > 0
    assert len(report["figures"]["blocked"]["seconds"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_bench_can_keep_its_run(tmp_path: pathlib.Path) -> None:
    report = run_json("bench", tmp_path, "--size", "1MB", "--repeat", 1, "--keep", "--mode", "direct")
    assert names(pathlib.Path(report["run"])) == [1, 2]
    assert run_json("verify", report["run"])["ok"]
    assert "memcpy" in run("bench", tmp_path, "-s", "64KiB", "-t", 2, "-r", 1, "--recycle", "--mode", "ring").stdout
