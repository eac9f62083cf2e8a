# SPDX-License-Identifier: Apache-2.0
"""Where configurations come from. There are three sources:

- the runner's own grids and draws
- these draws, completed by functions of the other values (``sample_from``)
- a searcher, which suggests one configuration at a time

A searcher has ``suggest(trial_id)``, which returns a configuration, None (not now) or "FINISHED".
It also has ``on_trial_complete(trial_id, result, error)``. Searchers written for Ray Tune therefore
work.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .. import _pawl
from .._cores import count_cores
from .._pawl import CorruptError, UsageError
from . import _json, space
from .analysis import READ
from .spec import Plan

__all__ = [
    "FINISHED",
    "Searcher",
]

FINISHED = "FINISHED"
_LIVE = ("PENDING", "RUNNING", "PAUSED")


class Searcher:
    """Base for searchers.

    Args:
        metric: Name of the metric. Default: None, that of the experiment.
        mode: "min" or "max". Default: None, that of the experiment.
    """

    FINISHED = FINISHED

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric, self.mode = metric, mode

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Called before the first suggestion with what the experiment knows.

        Args:
            metric: Name of the metric, or None.
            mode: "min", "max" or None.
            config: The space.
            spec: More arguments that callers of Ray Tune pass.

        Returns:
            True if the searcher accepts them.
        """
        self.metric, self.mode = self.metric or metric, self.mode or mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The configuration of the next trial.

        Args:
            trial_id: Id of the trial.

        Returns:
            The configuration; None if there is none now; ``FINISHED`` if there are no more.

        Raises:
            NotImplementedError: The subclass has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method suggest")

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Called with each result that is not the last.

        Args:
            trial_id: Id of the trial.
            result: The result.
        """

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Called when a trial has ended.

        Args:
            trial_id: Id of the trial.
            result: The last result. Default: None, no result.
            error: Whether it has failed. Default: False.
        """

    def restore_trial(self, trial_id: str, config: dict[str, Any], result: dict[str, Any] | None, over: bool) -> None:
        """Called with each trial of an experiment that is resumed.

        Args:
            trial_id: Id of the trial.
            config: Its configuration.
            result: Its last result, or None.
            over: Whether it has ended.
        """


class Search:
    """The runner's own search, which needs no Python code. The base of the other searches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def begin(self, experiment: _pawl.Experiment) -> None:
        """Called when the experiment is open. It may already have trials."""
        _check_values(self._plan, experiment)

    def widen(self, places: int) -> None:
        """Sets how many trials can run at a time on a cluster."""

    def more(self, experiment: _pawl.Experiment) -> None:
        """Adds the configurations that may be added now."""

    def is_over(self, experiment: _pawl.Experiment) -> bool:
        """Whether no trial runs and no configuration will follow.

        The experiment itself does not know this while its search is open.
        """
        return False

    def result(self, experiment: _pawl.Experiment, number: int, text: str) -> None:
        """Called when a trial has reported. The result is JSON; parse it only if it is needed."""

    def ended(self, experiment: _pawl.Experiment, number: int, failed: bool, again: bool) -> None:
        """Called when a trial's process has ended. ``again``: the trial is not over yet."""

    def finish(self, experiment: _pawl.Experiment) -> None:
        """Called at the end, after the last event."""


class Complete(Search):
    """The search of an experiment that already has all its configurations."""

    def begin(self, experiment: _pawl.Experiment) -> None:
        super().begin(experiment)
        _close(self._plan, experiment)

    def is_over(self, experiment: _pawl.Experiment) -> bool:
        return not _n_live(experiment)


class Filled(Complete):
    """Draws of the runner. Functions of the space fill in the remaining values."""

    def begin(self, experiment: _pawl.Experiment) -> None:
        objects, counts = self._plan.objects, experiment.counts()
        draws, wanted = _draws(self._plan.document)
        if wanted > counts["trials"] and counts["expected"]:
            raise UsageError(
                f"num_samples: {self._plan.folder} has all its {counts['trials']} trials. The number cannot grow: its "
                "scheduler makes trials wait for each other, or a stopper has ended the search"
            )
        configs = []
        for sample in range(wanted):  # also those that the experiment has: their objects are made again
            drawn = objects.restore(json.loads(_pawl.tune_spec_config(draws, sample)))
            configs.append(objects.put(space.fill(drawn, self._plan.space)))
        _check_values(self._plan, experiment)
        for config in configs[counts["trials"] :]:
            experiment.add(_json.dumps(config))
        super().begin(experiment)


