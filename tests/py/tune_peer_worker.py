# SPDX-License-Identifier: Apache-2.0
"""Searches of the real Ray Tune with its own schedulers whose trials save by pawl.ray; test_tune_ray.py starts it."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining


def trial(config: dict[str, Any]) -> None:
    """Two or three steps. Notes whose checkpoint it continues from, which one, and whether it is complete."""
    import pawl.ray

    mine = tune.get_context().get_trial_id()
    saver = pawl.ray.TrialSaver()
    first = 0
    if (found := saver.restore()) is not None:
        first = found["step"]
        whole = float(found["weight"].sum()) == found["sum"]
        with open(config["notes"], "a") as notes:
            notes.write(json.dumps([found["by"] == mine, first, whole]) + "\n")
    if first == 0 and "first" in config:
        take_turns(config)
    for step in range(first + 1, 4):
        weight = np.full(1000, step + config["rate"])
        state = {"weight": weight, "sum": float(weight.sum()), "step": step, "by": mine}
        saver.report({"loss": config["rate"] * (1 + config["side"])}, state)


def take_turns(config: dict[str, Any]) -> None:
    """The last side reports once the process of the side before it has ended: Ray has paused that one, whatever the machine's load."""
    number = pathlib.Path(config["first"])
    if config["side"] == 2:
        beside = number.with_suffix(".new")
        beside.write_text(str(os.getpid()))
        beside.rename(number)
    elif config["side"] == 3:
        while not number.exists():
            time.sleep(0.05)
        while pathlib.Path("/proc", number.read_text()).exists():
            time.sleep(0.05)


def search(folder: pathlib.Path, name: str, sides: list[int], scheduler: Any, **more: Any) -> None:
    notes = folder / name
    notes.touch()
    space = {"rate": 1.0, "side": tune.grid_search(sides), "notes": str(notes), **more}
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5}),
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, reuse_actors=False),
        run_config=tune.RunConfig(name=name, storage_path=str(folder / "results"), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    rows = [json.loads(line) for line in notes.read_text().splitlines()]
    steps = sorted(result.metrics["training_iteration"] for result in results)
    print(json.dumps({name: rows, f"{name} steps": steps}))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    population = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"rate": [1.0, 2.0]},
        quantile_fraction=0.5,
        synch=True,
    )
    search(folder, "population", [0, 1], population)
    # A bracket of two that run to their end, and one of two whose better one reports first and so has to pause.
    bands = HyperBandScheduler(time_attr="training_iteration", max_t=2, reduction_factor=2)
    search(folder, "bands", [0, 1, 2, 3], bands, first=str(folder / "first"))
    ray.shutdown()


if __name__ == "__main__":
    main()
