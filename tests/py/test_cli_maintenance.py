# SPDX-License-Identifier: Apache-2.0
"""Looking after a run is not training it: the command means by "best" what the training meant, begins no attempt, and
clears nothing up on its way."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np

import pawl
from cli import checkpoint, make, run, run_json
from pawl import _pawl


def best(folder: pathlib.Path, *args: object) -> list[int]:
    return [row["id"] for row in run_json("ls", folder, *args)["checkpoints"] if "best" in row["marks"]]


def test_best_is_what_the_training_orders_by(tmp_path: pathlib.Path) -> None:
    """P6, P12: accuracy 0.5 0.75 0.7 NaN 0.6."""
    demo = make("scored", tmp_path / "demo", 5)
    assert best(demo) == [2]
    assert best(demo, "--by", "loss", "--order", "min") == [5]
    assert run_json("show", f"{demo}@best")["checkpoint"]["id"] == 2
    assert "the best" in run("rm", f"{demo}@id:2", status=6).stderr
    plan = run_json("prune", demo, "--keep-best", 2, "-n")
    assert [row["id"] for row in plan["decisions"] if row["keep"]] == [2, 3, 5]
    run("prune", demo, "--keep-last", 1)
    assert [row["id"] for row in run_json("ls", demo)["checkpoints"]] == [2, 5]
    assert os.readlink(demo / "best").endswith("checkpoint_000002")


def test_a_training_without_scores_goes_on_with_the_remembered_ones(tmp_path: pathlib.Path) -> None:
    """E7, P6: what is best is not forgotten by an opening that says nothing about it."""
    demo = make("scored", tmp_path / "demo", 3)
    make("run", demo, 1)
    assert json.loads((demo / "run.json").read_text())["scores"] == [["accuracy", 1]]
    assert best(demo) == [2]


def test_maintenance_begins_no_attempt_and_keeps_the_date(tmp_path: pathlib.Path) -> None:
    demo = make("scored", tmp_path / "demo", 3)
    before = (demo / "run.json").read_text()
    run("pin", f"{demo}@id:1")
    run("rm", f"{demo}@id:1", "--force")
    run("prune", demo, "--keep-last", 1)
    run("gc", demo)
    assert (demo / "run.json").read_text() == before
    make("scored", demo, 1)
    after = json.loads((demo / "run.json").read_text())
    assert after["attempt"] == json.loads(before)["attempt"] + 1
    assert after["created_unix_ns"] == json.loads(before)["created_unix_ns"]


def test_a_lost_manifest_can_still_be_repaired_after_other_maintenance(tmp_path: pathlib.Path) -> None:
    demo = make("scored", tmp_path / "demo", 3)
    (checkpoint(demo, 2) / "manifest.json").unlink()
    run("pin", f"{demo}@id:1")
    run("prune", demo, "--keep-last", 1)
    run("repair", demo)
    assert [row["id"] for row in run_json("ls", demo)["checkpoints"]] == [1, 2, 3]


def test_a_repair_flags_nan_and_inf_that_are_in_the_bytes(tmp_path: pathlib.Path) -> None:
    """The summaries in the packs were written before they were found: by a save, and by a cast."""
    with pawl.CheckpointManager(tmp_path / "run", nonfinite="flag") as manager:
        for step, last in enumerate((1.0, float("nan"))):
            manager.save(step, {"w": np.array([1.0] * 300_000 + [last]), "n": np.arange(3)}, wait=True)
        flags = [info.nonfinite for info in manager.checkpoints()]
        places = [pathlib.Path(info.path) for info in manager.checkpoints()]
    assert flags == [False, True]
    pawl.save({"a": np.arange(3, dtype=np.uint8), "w": np.array([1.0, 70_000.0])}, tmp_path / "one")
    for dtype in ("fp32", "fp16"):
        run("restore", tmp_path / "one", tmp_path / dtype, "--cast", dtype)
        places.append(tmp_path / dtype)
    for place in places:
        (place / "manifest.json").unlink()
    run("repair", tmp_path / "run")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [info.nonfinite for info in manager.checkpoints()] == [False, True]
    for dtype, state in (("fp32", "saved"), ("fp16", "nonfinite")):
        single = _pawl.Run(str(tmp_path / dtype), single=True, maintenance=True)
        single.repair(dtype, False, None)
        single.close()
        assert run_json("show", tmp_path / dtype)["checkpoint"]["state"] == state


def test_nothing_is_put_into_a_run_or_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """What a run keeps for itself is written by saves only."""
    demo, other = make("scored", tmp_path / "demo", 2), make("scored", tmp_path / "other", 1)
    run("restore", demo, tmp_path / "one")
    places = [demo / "checkpoints" / "zzz", other / "checkpoints" / "zzz", demo / ".pawl" / "zzz"]
    places += [checkpoint(demo, 1) / "zzz", demo / "latest" / "zzz", tmp_path / "one" / "zzz"]
    for place in places:
        assert "where only pawl may write" in run("restore", demo, place, status=2).stderr
        assert "where only pawl may write" in run("export", demo, f"{place}.safetensors", status=2).stderr
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a program of another kind"}')
    run("export", demo, tmp_path / "web" / "model.safetensors")
    run("restore", demo, demo / "kept")
    assert [row["id"] for row in run_json("ls", demo)["checkpoints"]] == [1, 2]
    assert run_json("gc", demo, "-n")["removed"] == 0


def test_help_says_what_the_commands_do() -> None:
    assert "every command but 'completion' and 'man' takes --json" in " ".join(run("help").stdout.split())
    assert "Only this command removes those" in " ".join(run("gc", "--help").stdout.split())


def test_what_is_protected_is_busy_as_it_is_in_python(tmp_path: pathlib.Path) -> None:
    demo = make("scored", tmp_path / "demo", 3)
    run("pin", f"{demo}@id:1")
    for selector in ("id:1", "latest", "best"):
        assert run_json("rm", f"{demo}@{selector}", status=6)["error"]["code"] == "busy"
