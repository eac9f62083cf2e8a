# SPDX-License-Identifier: Apache-2.0
"""The schedulers, with the names and defaults of Ray Tune. They only hold settings; the runner
decides.

tune.run(train, scheduler=AsyncHyperBandScheduler(metric="loss", mode="min", max_t=50))
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._pawl import UsageError
from . import space

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "TrialScheduler",
    "create_scheduler",
]

Explorer = Callable[[dict[str, Any]], dict[str, Any]]


class TrialScheduler:
    """Base of the schedulers.

    Args:
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        options: Options of the scheduler by name.

    Raises:
        UsageError: The mode is neither "min" nor "max".
    """

    type = "fifo"

    def __init__(self, metric: str | None = None, mode: str | None = None, **options: Any) -> None:
        if mode not in (None, "min", "max"):
            raise UsageError(f'{type(self).__name__}: mode must be "min" or "max", received {mode!r}')
        self.metric, self.mode, self.options = metric, mode, options

    def spec(self, objects: space.Objects) -> dict[str, Any]:
        """The scheduler in the experiment's document.

        Args:
            objects: Takes the values that JSON cannot hold.

        Returns:
            Its type and options.
        """
        return {"type": self.type, **self.options}

    def explorer(self) -> Explorer | None:
        """A function that changes the configuration of a trial that continues from another's
        checkpoint.

        Returns:
            The function; None if the runner alone changes it.
        """
        return None

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The space of the configurations, with what the scheduler adds to it.

        Args:
            config: The space.

        Returns:
            The complete space.
        """
        return config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


class FIFOScheduler(TrialScheduler):
    """Runs every trial to its end. Its arguments are those of TrialScheduler."""


class AsyncHyperBandScheduler(TrialScheduler):
    """Stops trials that are not among the best 1 / ``reduction_factor`` at a rung (ASHA).

    Args:
        time_attr: Name of the result that measures time. Default: "training_iteration".
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        max_t: A trial ends at this time. Default: 100.
        grace_period: No trial is stopped before this time. Default: 1.
        reduction_factor: One of this many trials continues beyond a rung. Default: 4.
        brackets: Number of brackets. Default: 1.
        synch: Trials wait at a rung until all have reached it, so that the outcome does not depend
            on their speed. Default: False.
    """

    type = "asha"

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 100,
        grace_period: int = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        synch: bool = False,
    ) -> None:
        super().__init__(
            metric,
            mode,
            time_attr=time_attr,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            **({"synch": True} if synch else {}),
        )


ASHAScheduler = AsyncHyperBandScheduler


class HyperBandScheduler(TrialScheduler):
    """Trials wait at a rung until all of their bracket have reached it, and the best continue.

    Args:
        time_attr: Name of the result that measures time. Default: "training_iteration".
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        max_t: A trial ends at this time. Default: 81.
        reduction_factor: One of this many trials continues beyond a rung. Default: 3.
    """

    type = "hyperband"

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 81,
        reduction_factor: float = 3,
    ) -> None:
        super().__init__(metric, mode, time_attr=time_attr, max_t=max_t, reduction_factor=reduction_factor)


HyperBandForBOHB = HyperBandScheduler


class MedianStoppingRule(TrialScheduler):
    """Stops a trial whose best result is worse than the median of the others' averages at the same
    time.

    Args:
        time_attr: Name of the result that measures time. Default: "time_total_s", seconds.
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        grace_period: No trial is stopped before this time. Default: 60.
        min_samples_required: Compare with at least this many trials. Default: 3.
        hard_stop: Stop such a trial; False pauses it. Default: True.
    """

    type = "median"

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(
            metric,
            mode,
            time_attr=time_attr,
            grace_period=grace_period,
            min_samples_required=min_samples_required,
            hard_stop=hard_stop,
        )


