# SPDX-License-Identifier: Apache-2.0
"""pawl.tune with real trials: what is drawn, reported, kept, resumed; and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types
from decimal import Decimal
from fractions import Fraction
from typing import Any

import cloudpickle
import pytest
from waiting import HANG_SECONDS, wait_until

import pawl
from pawl import tune
from pawl.tune.schedulers import AsyncHyperBandScheduler, HyperBandScheduler, PopulationBasedTraining

# The functions of this file go to the trials by value, as those of a script do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = str(pathlib.Path(pawl.__file__).parent.parent)


def descend(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """Six steps; a checkpoint of each."""
    first = 1
    if checkpoint_dir:
        first = json.loads(pathlib.Path(checkpoint_dir, "state").read_text())["step"] + 1
    for step in range(first, config.get("steps", 6) + 1):
        with tune.checkpoint_dir(step=step) as folder:
            pathlib.Path(folder, "state").write_text(json.dumps({"step": step}))
        tune.report(loss=config["x"] ** 2 + 1 / step, step=step, first=first)


def run(trainable: Any, folder: pathlib.Path, **options: Any) -> tune.ExperimentAnalysis:
    given = {"name": "exp", "local_dir": folder, "metric": "loss", "mode": "min", "verbose": 0}
    given |= {"resources_per_trial": {"cpu": 0.25}, "max_concurrent_trials": 2}
    return tune.run(trainable, **(given | options))


def steps(trial: tune.Trial, analysis: tune.ExperimentAnalysis) -> list[int]:
    return [row["step"] for row in analysis.results_of(trial)]


# ---- what an experiment gives, and where


def test_R104_R105_R124_R126_R129_a_function_with_checkpoint_dir(tmp_path: pathlib.Path) -> None:
    analysis = run(descend, tmp_path, config={"x": tune.grid_search([3, 1, 2])})
    assert [trial.config["x"] for trial in analysis.trials] == [3, 1, 2]
    assert all(trial.status == "TERMINATED" for trial in analysis.trials)
    assert analysis.best_config == {"x": 1}
    best = analysis.best_trial
    assert best is not None and best.last_result["loss"] == pytest.approx(1 + 1 / 6)
    assert best.logdir == os.path.join(tmp_path, "exp", best.name)
    found = sorted(path.name for path in pathlib.Path(best.logdir).iterdir())
    assert [f"checkpoint_{step:06d}" for step in range(1, 7)] == [one for one in found if one.startswith("checkpoint")]
    assert {"params.json", "result.json", "progress.csv"} <= set(found)
    assert json.loads(pathlib.Path(best.logdir, "params.json").read_text()) == {"x": 1}
    assert steps(best, analysis) == [1, 2, 3, 4, 5, 6]
    kept = analysis.best_checkpoint
    assert kept is not None and kept.path is not None and kept.path.endswith("checkpoint_000006")
    assert json.loads(pathlib.Path(kept, "state").read_text()) == {"step": 6}  # it is a path, too
    with kept.as_directory() as place:
        assert os.listdir(place) == ["state"]
    row = analysis.results[best.trial_id]
    keys = ["training_iteration", "time_this_iter_s", "time_total_s", "timestamp", "date", "pid", "hostname", "config"]
    assert row["training_iteration"] == 6 and set(keys) <= set(row)


def test_the_same_seed_draws_the_same_and_another_one_does_not(tmp_path: pathlib.Path) -> None:
    space = {"x": tune.uniform(0, 1), "steps": tune.choice([1]), "b": {"c": tune.lograndint(1, 1000)}}
    a, b, c = (
        [one.config for one in run(descend, tmp_path / str(i), config=space, num_samples=3, seed=seed).trials]
        for i, seed in enumerate([5, 5, 6])
    )
    assert a == b and a != c
    assert len({one["x"] for one in a}) == 3 and all(0 <= one["x"] < 1 <= one["b"]["c"] <= 1000 for one in a)


class Thing:
    """What JSON cannot hold."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_values_that_json_cannot_hold_reach_the_trials(tmp_path: pathlib.Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        assert config["shape"] in [(1, 2), (3, 4)] and config["limit"] == math.inf
        tune.report(loss=config["f"](config["thing"].size))

    space = {
        "f": lambda size: size * 10,
        "thing": Thing(4),
        "shape": tune.choice([(1, 2), (3, 4)]),
        "limit": math.inf,
    }
    analysis = run(trainable, tmp_path, config=space)
    assert analysis.best_result is not None and analysis.best_result["loss"] == 40
    assert analysis.trials[0].config["shape"] in [(1, 2), (3, 4)]


