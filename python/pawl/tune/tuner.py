# SPDX-License-Identifier: Apache-2.0
"""Tuner and ResultGrid: the newer interface to ``tune.run``.

grid = Tuner(train, param_space={"lr": tune.loguniform(1e-4, 1e-1)},
             tune_config=TuneConfig(metric="loss", mode="min", num_samples=16),
             run_config=RunConfig(name="search", storage_path="results")).fit()
print(grid.get_best_result().config)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _checks
from .._pawl import NotFoundError, UsageError
from ..options import Duration
from ..syncer import SyncConfig
from . import driver, places, search, spec, stopper
from .analysis import ExperimentAnalysis, Trial
from .progress import Progress
from .schedulers import TrialScheduler
from .session import Checkpoint
from .stopper import Stopper


@dataclass
class TuneConfig:
    """How to search. The attributes are arguments of ``tune.run``, with the same defaults.

    Attributes:
        metric: Name of the metric that the search optimizes.
        mode: "min" or "max".
        search_alg: A searcher.
        scheduler: A scheduler or its name.
        num_samples: How often the grids are run and the values drawn.
        max_concurrent_trials: How many trials run at a time.
        time_budget_s: Everything ends after this duration: seconds, ``"5min"`` or a timedelta.
        seed: Seed of the draws.
        engine: "local" or "ray".
        heartbeat_s: Duration without a sign of life that is a failure; 0 means no limit.
    """

    metric: str | None = None
    mode: str | None = None
    search_alg: Any = None
    scheduler: TrialScheduler | str | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: Duration | None = None
    seed: int = 0
    engine: str | None = None
    heartbeat_s: Duration = 0.0


@dataclass
class FailureConfig:
    """What to do about failures.

    Attributes:
        max_failures: How often a trial starts again; -1 means no limit. Default: 0.
        fail_fast: The first trial that fails ends all. Default: False.
    """

    max_failures: int = 0
    fail_fast: bool = False


@dataclass
class CheckpointConfig:
    """Which checkpoints of a trial are kept, and how often a class makes one.

    Attributes:
        num_to_keep: Number of checkpoints to keep. Default: None, all.
        checkpoint_score_attribute: Keep the best by this metric. Default: None, the newest.
        checkpoint_score_order: "max" or "min". Default: "max".
        checkpoint_frequency: For a class: steps between two checkpoints. Default: 0, no
            checkpoints.
        checkpoint_at_end: For a class: make a checkpoint at the end. Default: None, no.

    Raises:
        UsageError: The order is neither "max" nor "min".
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str | None = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_score_order not in ("max", "min"):
            raise UsageError(
                f'checkpoint_score_order must be either "max" or "min", received {self.checkpoint_score_order!r}'
            )


