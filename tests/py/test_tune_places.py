# SPDX-License-Identifier: Apache-2.0
"""Where an experiment of pawl.tune lies: synced to a bucket or a folder, lost, found again, begun from; the guide's
programs as they are."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from object_env import keys_for, take_environment
from s3_fake import Fake
from test_tune import descend, ends_of, run, start, steps, until

import pawl
from pawl import tune

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "tune"


@pytest.fixture(name="fake")
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with contextlib.closing(Fake()) as fake:
        take_environment(monkeypatch, keys_for(fake.endpoint))
        fake.bucket = "my-checkpoints-bucket"
        yield fake


def checkpoints(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/checkpoint_*"))


def test_R109_R132_nothing_is_copied_where_nothing_was_asked_for(tmp_path: pathlib.Path) -> None:
    for name, config in [("shared", tune.SyncConfig(syncer=None)), ("empty", tune.SyncConfig()), ("none", None)]:
        analysis = run(descend, tmp_path, name=name, config={"x": 1, "steps": 2}, sync_config=config)
        assert checkpoints(tmp_path / name) == ["checkpoint_000001", "checkpoint_000002"]
        assert analysis.best_checkpoint is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "none", "shared"]


@pytest.mark.parametrize("resume", ["AUTO", "REMOTE"])
def test_R111_R128_a_lost_experiment_is_found_where_it_was_synced_to(tmp_path: pathlib.Path, resume: str) -> None:
    there = tmp_path / "there"
    sync = tune.SyncConfig(upload_dir=there)
    space = {"x": tune.grid_search([1, 2]), "steps": 3}
    run(descend, tmp_path / "here", config=space, sync_config=sync, resume="AUTO")
    assert checkpoints(there / "exp") == checkpoints(tmp_path / "here" / "exp") and checkpoints(there / "exp")
    shutil.rmtree(tmp_path / "here")
    found = run(descend, tmp_path / "new", config=space, sync_config=sync, resume=resume)
    assert [(one.status, one.attempts) for one in found.trials] == [("TERMINATED", 1)] * 2  # not run again
    anew = run(descend, tmp_path / "new", name="other", config=space, sync_config=sync, resume="AUTO")
    assert len(anew.trials) == 2  # there was none of that name
    with pytest.raises(pawl.PawlError):
        run(descend, tmp_path / "new", name="third", config=space, sync_config=sync, resume="REMOTE")


def test_R107_R134_a_checkpoint_is_brought_away_while_its_trial_still_runs(tmp_path: pathlib.Path) -> None:
    def waits(config: dict[str, Any]) -> None:
        with tune.checkpoint_dir(step=1) as folder:
            pathlib.Path(folder, "state").write_text("x")
        tune.report(loss=1)
        there = pathlib.Path(config["there"], "exp", tune.get_trial_name(), "checkpoint_000001", "state")
        end = time.monotonic() + 60
        while not there.exists() and time.monotonic() < end:
            time.sleep(0.02)
        tune.report(loss=0 if there.exists() else 2)

    there = tmp_path / "there"
    sync = tune.SyncConfig(upload_dir=there, sync_period=10_000)
    analysis = run(waits, tmp_path / "here", config={"there": str(there)}, sync_config=sync)
    assert [row["loss"] for row in analysis.results_of(analysis.trials[0])] == [1, 0]


def test_R119_a_function_brings_it_away(tmp_path: pathlib.Path) -> None:
    calls: list[tuple[str, str]] = []

    def copy(source: str, target: str) -> None:
        calls.append((source, target))
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))

    sync = tune.SyncConfig(upload_dir=tmp_path / "there", syncer=copy)
    run(descend, tmp_path, config={"x": 1, "steps": 2}, sync_config=sync)
    assert calls and checkpoints(tmp_path / "there" / "exp") == ["checkpoint_000001", "checkpoint_000002"]


def test_R131_going_on_by_hand_under_another_name(tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    first = start(tmp_path, gate)
    until(lambda: ends_of(tmp_path / "exp") == {1: [1, 2, 3, 4, 5, 6], 2: [1, 2, 3], 3: [1, 2, 3]}, first)
    first.kill()
    first.communicate(timeout=60)
    with contextlib.closing(pawl.Syncer(tmp_path / "exp", tune.SyncConfig(upload_dir=tmp_path / "there"))) as syncer:
        syncer.up()
    shutil.rmtree(tmp_path / "exp")
    gate.touch()
    space = {"x": tune.grid_search([1, 2, 3]), "gate": str(gate)}
    sync = tune.SyncConfig(upload_dir=tmp_path / "there")
    analysis = run(descend, tmp_path, name="restart", config=space, restore=sync)
    assert [one.config["x"] for one in analysis.trials] == [1, 2, 3]
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * 3
    assert os.path.dirname(analysis.trials[1].logdir) == str(tmp_path / "restart")
    assert [steps(one, analysis)[-1] for one in analysis.trials] == [6, 6, 6]
    assert not list(tmp_path.glob(".*"))  # what was fetched is gone
    with pytest.raises(pawl.NotFoundError, match="found none"):
        empty = tmp_path / "empty"
        empty.mkdir()
        run(descend, tmp_path, name="again", config=space, restore=tune.SyncConfig(upload_dir=empty))


def test_restore_from_a_checkpoint_begins_with_it(tmp_path: pathlib.Path) -> None:
    before = run(descend, tmp_path, name="before", config={"x": 1, "steps": 3}).best_checkpoint
    assert before is not None
    after = run(descend, tmp_path, name="after", config={"x": 1}, restore=before)
    assert steps(after.trials[0], after) == [4, 5, 6]


def test_a_place_that_cannot_be_written_to_is_told_before_a_trial_begins(tmp_path: pathlib.Path, fake: Fake) -> None:
    with pytest.raises(pawl.NotFoundError, match="there is no bucket"):
        run(descend, tmp_path, config={"x": 1}, sync_config=tune.SyncConfig(upload_dir="s3://another/path"))
    assert not list(tmp_path.glob("exp/*/params.json"))


# ---- the programs of the guide, whole


def program(name: str, folder: pathlib.Path) -> None:
    """Runs one; only /tmp/mypath is another folder."""
    for path in EXAMPLES.glob("*.py"):
        (folder / path.name).write_text(path.read_text().replace("/tmp/mypath", str(folder / "mypath")))
    env = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, folder / name], env=env, capture_output=True, text=True, timeout=300, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr


def keys(fake: Fake) -> set[str]:
    return {match[0] for key in fake.objects if (match := re.match(r"path/[^/]+/[^/]+/checkpoint_\d+", key))}


def test_R108_R111_R123_R127_R128_R129_R131_the_programs_of_the_guide_with_a_bucket(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    """Only imports were changed. The bucket has the experiment and its trial's checkpoints; run again, nothing is done
    again; from the bucket alone another machine goes on, under another name."""
    program("cloud.py", tmp_path)
    exp = tmp_path / "mypath" / "my-tune-exp"
    assert "path/my-tune-exp/experiment.json" in fake.objects
    assert len(checkpoints(exp)) == 5  # the best are the newest here
    assert {key.rpartition("/")[2] for key in keys(fake)} >= set(checkpoints(exp))
    lines = [json.loads(line) for line in next(exp.glob("*/result.json")).read_text().splitlines()]
    assert len(lines) == 8 and all("auc" in line for line in lines)
    program("cloud.py", tmp_path)
    assert len(next(exp.glob("*/result.json")).read_text().splitlines()) == 8
    shutil.rmtree(tmp_path / "mypath")
    program("restart.py", tmp_path)
    found = tune.ExperimentAnalysis(tmp_path / "ray_results" / "my-tune-exp-restart")
    assert [(one.status, one.last_result["training_iteration"]) for one in found.trials] == [("TERMINATED", 8)]


def test_R125_R126_R132_the_program_of_the_guide_without_a_bucket(tmp_path: pathlib.Path) -> None:
    program("local.py", tmp_path)
    analysis = tune.ExperimentAnalysis(tmp_path / "mypath" / "my-tune-exp", "auc", "max")
    assert [one.status for one in analysis.trials] == ["TERMINATED"]
    best = analysis.best_checkpoint
    assert best is not None and json.loads(pathlib.Path(best, "state.json").read_text())["step"] == 7
