# SPDX-License-Identifier: Apache-2.0
"""Searchers with schedulers in which trials wait for each other; and searches that are continued without the program
that began them."""

from __future__ import annotations

import itertools
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pytest
from test_tune import descend, run

import pawl
from pawl import tune
from pawl.tune import spec
from pawl.tune.schedulers import (
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

# The functions of this file go to the trials by value, as those of a script do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Counting(tune.Searcher):
    """Suggests 1, 2, 3, ... and notes which trials are complete."""

    def __init__(self, failing: bool = False) -> None:
        super().__init__()
        self.n, self.complete, self.failing = 0, dict[str, Any](), failing

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        self.n += 1
        return {"x": self.n}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        assert trial_id not in self.complete

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        assert trial_id not in self.complete and (self.failing or (result is not None and not error))
        self.complete[trial_id] = result


WAITING: dict[str, tuple[int, TrialScheduler]] = {
    "hyperband": (12, HyperBandScheduler(max_t=9, reduction_factor=3)),
    "asha": (4, AsyncHyperBandScheduler(max_t=9, reduction_factor=3, synch=True)),
    "median": (4, MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=1, hard_stop=False)),
    "pbt": (
        6,
        PopulationBasedTraining(
            "training_iteration", perturbation_interval=3, hyperparam_mutations={"x": [1, 2, 3]}, synch=True
        ),
    ),
}


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("places", [1, 2])
def test_P16_trials_that_wait_for_more_than_there_are_places_for_all_end(
    tmp_path: pathlib.Path, kind: str, places: int
) -> None:
    """The searcher hears of the end of each, dropped ones too, and of no result after it."""
    n, scheduler = WAITING[kind]
    searcher = Counting()
    options: dict[str, Any] = {"config": {"steps": 9}, "num_samples": n, "max_concurrent_trials": places}
    analysis = run(descend, tmp_path, search_alg=searcher, scheduler=scheduler, **options)
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * n and searcher.n == n
    last = {f"{one.number:05d}": one.last_result["training_iteration"] for one in analysis.trials}
    assert {name: result["training_iteration"] for name, result in searcher.complete.items()} == last


class Limited(Counting):
    """Lets two trials live at a time, as a ConcurrencyLimiter of Ray Tune does."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return None if self.n - len(self.complete) == 2 else super().suggest(trial_id)


def test_a_searcher_that_lets_too_few_trials_live_for_the_scheduler_ends_the_search(tmp_path: pathlib.Path) -> None:
    n, scheduler = WAITING["hyperband"]
    options: dict[str, Any] = {"config": {"steps": 9}, "num_samples": n, "search_alg": Limited()}
    with pytest.raises(pawl.UsageError, match="its 2 trials are paused until there are more"):
        run(descend, tmp_path, scheduler=scheduler, **options)
    options["search_alg"] = Counting()  # without the limit it continues
    analysis = run(descend, tmp_path, scheduler=scheduler, resume="AUTO", **options)
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * n


@pytest.mark.parametrize("kind", ["draws", "functions", "searcher"])
def test_a_stopper_that_stops_all_ends_a_search_with_samples_left(tmp_path: pathlib.Path, kind: str) -> None:
    class First(tune.stopper.Stopper):
        """The first result ends the search."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return True

    searcher = Counting() if kind == "searcher" else None
    options: dict[str, Any] = {"num_samples": 4, "max_concurrent_trials": 1, "search_alg": searcher}
    options["config"] = {"x": tune.sample_from(lambda: 1) if kind == "functions" else 1, "steps": 2}
    for resume in (False, "AUTO"):
        analysis = run(descend, tmp_path, stop=First() if not resume else None, resume=resume, **options)
        assert [len(analysis.results_of(one)) for one in analysis.trials if one.attempts] == [1]
        assert {one.status for one in analysis.trials} == {"TERMINATED"}
    assert searcher is None or searcher.n == 1


def test_a_plateau_stopper_lets_a_trial_go_on_that_diverges_or_lacks_its_metric() -> None:
    stopper = tune.stopper.TrialPlateauStopper("loss", num_results=2, grace_period=2, metric_threshold=9, mode="min")
    losses = [1.0, math.inf, math.inf, math.nan, math.nan, -math.inf, -math.inf, -1e308, 1e308, None, "low", 5, 5.0]
    ends = [stopper("a", {} if loss is None else {"loss": loss}) for loss in losses]
    assert ends == [False] * 12 + [True]
    assert [stopper("b", {"loss": 1}) for _ in range(2)] == [False, True]


