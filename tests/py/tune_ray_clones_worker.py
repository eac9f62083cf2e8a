# SPDX-License-Identifier: Apache-2.0
"""A population of pawl.tune on a real Ray of two nodes with different home folders, synced to a bucket, a trial that
hangs, and a program that does; test_tune_ray.py starts it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
import types
from typing import Any

import ray
from ray_cluster import Cluster

from pawl import tune
from pawl.tune import ray_engine
from pawl.tune.schedulers import PopulationBasedTraining

SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}


def counts(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """Four steps; says what is in the folder that it begins with, which is the winner's for the loser."""
    first = 0
    if checkpoint_dir:
        names = sorted(os.listdir(checkpoint_dir))
        first, owner = json.loads(pathlib.Path(checkpoint_dir, "deep", "state").read_text())
        with open(pathlib.Path(config["notes"], "starts"), "a") as notes:
            notes.write(json.dumps([tune.get_trial_id(), names, first, owner]) + "\n")
    for step in range(first + 1, 5):
        with tune.checkpoint_dir(step=step) as folder:
            os.mkdir(os.path.join(folder, "deep"))
            pathlib.Path(folder, "deep", "state").write_text(json.dumps([step, tune.get_trial_id()]))
        tune.report(loss=config["x"] * step)


def population(folder: pathlib.Path) -> None:
    grid = tune.Tuner(
        tune.with_resources(counts, {"cpu": 0.5, "away": 0.5}),
        param_space={"x": tune.grid_search([1, 2]), "notes": str(folder)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            engine="ray",
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=2,
                hyperparam_mutations={"x": [1, 2]},
                quantile_fraction=0.5,
                synch=True,
            ),
        ),
        run_config=tune.RunConfig(
            name="population",
            storage_path="~/results",
            sync_config=tune.SyncConfig(upload_dir="s3://bucket/searches"),
        ),
    ).fit()
    rows = [[one.metrics["training_iteration"], one.trial.status] for one in grid]
    starts = [json.loads(line) for line in (folder / "starts").read_text().splitlines()]
    ids = [one.trial.trial_id for one in grid]
    print(json.dumps({"population": rows, "starts": starts, "ids": ids}))
    # The head sees the folder, in which there are notes only: it continues from what they stand for.
    path = pathlib.Path(grid[0].checkpoint.path)
    again = tune.run(
        lambda config, checkpoint_dir: tune.report(found=sorted(os.listdir(checkpoint_dir))[0] == "deep"),
        name="begun",
        local_dir="~/results",
        restore=path,
        engine="ray",
        resources_per_trial={"cpu": 0.5},
    )
    print(json.dumps({"begun": again.trials[0].last_result["found"]}))


def hangs(config: dict[str, Any]) -> None:
    mark = pathlib.Path(config["notes"], "hung")
    if not mark.exists():
        mark.write_text(f"{os.getpid()} {os.uname().nodename}")
        os.kill(os.getpid(), signal.SIGSTOP)
    tune.heartbeat()
    tune.report(loss=1)


def hung(folder: pathlib.Path) -> None:
    analysis = tune.run(
        hangs,
        name="hung",
        local_dir="~/results",
        config={"notes": str(folder)},
        resources_per_trial={"cpu": 0.5},
        max_failures=-1,
        heartbeat_s=15,
        engine="ray",
    )
    (trial,) = analysis.trials
    words = pathlib.Path(trial.logdir, "error.txt").read_text().splitlines()
    print(json.dumps({"hung": [trial.status, words, (folder / "hung").read_text().split()]}))


def where(config: dict[str, Any]) -> None:
    if not ray.is_initialized():
        raise RuntimeError("this is no actor")
    tune.report(loss=1)


def moved(folder: pathlib.Path) -> None:
    """Begun with processes of this machine, it continues with actors."""
    before = tune.run(where, name="moved", local_dir=folder, engine="local", raise_on_failed_trial=False)
    after = tune.Tuner.restore(folder / "moved", where, resume_errored=True, engine="ray").fit()
    print(json.dumps({"moved": [before.trials[0].error, before.trials[0].status, after[0].trial.status]}))


def reports_twice(config: dict[str, Any]) -> None:
    tune.report(loss=1)
    tune.report(loss=0)


def busy() -> None:
    """The program that searches is busy for longer than a trial may be silent; the trial waits for it meanwhile. By a
    clock that is put forward."""
    ahead = [0.0]

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        ahead[0] = 20_000.0
        return False

    ray_engine.time = types.SimpleNamespace(  # type: ignore[assignment]
        monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep
    )
    analysis = tune.run(
        reports_twice,
        name="busy",
        local_dir="~/results",
        resources_per_trial={"cpu": 0.5},
        heartbeat_s=10_000,
        stop=stop,
        engine="ray",
    )
    (trial,) = analysis.trials
    print(json.dumps({"busy": [trial.status, trial.last_result["loss"]]}))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for name in ("first", "second"):
        (folder / name).mkdir()
    os.environ["HOME"] = str(folder / "first")
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    cluster.add_node(**SMALL, resources={"away": 1}, env_vars={"HOME": str(folder / "second")})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        population(folder)
        hung(folder)
        moved(folder)

        busy()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