@dataclass
class RunConfig:
    """Where and how the experiment is stored.

    Attributes:
        name: Name of its folder. Default: None, made of the trainable's name and the time.
        storage_path: Folder that contains it, or a URL that it is synced to. Default: None,
            ~/ray_results.
        stop: As in ``tune.run``. Default: None.
        failure_config: What to do about failures.
        checkpoint_config: Which checkpoints are kept.
        sync_config: Where the experiment is copied to. Default: None.
        verbose: As in ``tune.run``. Default: 1.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    stop: Mapping[str, float] | Callable[[str, dict[str, Any]], bool] | Stopper | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    sync_config: SyncConfig | None = None
    verbose: int = 1


@dataclass(frozen=True)
class Result:
    """One trial of the grid.

    Attributes:
        trial: The trial.
        analysis: The experiment.
    """

    trial: Trial
    analysis: ExperimentAnalysis = field(repr=False)

    @property
    def metrics(self) -> dict[str, Any]:
        """The last reported metrics."""
        return self.trial.last_result

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the trial."""
        return self.trial.config

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, or None."""
        return self.trial.checkpoint

    @property
    def path(self) -> str:
        """Path of the trial's folder."""
        return self.trial.logdir

    @property
    def error(self) -> driver.TrialError | None:
        """Why the trial has failed, or None."""
        return None if self.trial.status != "ERROR" else driver.TrialError(self.trial)

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The kept checkpoints, the oldest first, each with its result."""
        return self.analysis.results_of_checkpoints(self.trial)

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """The kept checkpoint whose result was best.

        Args:
            metric: Name of the metric.
            mode: "min" or "max".

        Returns:
            The checkpoint, or None.

        Raises:
            UsageError: The mode is neither "min" nor "max".
        """
        return self.analysis.get_best_checkpoint(self.trial, metric, mode)

    @property
    def metrics_dataframe(self) -> Any:
        """A row for each result, as a DataFrame of pandas."""
        return self.analysis.trial_dataframes[self.trial.logdir]


class ResultGrid:
    """The results of a Tuner, one for each trial. It has the methods of a list.

    Args:
        analysis: The experiment.
    """

    def __init__(self, analysis: ExperimentAnalysis) -> None:
        self._analysis = analysis

    def __len__(self) -> int:
        return len(self._analysis.trials)

    def __getitem__(self, i: int) -> Result:
        return Result(self._analysis.trials[i], self._analysis)

    def __iter__(self) -> Iterator[Result]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"ResultGrid({self.experiment_path!r}, {len(self)} trials)"

    @property
    def experiment_path(self) -> str:
        """Path of the experiment's folder."""
        return str(self._analysis.experiment_path)

    @property
    def errors(self) -> list[driver.TrialError]:
        """The errors of the trials that have failed."""
        return [one.error for one in self if one.error is not None]

    @property
    def num_errors(self) -> int:
        """Number of trials that have failed."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """Number of trials that have ended without a failure."""
        return sum(trial.status == "TERMINATED" for trial in self._analysis.trials)

    def get_best_result(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Result:
        """The best trial.

        Args:
            metric: As in ``ExperimentAnalysis.get_best_trial``.
            mode: As in ``ExperimentAnalysis.get_best_trial``.
            scope: As in ``ExperimentAnalysis.get_best_trial``.

        Returns:
            Its result.

        Raises:
            NotFoundError: No trial has reported a finite value of the metric.
            UsageError: There is no metric or mode.
        """
        best = self._analysis.get_best_trial(metric, mode, scope)
        if best is None:
            raise NotFoundError(f"{self.experiment_path}: no trial has reported a finite value of that metric")
        return Result(best, self._analysis)

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> Any:
        """A table of the trials, by pandas.

        Args:
            filter_metric: As ``metric`` in ``ExperimentAnalysis.dataframe``.
            filter_mode: As ``mode`` in ``ExperimentAnalysis.dataframe``.

        Returns:
            A DataFrame with a row for each trial.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return self._analysis.dataframe(filter_metric, filter_mode)


def _score(keep: Any) -> str | None:
    attribute = keep.checkpoint_score_attribute
    return None if attribute is None else f"{keep.checkpoint_score_order or 'max'}-{attribute}"