def test_sample_from_gets_the_values_of_the_others(tmp_path: pathlib.Path) -> None:
    space = {
        "a": tune.sample_from(lambda spec: spec.config.b + 1),
        "b": tune.sample_from(lambda spec: spec.config.x * 10),
        "x": tune.grid_search([1, 2]),
        "steps": tune.sample_from(lambda: 1),
        "pair": tune.sample_from(lambda spec: (spec.config.x, 0)),
    }

    def paired(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        assert config["pair"] == (config["x"], 0)
        descend(config, checkpoint_dir)

    analysis = run(paired, tmp_path, config=space)
    assert [one.config for one in analysis.trials] == [
        {"a": 11, "b": 10, "x": 1, "steps": 1, "pair": (1, 0)},
        {"a": 21, "b": 20, "x": 2, "steps": 1, "pair": (2, 0)},
    ]
    again = run(paired, tmp_path, config=space, resume="AUTO")
    assert [one.config for one in again.trials] == [one.config for one in analysis.trials]
    circle = {"x": 1, "a": tune.sample_from(lambda spec: spec.config.b), "b": tune.sample_from(lambda s: s.config.a)}
    with pytest.raises(pawl.PawlError, match="a, b need each other's values"):
        run(descend, tmp_path / "circle", config=circle)


def test_functions_may_yield_return_and_report_checkpoints(tmp_path: pathlib.Path) -> None:
    def yields(config: dict[str, Any]) -> Any:
        for i in range(3):
            yield {"loss": i}

    def returns(config: dict[str, Any]) -> dict[str, float]:
        assert tune.get_trial_name() in os.getcwd() and tune.is_session_enabled()
        return {"loss": 7, "id": tune.get_trial_id()}

    def reports(config: dict[str, Any]) -> None:
        before = tune.get_checkpoint()
        assert before is None
        tune.report({"loss": 3}, checkpoint=tune.Checkpoint.from_dict({"w": [1, 2]}))

    assert run(yields, tmp_path / "a").trials[0].last_result["loss"] == 2
    trial = run(returns, tmp_path / "b").trials[0]
    assert (trial.last_result["loss"], trial.last_result["id"]) == (7, trial.trial_id)
    kept = run(reports, tmp_path / "c").best_checkpoint
    assert kept is not None and kept.to_dict()["w"] == [1, 2]
    assert not tune.is_session_enabled()


# ---- ends


def test_stop_by_limits_and_by_a_function(tmp_path: pathlib.Path) -> None:
    limits = run(descend, tmp_path / "a", config={"x": tune.grid_search([0, 5])}, stop={"training_iteration": 2})
    assert [steps(one, limits) for one in limits.trials] == [[1, 2], [1, 2]]

    def enough(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["step"] == 3 and result["config"]["x"] == 5)

    by = run(descend, tmp_path / "b", config={"x": tune.grid_search([0, 5])}, stop=enough)
    assert [steps(one, by) for one in by.trials] == [[1, 2, 3, 4, 5, 6], [1, 2, 3]]
    assert all(one.status == "TERMINATED" for one in by.trials)


def test_a_stop_function_that_raises_ends_the_call_and_nothing_is_lost(tmp_path: pathlib.Path) -> None:
    def broken(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["nothing"])

    with pytest.raises(KeyError, match="nothing"):
        run(descend, tmp_path, config={"x": 1}, stop=broken)
    analysis = run(descend, tmp_path, config={"x": 1}, resume="AUTO")
    assert [one.status for one in analysis.trials] == ["TERMINATED"]
    assert steps(analysis.trials[0], analysis)[-1] == 6


def test_R105_a_trial_that_dies_goes_on_from_its_last_checkpoint(tmp_path: pathlib.Path) -> None:
    def dies(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        first = int(pathlib.Path(checkpoint_dir, "step").read_text()) + 1 if checkpoint_dir else 1
        for step in range(first, 5):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "step").write_text(str(step))
            tune.report(loss=1.0, step=step, first=first)
            if step == 2 and first == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    analysis = run(dies, tmp_path / "a", max_failures=1)
    trial = analysis.trials[0]
    assert (trial.status, trial.failures, trial.last_result["first"]) == ("TERMINATED", 1, 3)
    assert steps(trial, analysis) == [1, 2, 3, 4]
    with pytest.raises(tune.TuneError, match="a trial failed: .*killed by signal 9") as error:
        run(dies, tmp_path / "b")  # control: without max_failures
    assert [one.status for one in error.value.trials] == ["ERROR"]


def test_R107_a_trial_whose_newest_checkpoint_is_missing_continues_from_the_one_before(tmp_path: pathlib.Path) -> None:
    """As in a copy of the folder that was made while a command still sent the search."""

    def fails_once(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        first = int(pathlib.Path(checkpoint_dir, "step").read_text()) + 1 if checkpoint_dir else 1
        for step in range(first, 5):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "step").write_text(str(step))
            tune.report(loss=1.0, step=step, first=first)
            if step == 3 and first == 1:
                raise ValueError

    failed = run(fails_once, tmp_path, raise_on_failed_trial=False).trials[0]
    shutil.rmtree(pathlib.Path(failed.logdir, "checkpoint_000003"))
    trial = run(fails_once, tmp_path, resume="ERRORED_ONLY").trials[0]
    assert (trial.status, trial.last_result["first"], trial.last_result["step"]) == ("TERMINATED", 3, 4)


def test_an_exception_is_told_and_errored_only_tries_again(tmp_path: pathlib.Path) -> None:
    flag = tmp_path / "mended"

    def fails(config: dict[str, Any]) -> None:
        tune.report(loss=config["x"])
        if config["x"] == 1 and not os.path.exists(config["flag"]):
            raise ValueError("x is one")

    space = {"x": tune.grid_search([0, 1]), "flag": str(flag)}
    with pytest.raises(tune.TuneError, match="ValueError: x is one") as caught:
        run(fails, tmp_path, config=space)
    for error in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, tune.TuneError) and str(error) == str(caught.value)
        assert [one.name for one in error.trials] == [error.analysis.trials[1].name] == [caught.value.trials[0].name]
        trial = tune.TrialError(error.trials[0])
        again = pickle.loads(pickle.dumps(trial))
        assert (str(again), again.trial.trial_id) == (str(trial), trial.trial.trial_id) and "x is one" in str(again)
    quiet = run(fails, tmp_path, config=space, resume="AUTO", raise_on_failed_trial=False)
    assert [one.status for one in quiet.trials] == ["TERMINATED", "ERROR"]
    assert "x is one" in (pathlib.Path(quiet.trials[1].logdir) / "stderr").read_text()
    flag.touch()
    mended = run(fails, tmp_path, config=space, resume="ERRORED_ONLY")
    assert [one.status for one in mended.trials] == ["TERMINATED", "TERMINATED"]