def test_a_plateau_stopper_names_a_metric_that_a_first_result_lacks(tmp_path: pathlib.Path) -> None:
    text = r"has no metric 'losss', by which the trial ends \(TrialPlateauStopper\); it has 'loss', 'step'"
    with pytest.raises(pawl.UsageError, match=text):
        run(descend, tmp_path, config={"x": 1}, stop=tune.stopper.TrialPlateauStopper("losss"))
    stopper = tune.stopper.TrialPlateauStopper("a/b", num_results=2, grace_period=2)
    for result, text in (
        ({"a": {"c": 1}}, "no metric 'a/b', .* it has 'a'$"),
        ({"a": {"b": "low"}}, "no number 'a/b'"),
    ):
        with pytest.raises(pawl.UsageError, match=text):
            stopper(text, result)
    for name, first in (("a", {"a": {"b": 1}}), ("b", {"a/b": 1})):
        assert [stopper(name, one) for one in (first, {}, first)] == [False, False, True]
    resumed = {"training_iteration": 6, "iterations_since_restore": 1}  # may be between two validations
    assert not stopper("c", resumed)


# ---- Tuner.restore, and more samples


def restore(folder: pathlib.Path, trainable: Any, space: Mapping[str, Any] | None = None) -> list[tune.Trial]:
    """Continues the experiment, and its failed trials."""
    tuner = tune.Tuner.restore(folder, trainable, True, space, stop=lambda trial_id, result: False)
    tuner._run.verbose = 0
    return [one.trial for one in tuner.fit()]


def test_R128_a_tuner_does_not_end_a_search_that_its_searcher_has_not_finished(tmp_path: pathlib.Path) -> None:
    def interrupt(trial_id: str, result: dict[str, Any]) -> bool:
        if result["config"]["x"] == 2:
            raise KeyboardInterrupt
        return False

    options: dict[str, Any] = {"config": {"steps": 1}, "num_samples": 4, "max_concurrent_trials": 1}
    with pytest.raises(KeyboardInterrupt):
        run(descend, tmp_path, search_alg=Counting(), stop=interrupt, **options)
    with pytest.raises(pawl.UsageError, match=r'of 4 configurations, and only the program .* tune.run.*resume="AUTO"'):
        restore(tmp_path / "exp", descend)
    analysis = run(descend, tmp_path, search_alg=Counting(), resume="AUTO", **options)
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * 4
    assert [one.attempts for one in restore(tmp_path / "exp", descend)] == [one.attempts for one in analysis.trials]


