# SPDX-License-Identifier: Apache-2.0
"""The results of an experiment: its trials, the best of them, and their checkpoints."""

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
    """One trial of an experiment.

    Attributes:
        number: Its number, from 0.
        trial_id: Its id.
        name: Name of its folder.
        config: Its configuration.
        status: "PENDING", "RUNNING", "PAUSED", "TERMINATED" or "ERROR".
        last_result: The last result, by name.
        checkpoint: The newest checkpoint, or None.
        logdir: Path of its folder.
        error: Why it has failed, or None.
        failures: How often it has failed.
        attempts: How often it was started.
        host: The machine that it runs on; None if it is not known.
    """

    number: int
    trial_id: str
    name: str
    config: dict[str, Any]
    status: str
    last_result: dict[str, Any]
    checkpoint: Checkpoint | None
    logdir: str
    error: str | None
    failures: int
    attempts: int
    host: str | None = None

    @property
    def local_path(self) -> str:
        """Path of the trial's folder."""
        return self.logdir

    path = local_path

    @property
    def trial_name(self) -> str:
        """Name of the trial's folder."""
        return self.name

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint.

        Returns:
            True if there is one.
        """
        return self.checkpoint is not None

    def __repr__(self) -> str:
        return f"Trial({self.name!r}, {self.status})"

    def __hash__(self) -> int:
        return hash(self.logdir)


def trial_of(folder: str, row: Mapping[str, Any], objects: Objects) -> Trial:
    """Makes a Trial from the runner's description."""
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
    """The experiment in a folder, as it was when this object was made. It may still run.

    Attributes:
        experiment_path: Its folder. A remote place (a URL, user@host:path) is first copied to the
            user's cache. Later calls update the copy.
        default_metric: Metric for what is best. Default: None, the experiment's.
        default_mode: "min" or "max". Default: None, the experiment's.
        objects: Values that JSON cannot hold, by name; ``tune.run`` gives them.
        trials: The trials.
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
            raise UsageError('the best needs metric and mode ("min" or "max"): give both, here or to tune.run')
        if mode not in ("min", "max"):
            raise UsageError(f'mode must be "min" or "max", received {mode!r}')
        return metric, mode

    def get_best_trial(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last", filter_nan_and_inf: bool = True
    ) -> Trial | None:
        """The best trial.

        Args:
            metric: Name of the metric. Default: None, ``default_metric``.
            mode: "min" or "max". Default: None, ``default_mode``.
            scope: By which results: "last", "avg", "last-5-avg", "last-10-avg", or "all" for the
                best of them. Default: "last".
            filter_nan_and_inf: Accepted as in Ray. A value that is not finite is never best.

        Returns:
            The trial; None if none has reported the metric.

        Raises:
            UsageError: There is no metric or mode.
        """
        by = self._by(metric, mode)
        with self._opened() as experiment:
            found = experiment.best(*by, scope)
        return None if found is None else self.trials[found[0]]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """The configuration of the best trial.

        Args:
            metric: As in ``get_best_trial``.
            mode: As in ``get_best_trial``.
            scope: As in ``get_best_trial``.

        Returns:
            The configuration, or None.

        Raises:
            UsageError: There is no metric or mode.
        """
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str | None:
        """The folder of the best trial.

        Args:
            metric: As in ``get_best_trial``.
            mode: As in ``get_best_trial``.
            scope: As in ``get_best_trial``.

        Returns:
            Its path, or None.

        Raises:
            UsageError: There is no metric or mode.
        """
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.logdir

    def trial_of(self, trial: Trial | str | os.PathLike[str]) -> Trial:
        """A trial by its folder.

        Args:
            trial: The folder, ``trial.logdir``; or the trial itself.

        Returns:
            The trial.

        Raises:
            NotFoundError: It is not the folder of a trial.
        """
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
        """Of the kept checkpoints of a trial, the one whose result was best.

        Args:
            trial: The trial, or its folder.
            metric: As in ``get_best_trial``.
            mode: As in ``get_best_trial``.

        Returns:
            The checkpoint, or None.

        Raises:
            UsageError: There is no metric or mode.
            NotFoundError: There is no such trial.
        """
        by, one = self._by(metric, mode), self.trial_of(trial)
        with self._opened() as experiment:
            name = experiment.best_checkpoint(one.number, *by)
        return None if name is None else Checkpoint(os.path.join(one.logdir, name))

    def get_last_checkpoint(
        self, trial: Trial | str | None = None, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint of a trial.

        Args:
            trial: The trial, or its folder. Default: None, the best one.
            metric: For the best one, as in ``get_best_trial``.
            mode: For the best one, as in ``get_best_trial``.

        Returns:
            The checkpoint, or None.

        Raises:
            NotFoundError: There is no such trial.
        """
        one = self.trial_of(trial) if trial is not None else self.get_best_trial(metric, mode)
        return None if one is None else one.checkpoint

    def checkpoints_of(self, trial: Trial) -> list[tuple[Checkpoint, int]]:
        """The checkpoints of a trial that are kept.

        Args:
            trial: The trial.

        Returns:
            Each with its iteration, the oldest first.
        """
        with self._opened() as experiment:
            rows = experiment.checkpoints(trial.number)
        return [(Checkpoint(os.path.join(trial.logdir, name)), iteration) for name, iteration, *_ in rows]

    def results_of_checkpoints(self, trial: Trial) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints of a trial that are kept, with their results.

        Args:
            trial: The trial.

        Returns:
            Each with its result, the oldest first. That of a clone (population based training) is a
            result of the trial that it was cloned from.
        """
        with self._opened() as experiment:
            rows = experiment.checkpoints(trial.number)
        results = {owner: self.results_of(self.trials[owner]) for *_, owner, _ in rows if owner < len(self.trials)}
        found = []
        for name, _, _, owner, number in rows:
            lines = results.get(owner, [])[max(number - 1, 0) : number]
            found.append((Checkpoint(os.path.join(trial.logdir, name)), lines[0] if lines else {}))
        return found

    def get_trial_checkpoints_paths(self, trial: Trial | str, metric: str | None = None) -> list[tuple[str, Any]]:
        """Paths of the checkpoints of a trial that are kept.

        Args:
            trial: The trial, or its folder.
            metric: Name of a metric. Default: None, ``default_metric``, else the iteration.

        Returns:
            Each with the value of the metric, the oldest first.

        Raises:
            NotFoundError: There is no such trial.
        """
        trial = self.trial_of(trial)
        name = metric or self.default_metric or "training_iteration"
        return [(os.fspath(one), _json.value_at(result, name)) for one, result in self.results_of_checkpoints(trial)]

    @property
    def best_trial(self) -> Trial | None:
        """The best trial by the experiment's metric, or None."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any] | None:
        """The configuration of the best trial, or None."""
        return self.get_best_config()

    @property
    def best_logdir(self) -> str | None:
        """The folder of the best trial, or None."""
        return self.get_best_logdir()

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of the best trial, or None."""
        best = self.get_best_trial()
        return None if best is None else self.get_best_checkpoint(best)

    @property
    def best_result(self) -> dict[str, Any] | None:
        """The last result of the best trial, or None."""
        best = self.get_best_trial()
        return None if best is None else best.last_result

    # ---- all ----

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each trial, by its id."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    def results_of(self, trial: Trial) -> list[dict[str, Any]]:
        """All results of a trial, from its result.json.

        Args:
            trial: The trial.

        Returns:
            The results, oldest first.
        """
        try:
            with open(os.path.join(trial.logdir, "result.json"), encoding="utf-8") as file:
                return [_json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """The configurations of all trials.

        Returns:
            Each by the trial's folder.
        """
        return {trial.logdir: trial.config for trial in self.trials}

    def stats(self) -> dict[str, Any]:
        """How many trials are in which state, and how long they have trained.

        Returns:
            "trials", a number for each state, and "time_total_s" in seconds.
        """
        states = [trial.status for trial in self.trials]
        total = sum(float(trial.last_result.get("time_total_s") or 0.0) for trial in self.trials)
        return {"trials": len(states), **{one: states.count(one) for one in sorted(set(states))}, "time_total_s": total}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """A table of the trials, by pandas.

        Args:
            metric: Take of each trial the result that is best by this metric. Default: None, the
                last result.
            mode: "min" or "max". Default: None, the experiment's, else "max".

        Returns:
            A DataFrame with a row for each trial; configurations are ``config/...``, folders
            ``logdir``.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        pandas = _pandas("dataframe")
        return pandas.DataFrame([row for trial in self.trials if (row := self._row(trial, metric, mode))])

    def _row(self, trial: Trial, metric: str | None, mode: str | None) -> dict[str, Any]:
        row = trial.last_result
        if metric is not None:
            by, order = self._by(metric, mode or self.default_mode or "max")
            sign = -1 if order == "max" else 1
            rows = [(_json.value_at(one, by), one) for one in self.results_of(trial)]
            rows = [(value, one) for value, one in rows if isinstance(value, int | float)]
            row = min(rows, key=lambda pair: (pair[0] != pair[0], sign * pair[0]), default=(0, {}))[1]
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
        """The same as ``trial_dataframes``.

        Returns:
            A DataFrame for each trial, by its folder.

        Raises:
            UnsupportedError: pandas is not installed.
        """
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