def dies_with_odd_text(config: dict[str, Any]) -> None:
    if config["how"] == "long":
        raise RuntimeError("é" * 800)
    if config["how"] == "of a file's name":
        raise RuntimeError(os.fsdecode(b"caf\xe9"))
    os.write(2, b"caf\xe9" if config["how"] == "of bytes" else ("x" + "é" * 400).encode())
    os.kill(os.getpid(), signal.SIGKILL)


def test_R107_an_error_in_any_characters_ends_its_trial_only(tmp_path: pathlib.Path) -> None:
    space = {"how": tune.grid_search(["long", "of a file's name", "of bytes", "killed"])}
    trials = run(dies_with_odd_text, tmp_path, config=space, raise_on_failed_trial=False).trials
    assert [one.status for one in trials] == ["ERROR"] * 4
    ends = ["RuntimeError: " + "é" * 504, "RuntimeError: caf?", ": caf?", ": x" + "é" * 149]
    assert all(str(one.error).endswith(end) for one, end in zip(trials, ends, strict=True))


PROGRAM = """
    import json, os, pathlib, sys, time
    from pawl import tune

    def trainable(config, checkpoint_dir=None):
        first = json.loads(pathlib.Path(checkpoint_dir, "state").read_text())["step"] + 1 if checkpoint_dir else 1
        for step in range(first, 7):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "state").write_text(json.dumps({"step": step}))
            tune.report(loss=config["x"] / step, step=step, first=first)
            gate = pathlib.Path(config["gate"])
            while step >= 3 and config["x"] != 1 and not gate.exists():
                time.sleep(0.02)

    if __name__ == "__main__":
        folder, gate = sys.argv[1:3]
        analysis = tune.run(trainable, name="exp", local_dir=folder, metric="loss", mode="min", resume="AUTO", verbose=0,
                            config={"x": tune.grid_search([1, 2, 3]), "gate": gate}, grace_s=5,
                            resources_per_trial={"cpu": 0.25}, max_concurrent_trials=3)
        print(json.dumps([[t.config["x"], t.status, t.last_result["first"],
                           [row["step"] for row in analysis.results_of(t)]] for t in analysis.trials]))
"""


