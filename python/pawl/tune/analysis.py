# SPDX-License-Identifier: Apache-2.0
"""What an experiment has given: its trials, their results, the best of them and their checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _checks, _pawl
from .._pawl import NotFoundError, UnsupportedError, UsageError
from . import _json, places
from .session import Checkpoint
from .space import Objects

READ = 4  # of enum tune_resume


@dataclass(frozen=True)
class Trial:
    """One trial. ``status``: PENDING, RUNNING, PAUSED, TERMINATED or ERROR."""

    number: int
    trial_id: str
    name: str
    config: dict[str, Any]
    status: str
    last_result: dict[str, Any]
    checkpoint: Checkpoint | None  # the newest
    logdir: str
    error: str | None
    failures: int
    attempts: int
    host: str | None = None

    @property
    def local_path(self) -> str:
        return self.logdir

    path = local_path

    @property
    def trial_name(self) -> str:
        return self.name

    def has_checkpoint(self) -> bool:
        return self.checkpoint is not None

    def __repr__(self) -> str:
        return f"Trial({self.name!r}, {self.status})"

    def __hash__(self) -> int:
        return hash(self.logdir)


def trial_of(folder: str, row: Mapping[str, Any], objects: Objects) -> Trial:
    """A trial as the runner tells of it."""
    logdir = os.path.join(folder, row["name"])
    return Trial(
        row["number"],
        row["id"],
        row["name"],
        objects.restore(json.loads(row["config"])),
        row["state"],
        {} if row["result"] is None else _json.loads(row["result"]),
        None if row["checkpoint"] is None else Checkpoint(os.path.join(logdir, row["checkpoint"])),
        logdir,
        row["error"],
        row["failures"],
        row["attempts"],
        row["host"],
    )


def _pandas(what: str) -> Any:
    try:
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise UnsupportedError(f"{what} needs pandas, which is not installed; Trial.last_result has the rows") from None
    return pandas


@dataclass
class ExperimentAnalysis:
    """The experiment in a folder, as it is when this is made; also of one that still runs.

    A place elsewhere (a URL, user@host:path) is copied to the user's cache first, and brought up to date there by the
    next one. ``metric`` and ``mode`` are those of the experiment, unless others are given.
    """

    experiment_path: str | os.PathLike[str]
    default_metric: str | None = None
    default_mode: str | None = None
    objects: Objects = field(default_factory=Objects, repr=False)
    trials: list[Trial] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        given = _checks.path("experiment_path", self.experiment_path)
        place = places.to_read(given) if places.is_elsewhere(given) else os.path.abspath(given)
        if os.path.isfile(place):
            place = os.path.dirname(place)
        self.experiment_path = place
        if self.default_mode not in (None, "min", "max"):
            raise UsageError(f'default_mode must be "min" or "max", received {self.default_mode!r}')
        with self._opened() as experiment:
            self.spec: dict[str, Any] = json.loads(experiment.about()[0])
            n = experiment.counts()["trials"]
            self.trials = [trial_of(place, experiment.trial(i), self.objects) for i in range(n)]
        self.default_metric = self.default_metric or self.spec.get("metric")
        self.default_mode = self.default_mode or self.spec.get("mode")

    @contextlib.contextmanager
    def _opened(self) -> Generator[_pawl.Experiment, None, None]:
        experiment = _pawl.Experiment(None, os.fspath(self.experiment_path), resume=READ)
        try:
            yield experiment
        finally:
            experiment.close()

    # ---- the best ----

    def _by(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None or mode is None:
            raise UsageError('which is best? give metric and mode ("min" or "max"), here or to tune.run')
        if mode not in ("min", "max"):
            raise UsageError(f'mode must be "min" or "max", received {mode!r}')
        return metric, mode

    def get_best_trial(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last", filter_nan_and_inf: bool = True
    ) -> Trial | None:
        """The best by its last result, or by ``scope``: "last", "avg", "last-5-avg", "last-10-avg", "all" (the best one
        of all results). None where no trial has reported the metric. What is not finite is never best."""
        by = self._by(metric, mode)
        with self._opened() as experiment:
            found = experiment.best(*by, scope)
        return None if found is None else self.trials[found[0]]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str | None:
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.logdir

    def trial_of(self, trial: Trial | str | os.PathLike[str]) -> Trial:
        """The trial itself, or the one whose folder is named: ``trial.logdir``."""
        if isinstance(trial, Trial):
            return trial
        folder = os.path.abspath(_checks.path("trial", trial))
        for one in self.trials:
            if one.logdir == folder:
                return one
        raise NotFoundError(f"{folder} is not the folder of a trial of {self.experiment_path}")

    def get_best_checkpoint(
        self, trial: Trial | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Of the trial's checkpoints that are kept, the one whose result was best. ``trial``: or its folder."""
        by, one = self._by(metric, mode), self.trial_of(trial)
        with self._opened() as experiment:
            name = experiment.best_checkpoint(one.number, *by)
        return None if name is None else Checkpoint(os.path.join(one.logdir, name))

    def get_last_checkpoint(
        self, trial: Trial | str | None = None, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """The newest of a trial; of the best one, where none is named."""
        one = self.trial_of(trial) if trial is not None else self.get_best_trial(metric, mode)
        return None if one is None else one.checkpoint

    def checkpoints_of(self, trial: Trial) -> list[tuple[Checkpoint, int]]:
        """Those of a trial that are kept, the oldest first, with the iteration of each."""
        with self._opened() as experiment:
            rows = experiment.checkpoints(trial.number)
        return [(Checkpoint(os.path.join(trial.logdir, name)), iteration) for name, iteration, _ in rows]

    def get_trial_checkpoints_paths(self, trial: Trial | str, metric: str | None = None) -> list[tuple[str, Any]]:
        """(path, value of the metric) of each checkpoint that is kept, the oldest first. ``trial``: or its folder."""
        trial = self.trial_of(trial)
        name = metric or self.default_metric or "training_iteration"
        values = {row.get("training_iteration"): row.get(name) for row in self.results_of(trial)}
        return [(os.fspath(one), values.get(iteration)) for one, iteration in self.checkpoints_of(trial)]

    @property
    def best_trial(self) -> Trial | None:
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any] | None:
        return self.get_best_config()

    @property
    def best_logdir(self) -> str | None:
        return self.get_best_logdir()

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        best = self.get_best_trial()
        return None if best is None else self.get_best_checkpoint(best)

    @property
    def best_result(self) -> dict[str, Any] | None:
        best = self.get_best_trial()
        return None if best is None else best.last_result

    # ---- all ----

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by its id."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    def results_of(self, trial: Trial) -> list[dict[str, Any]]:
        """All results of a trial, as its result.json has them."""
        try:
            with open(os.path.join(trial.logdir, "result.json"), encoding="utf-8") as file:
                return [_json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """The configuration of each trial, by its folder."""
        return {trial.logdir: trial.config for trial in self.trials}

    def stats(self) -> dict[str, Any]:
        """How many trials are in which state, and how long they have trained."""
        states = [trial.status for trial in self.trials]
        total = sum(float(trial.last_result.get("time_total_s") or 0.0) for trial in self.trials)
        return {"trials": len(states), **{one: states.count(one) for one in sorted(set(states))}, "time_total_s": total}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """A row for each trial, as a DataFrame of pandas: its last result, or where a metric is named the one that is
        best by it; configurations as ``config/...``, folders as ``logdir``."""
        pandas = _pandas("dataframe")
        return pandas.DataFrame([row for trial in self.trials if (row := self._row(trial, metric, mode))])

    def _row(self, trial: Trial, metric: str | None, mode: str | None) -> dict[str, Any]:
        row = trial.last_result
        if metric is not None:
            by, order = self._by(metric, mode or self.default_mode or "max")
            sign = -1 if order == "max" else 1
            rows = [one for one in self.results_of(trial) if isinstance(one.get(by), int | float)]
            row = min(rows, key=lambda one: (one[by] != one[by], sign * one[by]), default={})
        flat = flatten({key: value for key, value in row.items() if key != "config"})
        return flat and {**flat, **flatten({"config": trial.config}), "logdir": trial.logdir}

    @property
    def results_df(self) -> Any:
        """A row for each trial, by its id."""
        pandas = _pandas("results_df")
        return pandas.DataFrame.from_dict(
            {one.trial_id: self._row(one, None, None) for one in self.trials}, orient="index"
        )

    @property
    def trial_dataframes(self) -> dict[str, Any]:
        """All results of each trial, by its folder."""
        pandas = _pandas("trial_dataframes")
        return {
            trial.logdir: pandas.DataFrame([flatten(row) for row in self.results_of(trial)]) for trial in self.trials
        }

    def fetch_trial_dataframes(self) -> dict[str, Any]:
        """The same as ``trial_dataframes``."""
        return self.trial_dataframes

    @property
    def best_dataframe(self) -> Any:
        """All results of the best trial."""
        best = self.get_best_trial()
        return None if best is None else self.trial_dataframes[best.logdir]


def flatten(value: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested dicts as one, with their names joined by /."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            found |= flatten(inner, f"{above}{key}/")
        else:
            found[f"{above}{key}"] = inner
    return found
