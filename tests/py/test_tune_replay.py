# SPDX-License-Identifier: Apache-2.0
"""Population based training and its replay: with shell scripts by `pawl tune`, with functions by pawl.tune."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
from sweeps import Sweep

import pawl
from cli import run, run_json
from pawl import tune
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


def test_R158_a_search_of_scripts_exploits_and_one_of_its_trials_is_replayed(tmp_path: pathlib.Path) -> None:
    """The worse trial goes on from the better one's links; the replay of its schedule comes to the same sums."""
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
    second = search(tmp_path / "second", space={}, scheduler={"type": "pbt_replay", "policy_file": str(policy)})
    second.run()
    [again] = second.trials()
    assert again["metric"] == worst["metric"] and again["iteration"] == 9
    assert [row["rate"] for row in second.results(again)][:3] == [lines[0][4]["rate"]] * 3
    policy.unlink()  # it is a part of the document now
    assert run_json("tune", "best", second.folder)["trial"]["metric"] == again["metric"]
    third = search(tmp_path / "third", space={}, scheduler={"type": "pbt_replay", "policy_file": str(policy)})
    assert f"policy_file: {policy}: open" in third.run(status=3)
    third.change(scheduler={"type": "pbt_replay", "schedule": [{"at": 2, "config": {"rate": 5}}]}, num_samples=2)
    assert "pbt_replay runs one trial" in third.run(status=2)
    third.change(space={"rate": 3}, num_samples=1)
    third.run()
    assert run("tune", "export", third.folder).stdout.count(",5") >= 7
    assert [row["sum"] for row in third.results(third.trials()[0])] == [3, 6, *range(11, 42, 5)]


def sums(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    total, n = json.loads(pathlib.Path(checkpoint_dir, "state").read_text()) if checkpoint_dir else (0, 0)
    while n < 9:
        total, n = total + config["rate"], n + 1
        with tune.checkpoint_dir(step=n) as folder:
            pathlib.Path(folder, "state").write_text(json.dumps([total, n]))
        tune.report(sum=total, rate=config["rate"])


def test_a_replay_of_functions(tmp_path: pathlib.Path) -> None:
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
    policies = {trial.trial_id: tmp_path / "first" / f"pbt_policy_{trial.trial_id}.txt" for trial in first.trials}
    replayed = [trial for trial in first.trials if policies[trial.trial_id].exists()]
    assert replayed
    trial = replayed[0]
    replay = PopulationBasedTrainingReplay(policies[trial.trial_id])
    again = tune.run(sums, name="again", scheduler=replay, **options).trials[0]
    assert again.last_result["sum"] == trial.last_result["sum"]
    assert again.last_result["training_iteration"] == 9
    assert isinstance(create_scheduler("pbt_replay", policy_file="x"), PopulationBasedTrainingReplay)
    with pytest.raises(pawl.PawlError, match="policy_file"):
        tune.run(sums, name="none", scheduler=PopulationBasedTrainingReplay(tmp_path / "none"), **options)