def start(tmp_path: pathlib.Path, gate: pathlib.Path) -> subprocess.Popen[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    env = os.environ | {"PYTHONPATH": HERE}
    words = [sys.executable, str(script), str(tmp_path), str(gate)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=env, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **pipes)


def ends_of(folder: pathlib.Path) -> dict[int, list[int]]:
    """x of each trial -> its steps, as its files say."""
    found = {}
    for params in folder.glob("*/params.json"):
        lines = (
            (params.parent / "result.json").read_text().splitlines() if (params.parent / "result.json").exists() else []
        )
        found[json.loads(params.read_text())["x"]] = [json.loads(line)["step"] for line in lines]
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_R128_R130_the_same_program_goes_on_after_any_stop(tmp_path: pathlib.Path, how: signal.Signals) -> None:
    gate = tmp_path / "gate"
    first = start(tmp_path, gate)
    exp = tmp_path / "exp"
    wait_until(lambda: ends_of(exp) == {1: [1, 2, 3, 4, 5, 6], 2: [1, 2, 3], 3: [1, 2, 3]}, process=first)
    wait_until(
        lambda: (exp / "journal").exists() and states(exp) == ["TERMINATED", "RUNNING", "RUNNING"], process=first
    )
    first.send_signal(how)
    _, err = first.communicate(timeout=HANG_SECONDS)
    status = {signal.SIGKILL: -9, signal.SIGINT: -2, signal.SIGTERM: 75}[how]
    assert first.returncode == status or (how == signal.SIGINT and "KeyboardInterrupt" in err), err
    gate.touch()
    second = start(tmp_path, gate)
    out, err = second.communicate(timeout=HANG_SECONDS)
    assert second.returncode == 0, err
    assert json.loads(out) == [
        [1, "TERMINATED", 1, [1, 2, 3, 4, 5, 6]],
        [2, "TERMINATED", 4, [1, 2, 3, 4, 5, 6]],
        [3, "TERMINATED", 4, [1, 2, 3, 4, 5, 6]],
    ]


def states(exp: pathlib.Path) -> list[str]:
    return [one.status for one in tune.ExperimentAnalysis(exp).trials]


def test_two_drivers_of_one_experiment_and_a_name_that_is_taken_are_refused(tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    first = start(tmp_path, gate)
    wait_until(lambda: ends_of(tmp_path / "exp").get(3, []) == [1, 2, 3], process=first)
    with pytest.raises(pawl.BusyError):
        run(descend, tmp_path, config={"x": 1}, resume="LOCAL")
    gate.touch()
    assert first.communicate(timeout=HANG_SECONDS)[0] and first.returncode == 0
    with pytest.raises(pawl.ExistsError):
        run(descend, tmp_path, config={"x": 1})
    with pytest.raises(pawl.NotFoundError):
        run(descend, tmp_path, name="other", config={"x": 1}, resume="LOCAL")


# ---- checkpoints that are kept


def test_R127_the_best_checkpoints_are_kept_by_what_is_reported(tmp_path: pathlib.Path) -> None:
    def scored(config: dict[str, Any]) -> None:
        for step, auc in enumerate([0.1, 0.9, 0.5, 0.7, 0.2, 0.8, 0.3], 1):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "auc").write_text(str(auc))
            tune.report(auc=auc, step=step)

    def kept(name: str, **options: Any) -> list[float]:
        analysis = run(scored, tmp_path, name=name, metric="auc", mode="max", **options)
        folder = pathlib.Path(analysis.trials[0].logdir)
        best = analysis.best_checkpoint
        assert best is not None
        return sorted(float((one / "auc").read_text()) for one in folder.glob("checkpoint_*"))

    # the newest stays in any case: the trial would continue from it
    assert kept("max", checkpoint_score_attr="max-auc", keep_checkpoints_num=3) == [0.3, 0.7, 0.8, 0.9]
    assert kept("plain", checkpoint_score_attr="auc", keep_checkpoints_num=3) == [0.3, 0.7, 0.8, 0.9]
    assert kept("min", checkpoint_score_attr="min-auc", keep_checkpoints_num=3) == [0.1, 0.2, 0.3]
    assert kept("newest", keep_checkpoints_num=2) == [0.3, 0.8]
    assert len(kept("all")) == 7


def test_R27_R127_a_score_that_no_trial_reports_is_an_error_at_the_first_report(tmp_path: pathlib.Path) -> None:
    for name, attr, text in (
        ("a", "acuracy", r"has no metric 'acuracy', .* it has 'loss', 'step', 'first'"),
        ("b", "min-los", r"has no metric 'los', "),
        ("c", "word", r"has no number 'word', "),
    ):
        with pytest.raises(tune.TuneError, match=text) as caught:
            run(
                descend if name != "c" else lambda config: tune.report(loss=1, word="x"),
                tmp_path,
                name=name,
                config={"x": 1},
                keep_checkpoints_num=2,
                checkpoint_score_attr=attr,
            )
        assert not caught.value.analysis.results_of(caught.value.trials[0])
    for name, attr in (("d", "time_total_s"), ("e", "min-first")):
        run(descend, tmp_path, name=name, config={"x": 1}, keep_checkpoints_num=2, checkpoint_score_attr=attr)


def test_a_checkpoint_block_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    def fails(config: dict[str, Any]) -> None:
        with tune.checkpoint_dir(step=1) as folder:
            pathlib.Path(folder, "half").write_text("x")
        tune.report(loss=1)
        with tune.checkpoint_dir(step=1) as folder:  # the same name again, and complete
            pathlib.Path(folder, "whole").write_text("x")
        tune.report(loss=2)
        with tune.checkpoint_dir(step=2) as folder:
            pathlib.Path(folder, "half").write_text("x")
            raise ValueError("in the middle")

    with pytest.raises(tune.TuneError, match="in the middle"):
        run(fails, tmp_path)
    folder = next((tmp_path / "exp").glob("*/params.json")).parent
    found = sorted(
        str(one.relative_to(folder)) for one in folder.glob("**/*") if "checkpoint" in str(one.relative_to(folder))
    )
    assert found == ["checkpoint_000001", "checkpoint_000001/whole"]


# ---- classes


class Counter(tune.Trainable):
    """Counts; a checkpoint is a dict, or a file with ``files``."""

    def setup(self, config: dict[str, Any]) -> None:
        self.total, self.rate, self.applied = 0.0, config["rate"], 0

    def step(self) -> dict[str, Any]:
        self.total += self.rate
        return {"loss": -self.total, "applied": self.applied, "done": self.iteration + 1 >= self.config.get("steps", 5)}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        if not self.config.get("files"):
            return {"total": self.total}
        path = os.path.join(checkpoint_dir, "total.txt")
        pathlib.Path(path).write_text(str(self.total))
        return path

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.total = (
            checkpoint["total"] if isinstance(checkpoint, dict) else float(pathlib.Path(checkpoint).read_text())
        )

    def apply_config(self, config: dict[str, Any]) -> None:
        self.applied += 1


def test_R124_classes_save_by_frequency_and_at_the_end(tmp_path: pathlib.Path) -> None:
    space = {"rate": 1.0, "files": tune.grid_search([False, True])}
    analysis = run(Counter, tmp_path, config=space, checkpoint_freq=2, checkpoint_at_end=True)
    for trial in analysis.trials:
        found = sorted(one.name for one in pathlib.Path(trial.logdir).glob("checkpoint_*"))
        assert found == ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]
        assert trial.last_result["loss"] == -5.0
    plain = run(Counter, tmp_path / "none", config={"rate": 1.0})
    assert not list(pathlib.Path(plain.trials[0].logdir).glob("checkpoint_*"))


