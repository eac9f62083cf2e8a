# SPDX-License-Identifier: Apache-2.0
"""Optuna as a searcher: it suggests a configuration for each trial, and gets the trial's results.

    tune.run(train, config={"lr": tune.loguniform(1e-4, 1e-1)}, search_alg=OptunaSearch(seed=0), num_samples=50,
             metric="loss", mode="min")

It needs Optuna. When an experiment is resumed, Optuna gets its earlier trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._pawl import UnsupportedError, UsageError
from . import space
from ._json import value_at
from .search import Searcher

__all__ = [
    "OptunaSearch",
]

Path = tuple[str, ...]


def _optuna() -> Any:
    try:
        import optuna  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UnsupportedError("OptunaSearch needs Optuna, which is not installed: pip install optuna") from None
    return optuna


def _domains(given: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, space.Domain]]:
    for key, value in given.items():
        if isinstance(value, space.Domain):
            yield (*above, key), value
        elif isinstance(value, Mapping) and set(value) == {space.GRID}:
            raise UnsupportedError(f"{'/'.join((*above, key))}: Optuna searches no grids; give tune.choice")
        elif isinstance(value, Mapping):
            yield from _domains(value, (*above, key))


def _distribution(path: Path, domain: space.Domain) -> Any:
    made = _optuna().distributions
    kind, values = domain.key[1:], domain.arguments
    if kind == "choice":
        return made.CategoricalDistribution(list(range(len(values))))
    if kind in ("uniform", "quniform", "loguniform"):
        step = values[2] if kind == "quniform" else None
        return made.FloatDistribution(values[0], values[1], step=step, log=kind == "loguniform")
    if kind in ("randint", "lograndint"):
        return made.IntDistribution(values[0], values[1] - 1, log=kind == "lograndint")
    if kind == "qrandint":
        return made.IntDistribution(values[0], values[1], step=int(values[2]))
    raise UnsupportedError(
        f"{'/'.join(path)}: Optuna has nothing like tune.{kind}; expected one of choice, uniform, quniform, "
        "loguniform, randint, qrandint, lograndint"
    )


class OptunaSearch(Searcher):
    """Optuna as a searcher.

    Args:
        space: Domains by name. Default: None, those of the configuration.
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
        points_to_evaluate: Configurations to begin with. Default: (), none.
        sampler: One of Optuna's. Default: None, its tree of Parzen estimators with ``seed``.
        seed: Seed of the default sampler. Default: None.

    Raises:
        UnsupportedError: Optuna is not installed.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        sampler: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        _optuna()
        self._given, self._points, self._sampler, self._seed = space, points_to_evaluate, sampler, seed
        self._domains: dict[str, tuple[Path, Any]] = {}
        self._trials: dict[str, Any] = {}
        self._study: Any = None

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Makes the study. Called before the first suggestion.

        Args:
            metric: Name of the metric, or None.
            mode: "min", "max" or None.
            config: The space.
            spec: Ignored.

        Returns:
            True.

        Raises:
            UsageError: There is no metric or mode, or nothing to draw.
            UnsupportedError: Optuna cannot draw from a domain.
        """
        super().set_search_properties(metric, mode, config)
        if self.metric is None or self.mode is None:
            raise UsageError("OptunaSearch needs metric and mode, here or of tune.run")
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._domains = {"/".join(path): (path, one) for path, one in _domains(self._given or config)}
        if not self._domains:
            raise UsageError("OptunaSearch: the space has nothing to draw, such as tune.uniform(0, 1)")
        self._distributions = {name: _distribution(path, one) for name, (path, one) in self._domains.items()}
        sampler = self._sampler or optuna.samplers.TPESampler(seed=self._seed)
        direction = "minimize" if self.mode == "min" else "maximize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        for point in self._points:
            self._study.enqueue_trial(self._numbers(point))
        return True

    def _numbers(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Optuna's parameters of a configuration. A choice is the position in its list."""
        found = {}
        for name, (path, domain) in self._domains.items():
            value: Any = config
            for key in path:
                value = value[key]
            found[name] = domain.arguments.index(value) if domain.key == "$choice" else value
        return found

    def suggest(self, trial_id: str) -> dict[str, Any]:
        trial = self._trials[trial_id] = self._study.ask(self._distributions)
        config: dict[str, Any] = {}
        for name, (path, domain) in self._domains.items():
            inner = config
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            value = trial.params[name]
            inner[path[-1]] = domain.arguments[value] if domain.key == "$choice" else value
        return config

    def _value(self, result: Mapping[str, Any] | None) -> float | None:
        value = value_at(result, self.metric or "")
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        value = self._value(result)
        if value is not None:
            self._trials[trial_id].report(value, int(result["training_iteration"]))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        value = None if error else self._value(result)
        state = _optuna().trial.TrialState
        self._study.tell(self._trials.pop(trial_id), value, state.FAIL if value is None else state.COMPLETE)

    def restore_trial(self, trial_id: str, config: dict[str, Any], result: dict[str, Any] | None, over: bool) -> None:
        self._study.enqueue_trial(self._numbers(config))
        self._trials[trial_id] = self._study.ask(self._distributions)
        if over:
            self.on_trial_complete(trial_id, result, self._value(result) is None)