class Asked(Search):
    """Asks a searcher for one configuration at a time, whenever a trial can start."""

    def __init__(self, searcher: Any, plan: Plan) -> None:
        for name in ("suggest", "on_trial_complete"):
            if not callable(getattr(searcher, name, None)):
                raise UsageError(f"search_alg needs a method {name}, which {searcher!r} does not have")
        super().__init__(plan)
        self._searcher = searcher
        self._names: dict[int, str] = {}
        self._last: dict[int, dict[str, Any]] = {}
        self._ends: dict[int, int] = {}  # of each trial that the searcher awaits: ends of its process
        self._closed = False
        cores = count_cores()
        self._most = plan.document["max_concurrent"] or max(1, int(cores / max(plan.resources["cpu"], 0.01)))
        metric, mode = plan.document.get("metric"), plan.document.get("mode")
        if hasattr(searcher, "set_search_properties"):
            searcher.set_search_properties(metric, mode, dict(plan.space))

    def widen(self, places: int) -> None:
        self._most = self._plan.document["max_concurrent"] or max(1, places)

    def begin(self, experiment: _pawl.Experiment) -> None:
        counts = experiment.counts()
        self._closed = counts["expected"] != 0
        asks = not self._closed and counts["trials"] < self._plan.document["num_samples"]
        _check_values(self._plan, experiment, ended=asks)  # the searcher decides by the ended ones
        for number in range(counts["trials"]):
            row = experiment.trial(number)
            self._names[number] = f"{number:05d}"
            over = row["state"] not in _LIVE
            if not over:
                self._ends[number] = row["attempts"]
            if hasattr(self._searcher, "restore_trial"):
                config = self._plan.objects.restore(json.loads(row["config"]))
                result = None if row["result"] is None else _json.loads(row["result"])
                self._searcher.restore_trial(self._names[number], config, result, over)
        self.more(experiment)

    def more(self, experiment: _pawl.Experiment) -> None:
        self._complete_dropped(experiment)
        while not self._closed:
            counts = experiment.counts()
            states = counts["states"]
            if counts["expected"]:  # a stopper has ended the search
                self._closed = True
                return
            if counts["trials"] >= self._plan.document["num_samples"]:
                self._close(experiment)
                return
            # Paused trials leave their places. They may wait for trials that are still to be added.
            if states.get("PENDING", 0) + states.get("RUNNING", 0) >= self._most:
                return
            name = f"{counts['trials']:05d}"
            found = self._searcher.suggest(name)
            if found is None:
                self._check_waiting(experiment, states)
                return
            if found == FINISHED:
                self._close(experiment)
                return
            if not isinstance(found, dict):
                raise UsageError(f"{self._searcher!r}.suggest must return a dict, None or FINISHED, received {found!r}")
            config = self._fill(space.merge(space.fixed(self._plan.space), found))
            number = experiment.add(_json.dumps(self._plan.objects.put(config)))
            self._names[number], self._ends[number] = name, 0

    def _check_waiting(self, experiment: _pawl.Experiment, states: dict[str, int]) -> None:
        """Refuses to wait for ever: nothing runs, and only more trials could wake the paused ones."""
        paused = states.get("PAUSED", 0)
        if not paused or states.get("PENDING", 0) or states.get("RUNNING", 0):
            return
        if any(experiment.trial(number)["attempts"] != ends for number, ends in self._ends.items()):
            return  # the process of a paused trial has not ended yet
        raise UsageError(
            f"{self._plan.folder}: {self._searcher!r} suggests no more trials, and its {paused} trials are paused "
            "until there are more: the scheduler compares more trials than the searcher lets live at a time. "
            "Raise that limit; max_concurrent_trials limits only the trials that run"
        )

    def _complete_dropped(self, experiment: _pawl.Experiment) -> None:
        """Reports the trials that ended while they were paused. No event reports them.

        The process of any other trial has started once more than it has ended: its event follows.
        """
        if _n_live(experiment) == len(self._ends):
            return
        for number, ends in list(self._ends.items()):
            row = experiment.trial(number)
            if row["state"] not in _LIVE and row["attempts"] == ends:
                self._complete(experiment, number, row["state"] == "ERROR")

    def _fill(self, config: dict[str, Any]) -> dict[str, Any]:
        """Calls the functions of the space for values that the searcher did not suggest."""
        left: dict[str, Any] = {}
        for path, function in space.functions(self._plan.space):
            if len(path) != 1 or not isinstance(path[0], str):
                raise UsageError("sample_from together with a search_alg must be at the top level of config")
            if path[0] not in config:
                left[path[0]] = function
        return space.fill(config, left)

    def _close(self, experiment: _pawl.Experiment) -> None:
        """Stops asking the searcher."""
        self._closed = True
        _close(self._plan, experiment)

    def is_over(self, experiment: _pawl.Experiment) -> bool:
        return self._closed and not _n_live(experiment)

    def result(self, experiment: _pawl.Experiment, number: int, text: str) -> None:
        result = self._last[number] = _json.loads(text)
        if hasattr(self._searcher, "on_trial_result"):
            self._searcher.on_trial_result(self._names[number], result)

    def ended(self, experiment: _pawl.Experiment, number: int, failed: bool, again: bool) -> None:
        self._ends[number] += 1
        if not again:
            self._complete(experiment, number, failed)

    def finish(self, experiment: _pawl.Experiment) -> None:
        self._complete_dropped(experiment)

    def _complete(self, experiment: _pawl.Experiment, number: int, failed: bool) -> None:
        del self._ends[number]
        result = self._last.pop(number, None)
        if result is None and (text := experiment.trial(number)["result"]) is not None:
            result = _json.loads(text)
        self._searcher.on_trial_complete(self._names[number], result=result, error=failed)