class Dying(Counter):
    def step(self) -> dict[str, Any]:
        if self.iteration == 3 and not self._restored:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()


@pytest.mark.parametrize("files", [False, True])
def test_R105_classes_go_on_from_their_last_checkpoint(tmp_path: pathlib.Path, files: bool) -> None:
    analysis = run(Dying, tmp_path, config={"rate": 1.0, "files": files}, checkpoint_freq=2, max_failures=1)
    trial = analysis.trials[0]
    assert (trial.failures, trial.last_result["loss"], trial.last_result["training_iteration"]) == (1, -5.0, 5)
    assert trial.last_result["applied"] == 0  # the configuration is the same


def test_with_parameters_and_with_resources(tmp_path: pathlib.Path) -> None:
    def trainable(config: dict[str, Any], data: list[int]) -> None:
        tune.report(loss=sum(data), cpu=tune.get_trial_resources()["cpu"])

    wrapped = tune.with_resources(tune.with_parameters(trainable, data=[1, 2, 3]), {"cpu": 0.5})
    analysis = run(wrapped, tmp_path, resources_per_trial=None)
    assert analysis.best_result is not None
    assert (analysis.best_result["loss"], analysis.best_result["cpu"]) == (6, 0.5)

    class WithData(Counter):
        def setup(self, config: dict[str, Any], data: list[int] = ()) -> None:  # type: ignore[assignment,override]
            super().setup(config)
            self.rate = float(sum(data))

    analysis = run(tune.with_parameters(WithData, data=[1, 2]), tmp_path / "b", config={"rate": 0.0})
    assert analysis.best_result is not None and analysis.best_result["loss"] == -15.0


# ---- schedulers


def test_R105_asha_stops_the_worse_and_hyperband_pauses(tmp_path: pathlib.Path) -> None:
    space = {"x": tune.grid_search([0, 1, 2, 3, 4]), "steps": 9}
    asha = AsyncHyperBandScheduler(max_t=9, grace_period=1, reduction_factor=3)
    stopped = run(descend, tmp_path / "a", config=space, scheduler=asha)
    lengths = [len(stopped.results_of(one)) for one in stopped.trials]
    assert lengths[0] == 9 and min(lengths) == 1 and all(one.status == "TERMINATED" for one in stopped.trials)
    halves = HyperBandScheduler(max_t=9, reduction_factor=3)
    # One after the other: then the best, which is the first, has paused when the others get there.
    paused = run(descend, tmp_path / "b", config=space, scheduler=halves, max_concurrent_trials=1)
    assert all(one.status == "TERMINATED" for one in paused.trials)
    again = [one for one in paused.trials if one.attempts > 1]
    assert again  # these were paused, and continued from their checkpoints
    for one in again:
        assert steps(one, paused) == list(range(1, len(steps(one, paused)) + 1))
        assert one.last_result["first"] > 1
    assert paused.best_config == stopped.best_config


def odd_numbers(config: dict[str, Any]) -> None:
    value = [Fraction(3, 4), Decimal("0.5"), 10**400, Decimal("-1e400")][config["which"]]
    with tune.checkpoint_dir(step=1) as folder:
        pathlib.Path(folder, "value").write_text(repr(value))
    tune.report(loss=value)


def test_R127_every_number_of_python_is_a_score(tmp_path: pathlib.Path) -> None:
    space = {"which": tune.grid_search([0, 1, 2, 3])}
    analysis = run(odd_numbers, tmp_path, config=space, checkpoint_score_attr="min-loss", keep_checkpoints_num=1)
    largest = sys.float_info.max
    assert [one.last_result["loss"] for one in analysis.trials] == [0.75, 0.5, largest, -largest]
    assert analysis.best_config == {"which": 3}


class Learner(Counter):
    """Waits for the others at each step, so that the population stays together."""

    def step(self) -> dict[str, Any]:
        meeting = pathlib.Path(self.config["meeting"])
        (meeting / f"{self.trial_name}-{self.iteration + 1}").touch()
        wait_until(lambda: len(list(meeting.glob(f"*-{self.iteration + 1}"))) >= 4)
        return super().step()


def test_R158_population_based_training_exploits_and_applies_the_new_values(tmp_path: pathlib.Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"rate": tune.uniform(0.0, 10.0)},
        quantile_fraction=0.25,
    )
    space = {"rate": tune.grid_search([0.0, 1.0, 2.0, 9.0]), "steps": 8, "meeting": str(meeting)}
    analysis = run(Learner, tmp_path, config=space, scheduler=scheduler, max_concurrent_trials=4, checkpoint_freq=1)
    assert all(one.status == "TERMINATED" for one in analysis.trials)
    loser = analysis.trials[0]
    assert loser.attempts > 1 and loser.config["rate"] != 0.0
    rows = analysis.results_of(loser)
    leaps = [before["loss"] - after["loss"] - after["config"]["rate"] for before, after in itertools.pairwise(rows)]
    assert max(leaps) > 0.5, rows  # it has continued from another's total
    assert any(row["applied"] for row in rows)