class Tuner:
    """Runs a trainable over a space.

    Args:
        trainable: As in ``tune.run``.
        param_space: The configuration, as ``config`` in ``tune.run``. Default: None, empty.
        tune_config: How to search. Default: None, a ``TuneConfig()``.
        run_config: Where to store; also one of pawl.train. Default: None, a ``RunConfig()``.
    """

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: Any = None,
    ) -> None:
        self._trainable, self._space = trainable, param_space
        self._tune, self._run = tune_config or TuneConfig(), run_config or RunConfig()
        self._again: tuple[str, bool, str | None] | None = None
        self._stopper: Stopper | None = None
        self._options: dict[str, bool | None] = {}  # of restore
        self._allow_pickle = False

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str]) -> bool:
        """Whether there is an experiment to continue.

        Args:
            path: As in ``restore``.

        Returns:
            True if there is one. For a remote place, True if it holds something that may be one.
        """
        place = _checks.path("path", path)
        return places.can_continue(place) if places.is_elsewhere(place) else places.is_experiment(place)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any,
        resume_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        *,
        engine: str | None = None,
        stop: Callable[[str, dict[str, Any]], bool] | Stopper | None = None,
        sync_config: SyncConfig | None = None,
        fail_fast: bool | None = None,
        fork: bool | None = None,
        allow_pickle: bool = False,
        verbose: int = 1,
    ) -> Tuner:
        """The experiment in a folder, to continue with ``fit``.

        Args:
            path: A folder, or a place that the experiment was synced to. From a place it is fetched
                to ~/ray_results unless it exists there, and synced to the place again.
            trainable: The trainable that it began with.
            resume_errored: Also start failed trials again. Default: False.
            param_space: The space that it began with. Needed if that has values that JSON cannot
                hold. Default: None.
            engine: As in ``tune.run``. It may differ from the earlier one. Default: None.
            stop: The stopper that it began with. Needed if that was a function or a class of the
                program. Those of ``tune.stopper`` continue by themselves. Default: None.
            sync_config: Where the experiment is copied to. Default: None, the place in ``path``; a
                folder is copied nowhere.
            fail_fast: As in ``tune.run``. Default: None, as it began.
            fork: As in ``tune.run``. Default: None, as it began.
            allow_pickle: As in ``tune.run``. Pickles run code, so the folder does not decide this.
                Default: False.
            verbose: As in ``tune.run``. Default: 1.

        Returns:
            A Tuner.

        Raises:
            NotFoundError: There is no experiment.
            UsageError: ``stop`` is missing, or has other limits. Two places were given. Or only
                the program can continue the experiment: a searcher still has to suggest
                configurations, or a function changes those of a population.
                ``tune.run(..., resume="AUTO")`` continues it.
        """
        place, sync = _checks.path("path", path), sync_config
        if places.is_elsewhere(place):
            if sync is not None:
                raise UsageError(f"sync_config: path is {place!r}, which the experiment is synced to: give one place")
            folder, sync = places.to_continue(place, _checks.path("local_dir", "~/ray_results"))
        else:
            folder = os.path.abspath(place)
        if not places.is_experiment(folder):
            raise NotFoundError(f"{folder} has no experiment to continue")
        search.check_again(folder)
        made = cls(trainable, param_space=param_space, run_config=RunConfig(sync_config=sync, verbose=verbose))
        made._again = folder, resume_errored, engine
        made._options = {"fail_fast": fail_fast, "fork": fork}
        made._allow_pickle = allow_pickle
        made._stopper = stopper.again(folder, stop)
        return made

    def fit(self) -> ResultGrid:
        """Runs the trials to their ends.

        Returns:
            A result for each trial; what has failed is in its ``errors``.

        Raises:
            UsageError: Two places to store were given, or an option has a wrong value.
        """
        if self._again is not None:
            return self._go_on(*self._again)
        run, tune = self._run, self._tune
        place = None if run.storage_path is None else _checks.path("storage_path", run.storage_path)
        sync = getattr(run, "sync_config", None)
        if place is not None and "://" in place:
            if sync is not None and sync.upload_dir is not None:
                raise UsageError(f"storage_path is {place!r} and upload_dir {sync.upload_dir!r}: give one place")
            place, sync = None, SyncConfig(upload_dir=place)
        keep, failure = run.checkpoint_config, run.failure_config
        frequency, at_end = getattr(keep, "checkpoint_frequency", 0), bool(getattr(keep, "checkpoint_at_end", False))
        spec.check_saving(self._trainable, {"checkpoint_frequency": frequency, "checkpoint_at_end": at_end})
        analysis = driver.run(
            self._trainable,
            name=run.name,
            local_dir=place,
            config=self._space,
            metric=tune.metric,
            mode=tune.mode,
            num_samples=tune.num_samples,
            search_alg=tune.search_alg,
            scheduler=tune.scheduler,
            max_concurrent_trials=tune.max_concurrent_trials,
            time_budget_s=tune.time_budget_s,
            seed=tune.seed,
            engine=tune.engine,
            heartbeat_s=tune.heartbeat_s,
            stop=getattr(run, "stop", None),
            keep_checkpoints_num=None if keep.num_to_keep is None else spec.whole("num_to_keep", keep.num_to_keep, 1),
            checkpoint_score_attr=_score(keep),
            checkpoint_freq=spec.whole("checkpoint_frequency", frequency, 0),
            checkpoint_at_end=at_end,
            max_failures=failure.max_failures,
            fail_fast=getattr(failure, "fail_fast", False),
            sync_config=sync,
            verbose=getattr(run, "verbose", 1),
            raise_on_failed_trial=False,
        )
        return ResultGrid(analysis)

    def _go_on(self, folder: str, errored: bool, engine: str | None) -> ResultGrid:
        sync = getattr(self._run, "sync_config", None) or SyncConfig()
        plan = spec.again(self._trainable, folder, self._space, sync, engine, **self._options)
        plan.stopper, plan.allow_pickle = self._stopper, self._allow_pickle
        searcher = search.Complete(plan) if plan.document["search"] == "given" else search.Search(plan)
        word = places.find(folder, sync, "ERRORED_ONLY" if errored else "LOCAL")
        given = places.given(None, folder)
        progress = Progress(getattr(self._run, "verbose", 1), plan)
        return ResultGrid(driver.execute(self._trainable, plan, searcher, word, given, progress))
