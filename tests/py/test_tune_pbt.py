# SPDX-License-Identifier: Apache-2.0
"""Population based training: with shell scripts by `pawl tune`, with functions by pawl.tune."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
from sweeps import Sweep
from waiting import wait_until

import pawl
from pawl import _pawl, tune
from pawl.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay, create_scheduler

# A trial whose state is a sum of its rates; every report has a checkpoint.
SUM = r"""#!/bin/sh
set -e
rate=$1 sum=0 n=0
if [ -n "$PAWL_TUNE_CHECKPOINT" ]; then
	sum=$(cat "$PAWL_TUNE_CHECKPOINT/sum") n=$PAWL_TUNE_ITERATION
fi
while [ "$n" -lt 9 ]; do
	n=$((n + 1)) sum=$((sum + rate))
	mkdir -p "$PAWL_TUNE_FOLDER/.out"
	echo "$sum" >"$PAWL_TUNE_FOLDER/.out/sum"
	"$PAWL" report sum=$sum rate=$rate --checkpoint "$PAWL_TUNE_FOLDER/.out" >/dev/null
done
"""
PBT: dict[str, Any] = {
    "type": "pbt",
    "time_attr": "training_iteration",
    "perturbation_interval": 3,
    "synch": True,
    "hyperparam_mutations": {"rate": [1, 2, 4, 8, 16, 32]},
}


def search(folder: pathlib.Path, **more: Any) -> Sweep:
    folder.mkdir()
    return Sweep(folder, SUM, run=[str(folder / "trial.sh"), "{rate}"], metric="sum", mode="max", **more)


def test_R158_a_search_of_scripts_exploits_and_notes_the_way_of_each_trial(tmp_path: pathlib.Path) -> None:
    """The worse trial continues from the better one's links; its file has the values, old and new, of each change."""
    first = search(tmp_path / "first", space={"rate": {"$grid": [1, 2, 4, 8]}}, scheduler=PBT)
    first.run()
    worst = next(
        trial for trial in first.trials() if trial["config"] and list(first.folder.glob(f"*{trial['id']}.txt"))
    )
    policy = first.folder / f"pbt_policy_{worst['id']}.txt"
    lines = [json.loads(line) for line in policy.read_text().splitlines()]
    assert all(line in (first.folder / "pbt_global.txt").read_text() for line in policy.read_text().splitlines())
    clone = next(path for path in (first.folder / worst["name"]).glob("checkpoint_*_of_*"))
    donor = first.folder / next(one["name"] for one in first.trials() if clone.name.split("_")[3] in one["name"])
    original = donor / "_".join(clone.name.split("_")[:2])
    if original.exists():  # links, as long as the donor keeps it
        assert os.stat(original / "sum").st_ino == os.stat(clone / "sum").st_ino
    assert first.results(worst)[-1]["rate"] == lines[-1][5]["rate"]


def sums(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    total, n = json.loads(pathlib.Path(checkpoint_dir, "state").read_text()) if checkpoint_dir else (0, 0)
    while n < 9:
        total, n = total + config["rate"], n + 1
        with tune.checkpoint_dir(step=n) as folder:
            pathlib.Path(folder, "state").write_text(json.dumps([total, n]))
        tune.report(sum=total, rate=config["rate"])


def test_a_search_of_functions_exploits(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"local_dir": tmp_path, "metric": "sum", "mode": "max", "verbose": 0}
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"rate": [1, 2, 4, 8, 16, 32]},
        synch=True,
    )
    first = tune.run(
        sums, name="first", config={"rate": tune.grid_search([1, 2, 4, 8])}, scheduler=scheduler, **options
    )
    changed = [trial for trial in first.trials if (tmp_path / "first" / f"pbt_policy_{trial.trial_id}.txt").exists()]
    assert changed and all(trial.last_result["training_iteration"] == 9 for trial in first.trials)


class Follower(tune.Trainable):
    """The trial of side 1 reports when that of side 0 has a checkpoint, which then waits until it has resumed."""

    def setup(self, config: dict[str, Any]) -> None:
        self.saved, self.resumed = (pathlib.Path(config["folder"], name) for name in ("saved", "resumed"))

    def step(self) -> dict[str, Any]:
        if self.config["side"] == 1:
            wait_until(self.saved.exists)
        elif self.iteration == 2:
            self.saved.touch()
            wait_until(self.resumed.exists)
        return {"loss": self.config["side"], "done": self.iteration == 2}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"side": self.config["side"]}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.resumed.touch()


def test_R158_a_class_that_saves_at_its_end_continues_from_its_donor(tmp_path: pathlib.Path) -> None:
    analysis = tune.run(
        Follower,
        name="p",
        local_dir=tmp_path,
        metric="loss",
        mode="min",
        config={"side": tune.grid_search([0, 1]), "rate": 1, "folder": str(tmp_path)},
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=1, hyperparam_mutations={"rate": [1, 2]}
        ),
        checkpoint_freq=2,
        checkpoint_at_end=True,
        resources_per_trial={"cpu": 0.25},
        verbose=0,
    )
    changed = analysis.trials[1]
    assert [row["training_iteration"] for row in analysis.results_of(changed)] == [1, 3]
    names = sorted(path.name for path in (tmp_path / "p" / changed.name).glob("checkpoint_*"))
    assert names == ["checkpoint_000002_of_00000_1", "checkpoint_000003"]


def test_R158_the_checkpoint_of_a_clone_has_the_result_of_its_donor(tmp_path: pathlib.Path) -> None:
    scheduler = PBT | {"perturbation_interval": 1, "synch": False, "hyperparam_mutations": {"rate": [1, 2]}}
    document = {"name": "exp", "local_dir": str(tmp_path), "num_samples": 2, "metric": "loss", "space": {"rate": 1}}
    experiment = _pawl.Experiment(json.dumps(document | {"scheduler": scheduler}), None)
    try:
        for _ in range(2):
            start = experiment.next()
            assert not isinstance(start, str)
            os.mkdir(os.path.join(start[3], "checkpoint_000001"))
        for number, loss in enumerate((1, 9)):
            experiment.report(number, json.dumps({"loss": loss}), "checkpoint_000001")
    finally:
        experiment.close()
    analysis = tune.ExperimentAnalysis(tmp_path / "exp")
    donor, trial = analysis.trials
    own, clone = (os.path.join(trial.logdir, f"checkpoint_000001{end}") for end in ("", "_of_00000_1"))
    assert analysis.get_trial_checkpoints_paths(trial) == [(own, 9), (clone, 1)]
    assert str(analysis.get_best_checkpoint(trial)) == clone
    results = [result for _, result in tune.tuner.Result(trial, analysis).best_checkpoints]
    assert [result["trial_id"] for result in results] == [trial.trial_id, donor.trial_id]


def test_a_replay_is_refused_and_the_error_says_what_to_do(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.PawlError, match="follow the values that the trial's policy file lists"):
        PopulationBasedTrainingReplay(tmp_path / "pbt_policy_1.txt")
    with pytest.raises(pawl.PawlError, match="follow the values"):
        create_scheduler("pbt_replay", policy_file="x")
    refused = search(tmp_path / "s", space={"rate": 1}, scheduler={"type": "pbt_replay", "policy_file": "x"})
    assert "pbt_replay is no longer supported; the trial itself can follow" in refused.run(status=2)