def test_R105_R158_with_fewer_places_than_trials_population_based_training_takes_turns(tmp_path: pathlib.Path) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"rate": tune.uniform(0.0, 10.0)}
    )
    space = {"rate": tune.grid_search([0.0, 1.0, 2.0, 9.0]), "steps": 8}
    analysis = run(Counter, tmp_path, config=space, scheduler=scheduler, max_concurrent_trials=1)
    assert all(one.status == "TERMINATED" for one in analysis.trials)
    rows = sorted((row["timestamp"], n) for n, one in enumerate(analysis.trials) for row in analysis.results_of(one))
    turns = [n for n, _ in itertools.groupby(n for _, n in rows)]
    assert turns[:4] == [0, 1, 2, 3], turns  # two steps each, before the first one continues
    assert sorted(turns[4:8]) == [0, 1, 2, 3], turns
    loser = analysis.trials[0]
    assert loser.config["rate"] != 0.0 and loser.last_result["loss"] < -18  # from the best, after its first turn
    for one in analysis.trials:  # nothing is trained twice
        assert [row["training_iteration"] for row in analysis.results_of(one)][:2] == [1, 2]
        assert one.last_result["training_iteration"] == 8


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": "loss", "mode": None}, "give mode as well"),
        ({"mode": "least"}, 'mode must be "min" or "max"'),
        ({"name": "a/b"}, "name must be the name of a folder"),
        ({"local_dir": "s3://bucket"}, "upload_dir"),
        ({"resume": "MAYBE"}, "resume must be True, False or one of AUTO"),
        ({"resume": "REMOTE"}, "needs sync_config with an upload_dir"),
        ({"num_samples": 0}, "num_samples"),
        ({"scheduler": "best"}, "scheduler: expected one of"),
        ({"resources_per_trial": {"tpu": 1}}, "expected some of cpu, gpu, memory"),
        ({"resources_per_trial": {"cpu": 10000}}, "10000"),
        ({"stop": {"loss": "low"}}, "stop must be a dict of numbers"),
        ({"config": {"x": {"grid_search": []}}}, "at least one value"),
        ({"config": {"$x": 1}}, "must not begin with"),
        ({"checkpoint_score_attr": 3}, "checkpoint_score_attr"),
        ({"keep_checkpoints_num": 0}, "keep_checkpoints_num"),
        ({"sync_config": {"upload_dir": "x"}}, "sync_config must be a tune.SyncConfig"),
        ({"search_alg": 3}, "search_alg needs a method suggest"),
        ({"restore": "/nowhere/at/all"}, "neither an experiment nor a checkpoint"),
        ({"verbose": 9}, "verbose"),
        ({"checkpoint_freq": 2}, "checkpoint_freq=2 is for subclasses of tune.Trainable; the function descend makes"),
        ({"checkpoint_at_end": True}, "checkpoint_at_end=True is for subclasses"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    tmp_path: pathlib.Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(pawl.PawlError, match=text):
        run(descend, tmp_path, **({"config": {"x": 1}} | options))
    assert not (tmp_path / "exp").exists() or not list((tmp_path / "exp").glob("*/params.json"))


@pytest.mark.parametrize(
    ("trainable", "keep", "text"),
    [
        (descend, {"checkpoint_frequency": 2}, "^checkpoint_frequency=2 is for subclasses of tune.Trainable"),
        (descend, {"checkpoint_at_end": True}, "^checkpoint_at_end=True is for subclasses of tune.Trainable"),
        (Counter, {"checkpoint_frequency": -1}, "^checkpoint_frequency must be .*, received -1"),
        (Counter, {"num_to_keep": 0}, "^num_to_keep must be .*, received 0"),
        (3, {"checkpoint_frequency": 2}, "^the trainable must be a function"),
    ],
)
def test_a_tuner_names_options_as_they_were_given(
    tmp_path: pathlib.Path, trainable: Any, keep: dict[str, Any], text: str
) -> None:
    given = tune.RunConfig("exp", tmp_path, checkpoint_config=tune.CheckpointConfig(**keep), verbose=0)
    with pytest.raises(pawl.UsageError, match=text):
        tune.Tuner(trainable, run_config=given).fit()


def test_spaces_and_trainables_are_checked_where_they_are_made(tmp_path: pathlib.Path) -> None:
    for make in (
        lambda: tune.uniform(1, 0),
        lambda: tune.loguniform(0, 1),
        lambda: tune.randint(0.5, 2),  # type: ignore[arg-type]
        lambda: tune.choice([]),
        lambda: tune.quniform(0, 1, 0),
        lambda: tune.uniform("a", 1),  # type: ignore[arg-type]
        lambda: PopulationBasedTraining(),
    ):
        with pytest.raises(pawl.UsageError):
            make()
    for wrong in (3, lambda: None, lambda a, b: None, Thing):
        with pytest.raises(pawl.UsageError, match="trainable"):
            run(wrong, tmp_path)
    with pytest.raises(pawl.UsageError, match="must be a list, a domain such as"):
        run(Counter, tmp_path, scheduler=PopulationBasedTraining(hyperparam_mutations={"rate": 1}))
    for outside in (lambda: tune.report(loss=1), tune.get_checkpoint):
        with pytest.raises(pawl.UsageError, match="only be called in a trial"):
            outside()


def test_a_metric_that_is_never_reported_is_told(tmp_path: pathlib.Path) -> None:
    def trainable(config: dict[str, Any]) -> None:
        tune.report(accuracy=1)

    with pytest.raises(tune.TuneError, match="loss.*accuracy|accuracy.*loss"):
        run(trainable, tmp_path)


def test_what_cannot_be_pickled_is_named(tmp_path: pathlib.Path) -> None:
    import threading

    lock = threading.Lock()

    def trainable(config: dict[str, Any]) -> None:
        with lock:
            tune.report(loss=1)

    with pytest.raises(pawl.UnsupportedError, match="the variable 'lock' that it uses"):
        run(trainable, tmp_path)


# ---- searchers


class Halving(tune.Searcher):
    """Goes towards the better half; remembers what it learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high, self.n, self.told = 0.0, 8.0, 0, []  # type: ignore[var-annotated]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if len(self.told) < self.n:
            return None  # one after the other
        if self.n == 5:
            return self.FINISHED
        self.n += 1
        return {"x": (self.low + self.high) / 2, "steps": 1}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        assert result is not None and not error
        self.told.append(result["loss"])
        self.high = (self.low + self.high) / 2

    def restore_trial(self, trial_id: str, config: dict[str, Any], result: dict[str, Any] | None, over: bool) -> None:
        self.n += 1
        self.on_trial_complete(trial_id, result)


def test_a_searcher_is_asked_and_told(tmp_path: pathlib.Path) -> None:
    searcher = Halving()
    analysis = run(descend, tmp_path, search_alg=searcher, num_samples=9, config={"fixed": (1, 2)})
    assert [one.config["x"] for one in analysis.trials] == [4.0, 2.0, 1.0, 0.5, 0.25]
    assert (searcher.metric, searcher.mode, len(searcher.told)) == ("loss", "min", 5)
    assert all(one.config["fixed"] == (1, 2) for one in analysis.trials)
    again = Halving()
    resumed = run(descend, tmp_path, search_alg=again, num_samples=9, config={"fixed": (1, 2)}, resume=True)
    assert len(resumed.trials) == 5 and again.told == searcher.told


# ---- one that hangs


def hangs(config: dict[str, Any]) -> None:
    """At its first start it says nothing any more."""
    mark = pathlib.Path(config["mark"])
    if not mark.exists():
        mark.touch()
        time.sleep(100_000)
    tune.heartbeat()
    tune.report(loss=1)


def test_a_trial_that_says_nothing_starts_again(tmp_path: pathlib.Path) -> None:
    """P16: heartbeat_s of TuneConfig and of tune.run. More failures than the one there may be, where a start is slow."""
    grid = tune.Tuner(
        hangs,
        param_space={"mark": str(tmp_path / "mark")},
        tune_config=tune.TuneConfig(metric="loss", mode="min", heartbeat_s=5, engine="local"),
        run_config=tune.RunConfig("exp", tmp_path, failure_config=tune.FailureConfig(max_failures=-1), verbose=0),
    ).fit()
    [one] = grid
    assert one.trial.status == "TERMINATED" and one.trial.failures >= 1
    assert "no sign of life for 5 s" in pathlib.Path(one.path, "error.txt").read_text()
    with pytest.raises(pawl.UsageError, match="heartbeat_s"):
        run(hangs, tmp_path, name="wrong", heartbeat_s=-1)


# ---- the newer names


def test_a_tuner_gives_a_grid_of_results_and_goes_on(tmp_path: pathlib.Path) -> None:
    flag = tmp_path / "mended"

    def trainable(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        descend(config, checkpoint_dir)
        if config["x"] == 2 and not config["flag"].exists():
            raise ValueError("x is two")

    space = {"x": tune.grid_search([3, 1, 2]), "flag": flag}
    tuner = tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
        run_config=tune.RunConfig(
            "exp", tmp_path, checkpoint_config=tune.CheckpointConfig(2, "step", "max"), verbose=0
        ),
    )
    grid = tuner.fit()
    assert (len(grid), grid.num_errors, grid.num_terminated) == (3, 1, 2)
    assert "x is two" in str(grid.errors[0])
    best = grid.get_best_result()
    assert best.config["x"] == 1 and best.metrics["step"] == 6 and best.error is None
    assert best.checkpoint is not None and len(best.best_checkpoints) == 2
    assert best.get_best_checkpoint("loss", "min") == best.checkpoint
    assert tune.Tuner.can_restore(tmp_path / "exp") and not tune.Tuner.can_restore(tmp_path)
    flag.touch()
    again = tune.Tuner.restore(tmp_path / "exp", trainable, resume_errored=True, param_space=space)
    again._run.verbose = 0
    assert [one.trial.status for one in again.fit()] == ["TERMINATED"] * 3
    with pytest.raises(pawl.NotFoundError):
        tune.Tuner.restore(tmp_path, trainable)


@pytest.mark.parametrize("own", [False, True])
def test_a_restored_search_stops_as_it_began(tmp_path: pathlib.Path, own: bool) -> None:
    """By a stopper of tune.stopper, which is in its folder; one of the program's own is to be given again."""

    class Own(tune.stopper.MaximumIterationStopper):
        pass

    def trainable(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        for step in range(1, 100):
            tune.report(loss=1, step=step)
            if not config["flag"].exists():
                raise ValueError("not yet")

    flag = tmp_path / "flag"
    kind = Own if own else tune.stopper.MaximumIterationStopper
    run_config = tune.RunConfig("exp", tmp_path, stop=tune.stopper.CombinedStopper(kind(3)), verbose=0)
    space = {"flag": flag}
    assert tune.Tuner(trainable, param_space=space, run_config=run_config).fit().num_errors == 1
    flag.touch()
    if own:
        with pytest.raises(pawl.UsageError, match="exp began with a CombinedStopper.* give it as stop="):
            tune.Tuner.restore(tmp_path / "exp", trainable, True, space)
    with pytest.raises(pawl.UsageError, match="limits"):
        tune.Tuner.restore(tmp_path / "exp", trainable, True, space, stop={"step": 3})  # type: ignore[arg-type]
    again = tune.Tuner.restore(tmp_path / "exp", trainable, True, space, stop=Own(3) if own else None)
    again._run.verbose = 0
    [one] = again.fit()
    assert one.trial.status == "TERMINATED" and one.metrics["training_iteration"] == 3


# ---- names of older versions of Ray Tune


def test_checkpoints_and_trials_answer_as_those_of_older_versions_do(tmp_path: pathlib.Path) -> None:
    analysis = run(descend, tmp_path, config={"x": 1, "steps": 2})
    (trial,) = analysis.trials
    assert trial.has_checkpoint() and trial.checkpoint is not None
    newest = os.path.join(trial.logdir, "checkpoint_000002")
    assert trial.checkpoint.value == str(trial.checkpoint) == f"{trial.checkpoint}" == newest
    assert str(analysis.best_checkpoint) == newest and os.path.isdir(str(analysis.best_checkpoint))
    assert tune.Checkpoint.from_dict({"a": 1}).value is None
    paths = [(os.path.join(trial.logdir, f"checkpoint_00000{n}"), 1 + 1 / n) for n in (1, 2)]
    assert analysis.get_trial_checkpoints_paths(trial.logdir) == paths
    assert analysis.get_trial_checkpoints_paths(trial, "step") == [(path, n) for n, (path, _) in enumerate(paths, 1)]
    assert analysis.get_best_checkpoint(trial.logdir) == analysis.get_last_checkpoint(trial.logdir) == trial.checkpoint
    with pytest.raises(pawl.NotFoundError, match="is not the folder of a trial"):
        analysis.get_trial_checkpoints_paths(str(tmp_path))
    without = run(lambda config: tune.report(loss=1), tmp_path, name="without", config={})
    assert not without.trials[0].has_checkpoint()


@pytest.mark.parametrize("metric", ["val/acc", "val.acc"])  # nested, and flat
def test_a_nested_metric_selects_rows_and_is_shown_with_paths(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))

    def rises(config: dict[str, Any]) -> None:
        for step, accuracy in enumerate((0.25, 0.75, math.nan, 0.5), 1):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "state").write_text("")
            tune.report({"val": {"acc": accuracy}} if metric == "val/acc" else {metric: accuracy})

    analysis = run(rises, tmp_path, config={"x": tune.grid_search([1, 2])}, metric=metric, mode="max")
    for trial in analysis.trials:
        values = [value for _, value in analysis.get_trial_checkpoints_paths(trial, metric)]
        assert values[:2] + values[3:] == [0.25, 0.75, 0.5] and math.isnan(values[2])
    grid = tune.ResultGrid(analysis)
    assert [row[metric] for row in grid.get_dataframe(metric, "max")] == [0.75, 0.75]
    assert [row[metric] for row in analysis.dataframe(metric, "min")] == [0.25, 0.25]