class PopulationBasedTraining(TrialScheduler):
    """The worst trials continue from a checkpoint of the best, with changed values.

    Args:
        time_attr: Name of the result that measures time. Default: "time_total_s", seconds.
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        perturbation_interval: Time between two changes of a trial. Default: 60.
        burn_in_period: No change before this time. Default: 0.
        hyperparam_mutations: For each value to change a list, a domain such as
            ``tune.loguniform``, or a function without arguments that draws a value. Of a list a
            neighbour is taken.
            Nested like the configuration. Default: None.
        quantile_fraction: Fraction of the trials that counts as best, and as worst. Default: 0.25.
        resample_probability: Probability that a value is drawn again. Default: 0.25.
        perturbation_factors: A value that is not drawn again is multiplied by one of these factors.
            Default: (1.2, 0.8).
        synch: Trials wait for each other. Default: False.
        custom_explore_fn: Takes the changed configuration and returns the one to use. Default:
            None.

    Raises:
        UsageError: There is nothing to change, or ``custom_explore_fn`` is not a function.
    """

    type = "pbt"

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, float] = (1.2, 0.8),
        synch: bool = False,
        custom_explore_fn: Explorer | None = None,
    ) -> None:
        if not hyperparam_mutations and custom_explore_fn is None:
            raise UsageError("PopulationBasedTraining needs hyperparam_mutations: the values that are explored")
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise UsageError(f"custom_explore_fn must be a function, received {custom_explore_fn!r}")
        self._custom = custom_explore_fn
        self._functions = dict(_functions(hyperparam_mutations or {}))
        super().__init__(
            metric,
            mode,
            time_attr=time_attr,
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            hyperparam_mutations=dict(hyperparam_mutations or {}),
            quantile_fraction=quantile_fraction,
            resample_probability=resample_probability,
            perturbation_factors=list(perturbation_factors),
            synch=synch,
        )

    def spec(self, objects: space.Objects) -> dict[str, Any]:
        mutations = _mutations(self.options["hyperparam_mutations"], objects, "hyperparam_mutations")
        custom = {"custom_explore": True} if self.explorer() else {}
        return {"type": self.type, **self.options, **custom, "hyperparam_mutations": mutations}

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The space. Values that it lacks are drawn by the functions.

        Args:
            config: The space.

        Returns:
            The complete space.

        Raises:
            UsageError: A nested value is missing.
        """
        missing: dict[str, Any] = {}
        for path, function in self._functions.items():
            if len(path) == 1 and path[0] not in config:
                missing[path[0]] = function if isinstance(function, space.Function) else space.Function(function)
            elif len(path) > 1 and _at(config, path) is None:
                raise UsageError(f"hyperparam_mutations: config has no value {'/'.join(path)} to begin with")
        return {**config, **missing}

    def explorer(self) -> Explorer | None:
        return self._explore if self._functions or self._custom is not None else None

    def _explore(self, config: dict[str, Any]) -> dict[str, Any]:
        for path, function in self._functions.items():
            value, inner = _at(config, path), config
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or random.random() < self.options["resample_probability"]:
                value = _draw(function, config)
            else:
                value = type(value)(value * random.choice(self.options["perturbation_factors"]))
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        return self._custom(config) if self._custom is not None else config


def PopulationBasedTrainingReplay(policy_file: str | os.PathLike[str]) -> TrialScheduler:  # noqa: N802 - Ray's name
    """Not supported.

    Args:
        policy_file: Ignored.

    Returns:
        Nothing: it always raises.

    Raises:
        UsageError: Always. The message names an alternative.
    """
    raise UsageError(
        "PopulationBasedTrainingReplay is not supported; let the trainable follow the values that the trial's "
        f"policy file lists (received {os.fspath(policy_file)!r})"
    )


Path = tuple[str, ...]


def _at(config: Any, path: Path) -> Any:
    """The value at a place, or None."""
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _functions(given: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Callable[..., Any]]]:
    """The mutations that are functions, with their places."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _functions(value, (*path, key))
        elif callable(value):
            yield (*path, key), value


def _mutations(given: Mapping[str, Any], objects: space.Objects, where: str, above: str = "") -> dict[str, Any]:
    """The mutations that the runner applies, by their paths."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        here = f"{where}[{key!r}]"
        if isinstance(value, Mapping):
            found |= _mutations(value, objects, here, f"{above}{key}/")
        elif isinstance(value, space.Domain | Sequence) and not isinstance(value, str):
            value = list(value) if isinstance(value, Sequence) else value
            found[above + key] = space.encode_value(value, objects, here)
        elif not callable(value):
            raise UsageError(
                f"{here} must be a list, a domain such as tune.uniform(0, 1) or a function, received {value!r}"
            )
    return found


def _draw(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    return function(config) if isinstance(function, space.Function) else function()


_BY_NAME: dict[str, Callable[..., TrialScheduler]] = {
    "fifo": FIFOScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "asha": AsyncHyperBandScheduler,
    "hyperband": HyperBandScheduler,
    "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule,
    "pbt": PopulationBasedTraining,
    "pbt_replay": PopulationBasedTrainingReplay,
}


def create_scheduler(scheduler: str, **options: Any) -> TrialScheduler:
    """A scheduler by its name.

    Args:
        scheduler: "fifo", "asha", "hyperband", "median_stopping_rule", "pbt" or another of Ray's
            names.
        options: Its options.

    Returns:
        The scheduler.

    Raises:
        UsageError: There is no such scheduler.
    """
    if scheduler not in _BY_NAME:
        raise UsageError(f"scheduler: expected one of {', '.join(sorted(_BY_NAME))}, received {scheduler!r}")
    return _BY_NAME[scheduler](**options)
