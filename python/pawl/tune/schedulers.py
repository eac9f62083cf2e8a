# SPDX-License-Identifier: Apache-2.0
"""The schedulers, by the names and with the defaults of Ray Tune. They only say what is wanted; the runner decides.

tune.run(train, scheduler=AsyncHyperBandScheduler(metric="loss", mode="min", max_t=50))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._pawl import UnsupportedError, UsageError
from . import space


class TrialScheduler:
    """Base of all. ``spec`` is the scheduler in the experiment's document."""

    type = "fifo"

    def __init__(self, metric: str | None = None, mode: str | None = None, **options: Any) -> None:
        if mode not in (None, "min", "max"):
            raise UsageError(f'{type(self).__name__}: mode must be "min" or "max", received {mode!r}')
        self.metric, self.mode, self.options = metric, mode, options

    def spec(self, objects: space.Objects) -> dict[str, Any]:
        return {"type": self.type, **self.options}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


class FIFOScheduler(TrialScheduler):
    """Runs every trial to its end."""


class AsyncHyperBandScheduler(TrialScheduler):
    """Stops trials that are not among the best 1 / ``reduction_factor`` at a rung (ASHA)."""

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
    ) -> None:
        super().__init__(
            metric,
            mode,
            time_attr=time_attr,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
        )


ASHAScheduler = AsyncHyperBandScheduler


class HyperBandScheduler(TrialScheduler):
    """Rungs in step: trials pause at a rung until all of their bracket are there, and the best go on."""

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
    """Stops a trial whose best result is worse than the median of the others' averages at the same time."""

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
    """Trials of the worst ``quantile_fraction`` go on from a checkpoint of the best, with their values explored.

    ``hyperparam_mutations``: for each of the explored values a list (in order: a neighbour is taken) or a domain such
    as ``tune.loguniform`` (a factor of ``perturbation_factors``, or drawn anew with ``resample_probability``).
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
    ) -> None:
        if not hyperparam_mutations:
            raise UsageError("PopulationBasedTraining needs hyperparam_mutations: the values that are explored")
        super().__init__(
            metric,
            mode,
            time_attr=time_attr,
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            hyperparam_mutations=dict(hyperparam_mutations),
            quantile_fraction=quantile_fraction,
            resample_probability=resample_probability,
            perturbation_factors=list(perturbation_factors),
            synch=synch,
        )

    def spec(self, objects: space.Objects) -> dict[str, Any]:
        mutations = _mutations(self.options["hyperparam_mutations"], objects, "hyperparam_mutations")
        return {"type": self.type, **self.options, "hyperparam_mutations": mutations}


def _mutations(given: Mapping[str, Any], objects: space.Objects, where: str) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        here = f"{where}[{key!r}]"
        if callable(value) or isinstance(value, space.Function):
            raise UnsupportedError(
                f"{here} is a function; give a list or a domain, such as tune.loguniform(1e-4, 1e-1)"
            )
        if isinstance(value, Mapping):
            found[key] = _mutations(value, objects, here)
        elif isinstance(value, space.Domain | Sequence) and not isinstance(value, str):
            found[key] = space.encode_value(list(value) if isinstance(value, Sequence) else value, objects, here)
        else:
            raise UsageError(f"{here} must be a list or a domain such as tune.uniform(0, 1), received {value!r}")
    return found


_BY_NAME = {
    "fifo": FIFOScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "asha": AsyncHyperBandScheduler,
    "hyperband": HyperBandScheduler,
    "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule,
    "pbt": PopulationBasedTraining,
}


def create_scheduler(scheduler: str, **options: Any) -> TrialScheduler:
    """A scheduler by its name."""
    if scheduler not in _BY_NAME:
        raise UsageError(f"scheduler: expected one of {', '.join(sorted(_BY_NAME))}, received {scheduler!r}")
    made: TrialScheduler = _BY_NAME[scheduler](**options)
    return made