def test_frames_of_all_trials_are_fetched_by_a_method_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pandas need not be there for the test: a frame is what it is made of."""
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=list))
    analysis = run(descend, tmp_path, config={"x": tune.grid_search([1, 2]), "steps": 2})
    frames = analysis.fetch_trial_dataframes()
    assert {folder: [row["step"] for row in rows] for folder, rows in frames.items()} == {
        trial.logdir: [1, 2] for trial in analysis.trials
    }


def test_a_timeout_stopper_continues_where_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of ours: 40 of its 100 seconds are over when the search is interrupted; after it 60 are left, however
    long that was."""
    now = [1000.0]
    monkeypatch.setattr("pawl.tune.stopper._now", lambda: now[0])

    class Clock(tune.stopper.Stopper):
        """Each report takes ten seconds; the fifth one is interrupted."""

        def __init__(self, interrupted: bool) -> None:
            self.interrupted, self.n = interrupted, 0

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.n += 1
            if self.interrupted and self.n == 5:
                raise KeyboardInterrupt
            now[0] += 0 if self.interrupted and self.n > 5 else 10
            return False

    def search(interrupted: bool) -> tuple[Clock, tune.ExperimentAnalysis]:
        clock = Clock(interrupted)
        now[0] += 100_000  # the time between the making of a stopper and its search does not count either
        stop: Any = [clock, tune.stopper.TimeoutStopper(100)]
        now[0] += 100_000
        options: dict[str, Any] = {"config": {"x": 1, "steps": 100}, "grace_s": 0.0, "resume": "AUTO"}
        return clock, run(descend, tmp_path, stop=stop, **options)

    with pytest.raises(KeyboardInterrupt):
        search(True)
    clock, analysis = search(False)
    assert clock.n == 6 and [one.status for one in analysis.trials] == ["TERMINATED"]
    fresh = tune.stopper.TimeoutStopper(100)
    for state in (None, -1, float("nan"), "x", [1], {}):
        fresh.set_state(state)
        assert not fresh.stop_all() and fresh.get_state() == 0
