# SPDX-License-Identifier: Apache-2.0
"""Populations whose values are explored by functions of the program; checkpoints with values that a state cannot hold;
input that is refused."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import cloudpickle
import pytest

import pawl
from pawl import tune
from pawl.tune.schedulers import PopulationBasedTraining

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def climb(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """Says with which values it continues."""
    first = int(pathlib.Path(checkpoint_dir, "step").read_text()) if checkpoint_dir else 0
    for step in range(first + 1, 4):
        with tune.checkpoint_dir(step=step) as folder:
            pathlib.Path(folder, "step").write_text(str(step))
        tune.report(loss=config["side"], drawn=config["drawn"], deep=config["deep"]["a"], mark=config.get("mark", 0))


def population(**more: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        metric="loss",
        mode="min",
        perturbation_interval=2,
        quantile_fraction=0.5,
        synch=True,
        **more,
    )


def test_functions_draw_and_explore_the_values_of_a_population(tmp_path: pathlib.Path) -> None:
    def explore(config: dict[str, Any]) -> dict[str, Any]:
        assert config["drawn"] == 7 and config["deep"]["a"] in (8, 12)
        return {**config, "mark": 5}

    scheduler = population(
        hyperparam_mutations={"drawn": lambda: 7, "deep": {"a": tune.choice([8, 12]), "b": lambda: 1}},
        resample_probability=1.0,
        custom_explore_fn=explore,
    )
    config = {"side": tune.grid_search([0, 1]), "deep": {"a": 8, "b": 0}}
    analysis = tune.run(climb, name="p", local_dir=tmp_path, config=config, scheduler=scheduler, verbose=0)
    good, cloned = analysis.trials
    assert good.config == {"side": 0, "drawn": 7, "deep": {"a": 8, "b": 0}}  # drawn at the start, and not touched
    assert cloned.config == {"side": 0, "drawn": 7, "deep": {"a": cloned.config["deep"]["a"], "b": 1}, "mark": 5}
    assert cloned.last_result["mark"] == 5 and cloned.last_result["training_iteration"] == 3
    again = tune.run(climb, name="p", local_dir=tmp_path, config=config, scheduler=scheduler, verbose=0, resume=True)
    assert [one.config for one in again.trials] == [good.config, cloned.config]


def test_numbers_that_are_explored_by_a_function_are_changed_by_a_factor(tmp_path: pathlib.Path) -> None:
    scheduler = population(
        hyperparam_mutations={"drawn": lambda: 10.0}, resample_probability=0.0, perturbation_factors=(2.0, 0.5)
    )
    config = {"side": tune.grid_search([0, 1]), "deep": {"a": 8}}
    analysis = tune.run(climb, name="p", local_dir=tmp_path, config=config, scheduler=scheduler, verbose=0)
    assert [one.config["drawn"] for one in analysis.trials] in ([10.0, 20.0], [10.0, 5.0])


def test_what_is_wrong_with_a_population_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="needs hyperparam_mutations"):
        population()
    with pytest.raises(pawl.UsageError, match="custom_explore_fn must be a function"):
        population(custom_explore_fn=3)
    with pytest.raises(pawl.UsageError, match="config has no value deep/b to begin with"):
        scheduler = population(hyperparam_mutations={"deep": {"b": lambda: 1}})
        tune.run(climb, name="p", local_dir=tmp_path, config={"deep": {}}, scheduler=scheduler)
    config = {"side": tune.grid_search([0, 1]), "deep": {"a": 8}, "drawn": 1}
    with pytest.raises(pawl.UsageError, match="custom_explore_fn must return the configuration, a dict"):
        scheduler = population(custom_explore_fn=lambda config: None)
        tune.run(climb, name="q", local_dir=tmp_path, config=config, scheduler=scheduler, verbose=0)


class Odd:
    """What a state cannot hold."""

    def __init__(self, count: int) -> None:
        self.count = count


class Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.odd = Odd(0)

    def step(self) -> dict[str, Any]:
        self.odd.count += 1
        if self.odd.count == 3 and not os.path.exists("died"):
            pathlib.Path("died").touch()
            os._exit(1)
        return {"count": self.odd.count, "done": self.odd.count == 4}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"inner": {"odd": self.odd, "plain": 1}}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["inner"]["plain"] == 1
        self.odd = checkpoint["inner"]["odd"]


def test_E8_values_that_a_state_cannot_hold_are_pickled_for_who_asks(tmp_path: pathlib.Path) -> None:
    more: dict[str, Any] = {"local_dir": tmp_path, "checkpoint_freq": 1, "max_failures": 1, "verbose": 0}
    analysis = tune.run(Steps, name="yes", allow_pickle=True, **more)
    trial = analysis.trials[0]
    assert trial.failures == 1 and trial.last_result["count"] == 4  # the object came back
    assert trial.last_result["training_iteration"] == 4
    with pytest.raises(tune.TuneError, match="inner/odd"):
        tune.run(Steps, name="no", **more)


def count(config: dict[str, Any]) -> dict[str, Any]:
    with open(config["ran"], "a") as file:
        file.write(f"{config['x']}\n")
    return {"loss": config["x"]}


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_R130_a_journal_that_is_lost_costs_no_trial(
    tmp_path: pathlib.Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = {"name": "j", "local_dir": tmp_path, "metric": "loss", "mode": "min"}
    more["config"] = {"x": tune.grid_search([1, 2]), "ran": str(tmp_path / "ran")}
    tune.run(count, **more)
    journal = tmp_path / "j" / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[3] = b"#" + lines[3][1:]
    journal.unlink()
    if how == "damaged":
        journal.write_bytes(b"".join(lines))
    again = tune.run(count, resume=True, **more)
    assert f"the journal was {how}; it was rebuilt from the folders of 2 trials" in capfd.readouterr().err
    assert [(one.status, one.last_result["loss"]) for one in again.trials] == [("TERMINATED", 1), ("TERMINATED", 2)]
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2"]  # none ran again
    assert (tmp_path / "j" / "journal.damaged").exists() == (how == "damaged")


def test_a_template_without_its_fields_is_refused_before_anything_is_made(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="must have both {source} and {target} in it, {target} is missing"):
        tune.run(
            count, name="t", local_dir=tmp_path, sync_config=tune.SyncConfig(upload_dir="/x", syncer="cp {source}")
        )
    assert not (tmp_path / "t").exists()
