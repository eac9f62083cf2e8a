# SPDX-License-Identifier: Apache-2.0
"""pawl.tune with a real Optuna and a real pandas; test_tune_optuna.py starts it."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pandas

import pawl
from pawl import tune
from pawl.tune.optuna import OptunaSearch

SPACE = {
    "x": tune.uniform(-10, 10),
    "inner": {"kind": tune.choice([(1, "a"), (100, "b")]), "n": tune.randint(1, 4), "same": 3},
    "twice": tune.sample_from(lambda spec: spec.config.x * 2),
}


def trainable(config: dict[str, Any]) -> None:
    inner = config["inner"]
    for _ in range(2):
        tune.report(loss=(config["x"] - 3) ** 2 + inner["kind"][0] + inner["n"], twice=config["twice"])


def run(folder: pathlib.Path, n: int, search: OptunaSearch, **more: Any) -> tune.ExperimentAnalysis:
    return tune.run(
        trainable,
        name="exp",
        local_dir=folder,
        config=SPACE,
        num_samples=n,
        search_alg=search,
        metric="loss",
        mode="min",
        verbose=0,
        max_concurrent_trials=1,
        resources_per_trial={"cpu": 0.25},
        **more,
    )


def checkpoints_and_differences_are_frames(root: pathlib.Path) -> None:
    with pawl.CheckpointManager(root) as manager:
        for step in (100, 200):
            manager.save(step, {"x": step}, metrics={"loss": 1 / step})
        manager.wait_until_finished()
        frame = manager.checkpoints().to_pandas()
    assert list(frame.step) == [100, 200] and isinstance(frame.time.dtype, pandas.DatetimeTZDtype)
    assert list(pawl.diff(f"{root}@100", f"{root}@200").to_pandas().path) == ["x"]


def report_nested(config: dict[str, Any]) -> None:
    tune.report(out={"loss": config["x"]})


def a_metric_may_be_nested(folder: pathlib.Path) -> None:
    search = OptunaSearch(seed=1)
    tune.run(
        report_nested,
        name="nested",
        local_dir=folder,
        config={"x": tune.uniform(0, 1)},
        num_samples=2,
        search_alg=search,
        metric="out/loss",
        mode="min",
        verbose=0,
        resources_per_trial={"cpu": 0.25},
    )
    assert [one.state.name for one in search._study.trials] == ["COMPLETE"] * 2


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    point = {"x": 3.0, "inner": {"kind": (1, "a"), "n": 1}}
    search = OptunaSearch(seed=1, points_to_evaluate=[point])
    analysis = run(folder, 6, search)
    first = analysis.trials[0].config
    assert first == {"x": 3.0, "inner": {"kind": (1, "a"), "n": 1, "same": 3}, "twice": 6.0}, first
    assert analysis.best_config == first
    assert all(one.last_result["twice"] == 2 * one.config["x"] for one in analysis.trials)
    states = [one.state.name for one in search._study.trials]
    assert states == ["COMPLETE"] * 6, states
    again = OptunaSearch(seed=1)
    more = run(folder, 8, again, resume="AUTO")  # gets the six, is asked for two
    assert len(more.trials) == 8 and [one.config for one in more.trials[:6]] == [one.config for one in analysis.trials]
    told = [(one.params, one.value) for one in again._study.trials[:6]]
    assert told == [(one.params, one.value) for one in search._study.trials]
    frame = more.dataframe()
    assert len(frame) == 8 and {"loss", "training_iteration", "config/x", "config/inner/n", "logdir"} <= set(frame)
    best = more.dataframe(metric="loss", mode="min").set_index("logdir")
    assert best.loss.min() == 2.0
    assert list(more.best_dataframe.training_iteration) == [1, 2]
    assert list(more.results_df.index) == [one.trial_id for one in more.trials]
    for one in more.trials:  # what others read of it
        rows = pandas.read_csv(pathlib.Path(one.logdir, "progress.csv"), float_precision="round_trip")
        lines = pandas.read_json(pathlib.Path(one.logdir, "result.json"), lines=True, precise_float=True)
        assert list(rows.loss) == list(lines.loss) == [row["loss"] for row in more.results_of(one)]
        assert list(rows.training_iteration) == list(lines.training_iteration) == [1, 2]
    checkpoints_and_differences_are_frames(folder / "run")
    a_metric_may_be_nested(folder)
    for wrong in ({"x": tune.randn(0, 1)}, {"x": tune.grid_search([1])}, {"x": 1}):
        try:
            OptunaSearch(wrong).set_search_properties("loss", "min", {})
        except (TypeError, ValueError) as error:
            print(error)
        else:
            raise AssertionError(wrong)


if __name__ == "__main__":
    main()