@pytest.mark.parametrize("kind", ["fifo", "hyperband"])
def test_R128_a_tuner_tries_failed_trials_of_a_complete_search_again(tmp_path: pathlib.Path, kind: str) -> None:
    """The space of a searcher may hold values that JSON cannot hold."""

    def fails(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        if config["x"] == 2 and not config["flag"].exists():
            raise ValueError("not yet")
        descend(config, checkpoint_dir)

    space = {"flag": tmp_path / "flag", "steps": 2}
    options: dict[str, Any] = {"num_samples": 3, "scheduler": kind, "raise_on_failed_trial": False}
    analysis = run(fails, tmp_path, search_alg=Counting(failing=True), config=space, **options)
    assert sorted(one.status for one in analysis.trials) == ["ERROR", "TERMINATED", "TERMINATED"]
    (tmp_path / "flag").touch()
    assert [one.status for one in restore(tmp_path / "exp", fails, space)] == ["TERMINATED"] * 3


@pytest.mark.parametrize("anew", [False, True])
def test_a_tuner_continues_with_the_options_that_the_search_began_with(tmp_path: pathlib.Path, anew: bool) -> None:
    def fails(config: dict[str, Any], checkpoint_dir: str | None = None) -> dict[str, Any]:
        if not (tmp_path / f"flag{config['x']}").exists():
            raise ValueError("not yet")
        return {"loss": 1, "parent": os.getppid()}

    space = {"x": tune.grid_search([1, 2, 3])}
    with pytest.raises(tune.TuneError):
        run(fails, tmp_path, config=space, fork=False, fail_fast=True, max_concurrent_trials=1)
    (tmp_path / "flag1").touch()
    (tmp_path / "flag3").touch()
    given: dict[str, Any] = {"fork": True, "fail_fast": False} if anew else {}
    tuner = tune.Tuner.restore(tmp_path / "exp", fails, True, verbose=0, **given)
    if not anew:
        with pytest.raises(tune.TuneError):  # of the second trial
            tuner.fit()
        (tmp_path / "flag2").touch()
        tuner = tune.Tuner.restore(tmp_path / "exp", fails, True, verbose=0)
    results = [one.trial for one in tuner.fit()]
    assert [one.status for one in results] == ["TERMINATED", "ERROR" if anew else "TERMINATED", "TERMINATED"]
    parents = {one.last_result["parent"] for one in results if one.status == "TERMINATED"}
    assert (parents == {os.getpid()}) is not anew


def test_resources_that_only_a_cluster_has_are_kept(tmp_path: pathlib.Path) -> None:
    options = dict.fromkeys(("scheduler", "metric", "mode", "stop", "search_alg", "config", "time_budget_s"))
    options |= dict.fromkeys(("keep_checkpoints_num", "sync_config", "max_concurrent_trials", "checkpoint_score_attr"))
    numbers = {"num_samples": 1, "seed": 0, "max_failures": 0, "checkpoint_freq": 0, "heartbeat_s": 0, "grace_s": 1}
    options |= numbers | {"checkpoint_at_end": False, "name": "exp", "local_dir": tmp_path, "engine": "ray"}
    plan = spec.make(descend, options | {"resources_per_trial": {"cpu": 1, "TPU": 2}})
    spec.keep_options(plan, fail_fast=False, fork=True)
    for engine in ("ray", "local", "ray"):
        (tmp_path / "exp").mkdir(exist_ok=True)
        (tmp_path / "exp" / "experiment.json").write_text(json.dumps({"document": plan.document}))
        plan = spec.again(descend, str(tmp_path / "exp"), None, tune.SyncConfig(), engine)
        assert plan.custom == {"TPU": 2}


@pytest.mark.parametrize("allow", [False, True])
def test_a_tuner_loads_pickles_only_if_it_is_told_to(tmp_path: pathlib.Path, allow: bool) -> None:
    class Pickling(tune.Trainable):
        def step(self) -> dict[str, Any]:
            self.at = re.compile(str(self.iteration))  # a state cannot hold this
            if self.iteration == 1 and not (tmp_path / "flag").exists():
                raise ValueError("not yet")
            return {"loss": 1, "done": self.iteration == 1}

        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return {"at": self.at}

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.at = checkpoint["at"]

    more: dict[str, Any] = {"checkpoint_freq": 1, "raise_on_failed_trial": False}
    run(Pickling, tmp_path, config={}, allow_pickle=True, **more)
    (tmp_path / "flag").touch()
    grid = tune.Tuner.restore(tmp_path / "exp", Pickling, True, allow_pickle=allow, verbose=0).fit()
    assert [str(one) for one in grid.errors if "pickle" not in str(one)] == []
    assert grid.num_errors == (0 if allow else 1)


def test_a_tuner_syncs_a_restored_folder_where_it_is_told_to(tmp_path: pathlib.Path) -> None:
    run(descend, tmp_path, config={"x": 1, "steps": 1})
    config = tune.SyncConfig(upload_dir=tmp_path / "far")
    tune.Tuner.restore(tmp_path / "exp", descend, sync_config=config, verbose=0).fit()
    assert tune.Tuner.can_restore(tmp_path / "far" / "exp")
    with pytest.raises(pawl.UsageError, match="give one place"):
        tune.Tuner.restore("s3://bucket/exp", descend, sync_config=config)


@pytest.mark.parametrize("what", ["custom_explore_fn", "hyperparam_mutations"])
def test_R158_a_tuner_does_not_continue_a_population_without_its_functions(tmp_path: pathlib.Path, what: str) -> None:
    functions: dict[str, Any] = {"hyperparam_mutations": {"x": lambda: 1}}
    if what == "custom_explore_fn":
        functions = {"custom_explore_fn": lambda config: config}
    scheduler = PopulationBasedTraining("training_iteration", perturbation_interval=2, **functions)
    run(descend, tmp_path, config={"x": tune.grid_search([1, 2]), "steps": 1}, scheduler=scheduler)
    with pytest.raises(pawl.UsageError, match="changes configurations by a function, and only the program"):
        restore(tmp_path / "exp", descend)


def test_a_resumed_search_takes_more_samples_of_a_space_with_functions(tmp_path: pathlib.Path) -> None:
    space = {"x": tune.uniform(0, 1), "steps": tune.sample_from(lambda spec: 1 + round(spec.config.x))}
    first = run(descend, tmp_path, config=space, num_samples=2)
    more = run(descend, tmp_path, config=space, num_samples=4, resume="AUTO")
    assert [one.config for one in more.trials[:2]] == [one.config for one in first.trials]
    assert [(one.status, one.attempts) for one in more.trials] == [("TERMINATED", 1)] * 4
    waiting: dict[str, Any] = {"name": "waiting", "config": space, "scheduler": "hyperband"}
    run(descend, tmp_path, num_samples=2, **waiting)
    with pytest.raises(pawl.UsageError, match="num_samples: .*waiting has all its 2 trials.* cannot grow"):
        run(descend, tmp_path, num_samples=4, resume="AUTO", **waiting)


@pytest.mark.parametrize("kind", ["draws", "functions"])
def test_P12_a_damaged_journal_is_named_until_the_search_is_resumed(tmp_path: pathlib.Path, kind: str) -> None:
    """A program that reads it does not take its beginning for all of it."""
    space = {"x": tune.sample_from(lambda: 1) if kind == "functions" else 1, "steps": 2}
    run(descend, tmp_path, config=space, num_samples=2)
    journal = tmp_path / "exp" / "journal"
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    with pytest.raises(pawl.CorruptError, match="journal: damaged after .* resume the search"):
        tune.ExperimentAnalysis(tmp_path / "exp")
    if kind == "functions":
        with pytest.raises(pawl.UsageError, match=r"has a damaged journal, and only the program .* tune.run"):
            restore(tmp_path / "exp", descend, space)
        trials = run(descend, tmp_path, config=space, num_samples=2, resume="AUTO").trials
    else:
        trials = restore(tmp_path / "exp", descend, space)
    assert [(one.status, one.last_result["step"]) for one in trials] == [("TERMINATED", 2)] * 2


# ---- values that JSON cannot hold, in a search that is resumed


class Listed(tune.Searcher):
    """Suggests the values, and notes those of the trials that a resumed search has."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.values, self.restored = iter(values), list[Any]()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return {"size": next(self.values)}

    def restore_trial(self, trial_id: str, config: dict[str, Any], result: dict[str, Any] | None, over: bool) -> None:
        self.restored.append(config["size"])


def count_twice(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    descend({"x": 1, "steps": 2}, checkpoint_dir)


def interrupt(trial_id: str, result: dict[str, Any]) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize("value", [np.float64(0.1), np.float32(0.5), np.int64(3), np.bool_(True), np.str_("a")])
def test_R128_a_scalar_of_numpy_is_the_same_value_in_a_resumed_search(tmp_path: pathlib.Path, value: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(count_twice, tmp_path, search_alg=Listed(value), stop=interrupt)
    searcher = Listed()
    analysis = run(count_twice, tmp_path, search_alg=searcher, resume="AUTO")
    assert [one.config["size"] for one in analysis.trials] == searcher.restored == [value.item()]
    assert [type(one) for one in searcher.restored] == [type(value.item())]
    drawn = {"size": tune.sample_from(lambda: value), "fixed": value, "one": tune.choice([value])}
    config = run(count_twice, tmp_path, name="drawn", config=drawn).trials[0].config
    assert [type(one) for one in config.values()] == [type(value.item())] * 3


def test_R128_a_suggested_value_that_is_lost_is_named_when_the_search_is_resumed(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"num_samples": 2, "max_concurrent_trials": 1}
    with pytest.raises(KeyboardInterrupt):
        run(count_twice, tmp_path, search_alg=Listed((64, 64)), stop=interrupt, **options)
    searcher = Listed((32, 32))
    with pytest.raises(pawl.UsageError, match=r"trial_00000_size=.* has the value <\(64, 64\) #0>.* not made it again"):
        run(count_twice, tmp_path, search_alg=searcher, resume="AUTO", **options)
    assert searcher.restored == []


@pytest.mark.parametrize("changes", [False, True])
def test_R128_a_function_of_the_space_that_draws_another_value_is_named(tmp_path: pathlib.Path, changes: bool) -> None:
    sizes: Iterator[int] = itertools.count() if changes else itertools.repeat(0)
    space = {"size": tune.sample_from(lambda: (next(sizes), 1))}
    with pytest.raises(KeyboardInterrupt):
        run(count_twice, tmp_path, config=space, stop=interrupt)
    with pytest.raises(pawl.UsageError, match=r"trial_00000_size=.* has the value <\(0, 1\) #0>"):
        restore(tmp_path / "exp", count_twice, space)
    if changes:
        with pytest.raises(pawl.UsageError, match=r"trial_00000_size=.* has the value <\(0, 1\) #0>"):
            run(count_twice, tmp_path, config=space, num_samples=2, resume="AUTO")
    else:
        analysis = run(count_twice, tmp_path, config=space, num_samples=2, resume="AUTO")
        assert [one.config for one in analysis.trials] == [{"size": (0, 1)}] * 2


def test_R128_a_tuner_without_the_space_names_the_value_that_it_lacks(tmp_path: pathlib.Path) -> None:
    space = {"size": tune.grid_search([(1, 2), (3, 4)])}
    with pytest.raises(KeyboardInterrupt):
        run(count_twice, tmp_path, config=space, stop=interrupt, max_concurrent_trials=1)
    with pytest.raises(pawl.UsageError, match=r"has the value <\(1, 2\) #0>"):
        restore(tmp_path / "exp", count_twice)
    assert [one.config["size"] for one in restore(tmp_path / "exp", count_twice, space)] == [(1, 2), (3, 4)]