def _waits(scheduler: dict[str, Any]) -> bool:
    """Whether the scheduler makes trials wait until others are added or have ended."""
    return (
        scheduler.get("type") in ("hyperband", "pbt")
        or bool(scheduler.get("synch"))
        or not scheduler.get("hard_stop", True)
    )


def _close(plan: Plan, experiment: _pawl.Experiment) -> None:
    """Closes the search of the experiment if its scheduler makes trials wait for each other.

    A closed search accepts no more trials when the experiment is resumed.
    """
    if _waits(plan.document.get("scheduler", {})):
        experiment.close_search()


def _check_values(plan: Plan, experiment: _pawl.Experiment, ended: bool = False) -> None:
    """Refuses a name in place of a value that JSON cannot hold, if the value was not made again.

    Checks the trials that still run, with ``ended`` all of them, and where more values come from.
    """
    counts = experiment.counts()
    rows = [experiment.trial(number) for number in range(counts["trials"])]
    trees = [(row["name"], json.loads(row["config"])) for row in rows if ended or row["state"] in _LIVE]
    if trees or counts["trials"] < counts["expected"]:
        trees += [("config", plan.document["space"]), ("scheduler", plan.document.get("scheduler"))]
    for where, tree in trees:
        if (name := plan.objects.lost(tree)) is not None:
            raise UsageError(
                f"{plan.folder}: {where} has the value {name}. JSON cannot hold it, and this program has not made "
                "it again: give the same space, and let searchers and sample_from return numbers, texts or lists"
            )


def _n_live(experiment: _pawl.Experiment) -> int:
    states = experiment.counts()["states"]
    return sum(states.get(one, 0) for one in _LIVE)


def _draws(document: dict[str, Any]) -> tuple[str, int]:
    """The document of the runner's own draws, and their number."""
    draws = _json.dumps({**document, "search": "grid-random"})
    return draws, _pawl.tune_spec_check(draws)[1]


def _document(folder: str, error: CorruptError) -> dict[str, Any]:
    """The document of an experiment whose journal is damaged; raises the error if that is damaged, too."""
    try:
        with open(os.path.join(folder, "experiment.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)["document"]
    except (KeyError, TypeError, ValueError):
        raise error from None
    return found


def check_again(folder: str) -> None:
    """Refuses an existing experiment that only its program can continue."""
    try:
        experiment = _pawl.Experiment(None, folder, resume=READ)
    except CorruptError as error:  # of the journal, which is rebuilt when the experiment is resumed
        document, counts = _document(folder, error), None
    else:
        document, counts = json.loads(experiment.about()[0]), experiment.counts()
        experiment.close()
    lacks = ""
    if document["scheduler"].get("custom_explore"):
        lacks = "changes configurations by a function"
    elif document["search"] == "given" and counts is None:
        lacks = "has a damaged journal"
    elif document["search"] == "given" and counts and not counts["expected"]:
        wanted = _draws(document)[1]
        lacks = f"has {counts['trials']} of {wanted} configurations" if counts["trials"] < wanted else ""
    if lacks:
        raise UsageError(
            f'{folder} {lacks}, and only the program can continue it: call tune.run(..., resume="AUTO") '
            "with the arguments that it began with"
        )


def make(search_alg: Any, plan: Plan) -> Search:
    """Makes the search for ``search_alg`` and the plan."""
    if search_alg is not None:
        plan.document["space"] = {}
        return Asked(search_alg, plan)
    return Filled(plan) if plan.document["search"] == "given" else Search(plan)
