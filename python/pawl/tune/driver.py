# SPDX-License-Identifier: Apache-2.0
"""tune.run: makes the document, drives the runner, and reports the progress."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .. import _files, _pawl, _signals
from .._pawl import UsageError
from ..options import Duration
from ..syncer import SyncConfig
from . import _json, places, search, spec, trainable
from .analysis import ExperimentAnalysis, Trial
from .progress import Progress
from .schedulers import TrialScheduler
from .stopper import Kept, Stopper

_POLL_MS = 100
_GO_ON, _STOP_TRIAL, _STOP_ALL = 0, 1, 2  # of enum tune_wish


class Runner(Protocol):
    """What runs the trials; see _pawl.TrialRunner."""

    def poll(self, timeout_ms: int, /) -> tuple[str, int, str | None, str | None, int, str, bool] | None: ...
    def stop(self, now: bool, /) -> None: ...
    def stop_trial(self, trial: int, why: str, /) -> None: ...
    def close(self) -> None: ...


class TuneError(RuntimeError):
    """Trials have failed for good. ``trials`` lists them.

    Args:
        message: The text.
        analysis: The experiment.
    """

    def __init__(self, message: str, analysis: ExperimentAnalysis) -> None:
        super().__init__(message)
        self.analysis = analysis
        self.trials = [trial for trial in analysis.trials if trial.status == "ERROR"]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.analysis), self.__dict__


class TrialError(RuntimeError):
    """Why a trial has failed for good.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: Trial) -> None:
        super().__init__(f"{trial.name}: {trial.error}")
        self.trial = trial

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.trial,), self.__dict__


def run(
    run_or_experiment: Any,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Mapping[str, float] | Callable[[str, dict[str, Any]], bool] | Stopper | None = None,
    time_budget_s: Duration | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Mapping[str, float] | None = None,
    num_samples: int = 1,
    local_dir: str | os.PathLike[str] | None = None,
    search_alg: Any = None,
    scheduler: TrialScheduler | str | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    verbose: int = 1,
    sync_config: SyncConfig | None = None,
    max_failures: int = 0,
    fail_fast: bool = False,
    restore: str | os.PathLike[str] | SyncConfig | None = None,
    resume: bool | str | None = False,
    raise_on_failed_trial: bool = True,
    max_concurrent_trials: int | None = None,
    *,
    seed: int = 0,
    grace_s: Duration = 30.0,
    heartbeat_s: Duration = 0.0,
    env: Mapping[str, str] | None = None,
    engine: str | None = None,
    fork: bool = True,
    allow_pickle: bool = False,
) -> ExperimentAnalysis:
    """Runs an experiment: the trainable with each configuration, each trial in a separate process.

    After an interrupt (Ctrl+C, SIGTERM) the trials save what they can. The same call with
    ``resume="AUTO"`` continues.

    Args:
        run_or_experiment: A function of the configuration that calls ``tune.report``, or a subclass
            of ``tune.Trainable``.
        name: Name of the experiment's folder. Default: None, made of the trainable's name and the
            time.
        metric: Name of the metric that is optimized. Default: None.
        mode: "min" or "max". Default: None.
        stop: When a trial ends: a dict of limits by the names of results, a function of the trial's
            id and its result, or a Stopper. Default: None.
        time_budget_s: Everything ends after this duration: seconds, ``"5min"`` or a timedelta.
            Default: None, no limit.
        config: Values, and what values are drawn from (``tune.uniform``, ``tune.choice``,
            ``tune.grid_search``, ...). Default: None, empty.
        resources_per_trial: What a trial takes, ``{"cpu": 2, "gpu": 1}``. Default: None, one core.
        num_samples: How often the grids are run and the values drawn. Default: 1.
        local_dir: Folder that the experiment's folder is in. Default: None, ~/ray_results.
        search_alg: A searcher, which suggests configurations. Default: None, grids and draws.
        scheduler: A scheduler or its name. Default: None, every trial runs to its end.
        keep_checkpoints_num: Number of checkpoints to keep of each trial. Default: None, all.
        checkpoint_score_attr: Which are best: "max-auc", "min-loss". The newest is kept as well.
            Default: None, the newest are kept.
        checkpoint_freq: For a class: steps between two checkpoints. Default: 0, no checkpoints.
        checkpoint_at_end: For a class: make a checkpoint at the end. Default: False.
        verbose: 0 prints nothing, 1 what ends and fails, 2 also what starts, 3 also each result.
            Default: 1.
        sync_config: Where the experiment is copied to. Default: None, nowhere.
        max_failures: How often a trial starts again after a failure; -1 means no limit. Default: 0.
        fail_fast: The first trial that fails ends all. Default: False.
        restore: A SyncConfig, a URL or a folder with an experiment to begin with, or the folder of
            a checkpoint that every trial begins with. Default: None.
        resume: "AUTO" continues the experiment of this name if it exists, here or in
            ``sync_config.upload_dir``. True or "LOCAL": it must exist here. "REMOTE": it is
            fetched. "ERRORED_ONLY": failed trials start again, too. "PROMPT": the user is asked.
            Default: False, a new one.
        raise_on_failed_trial: Raise TuneError if trials have failed. Default: True.
        max_concurrent_trials: How many run at a time. Default: None, as many as there is room for.
        seed: Seed of the draws. Default: 0.
        grace_s: Duration that a trial has to save when it is stopped. Default: 30 seconds.
        heartbeat_s: A trial without report, checkpoint or ``tune.heartbeat()`` for this duration
            has failed. Default: 0, no limit.
        env: Variables of the trials' environment. Default: None.
        engine: "local" for processes of this machine, "ray" for actors of the Ray cluster that this
            process has joined. Default: None, "ray" if it has joined one.
        fork: Load what the trials need once, and fork each of them; not with GPUs. Default: True.
        allow_pickle: Pickle values in checkpoints that a state cannot hold, and load pickles.
            Default: False.

    Returns:
        The experiment.

    Raises:
        TuneError: Trials have failed for good.
        Preempted: SIGTERM or SIGUSR1 has ended the search. It is a SystemExit.
        UsageError: An argument is wrong.
    """
    options = dict(locals())
    what = options.pop("run_or_experiment")
    plan = spec.make(what, options)
    plan.allow_pickle = allow_pickle
    spec.keep_options(plan, fail_fast, fork)
    if env:
        plan.document["env"] = {str(key): str(value) for key, value in env.items()}
    searcher = search.make(search_alg, plan)
    word = places.find(plan.folder, plan.sync, spec.check_resume(resume))
    given = places.given(restore, plan.folder)
    analysis = execute(what, plan, searcher, word, given, Progress(verbose, plan))
    _judge_ends(analysis, raise_on_failed_trial)
    return analysis


def execute(
    what: Any,
    plan: spec.Plan,
    searcher: search.Search,
    resume: int,
    given: places.Given,
    progress: Progress,
) -> ExperimentAnalysis:
    """Runs the trials of a plan to their ends.

    Args:
        what: The trainable.
        plan: What to run.
        searcher: Where configurations come from.
        resume: How to continue, of enum tune_resume.
        given: What the experiment begins with.
        progress: Prints what happens.

    Returns:
        The experiment.

    Raises:
        TuneError: A trial has failed, with ``plan.fail_fast``.
    """
    keep = plan.document["checkpoint"]
    plan.given = given.checkpoint
    places.note(given, plan.document)
    job = trainable.Job(
        trainable.Wrapped(what),
        plan.objects.by_name,
        plan.document["name"],
        plan.resources,
        None if plan.engine == "ray" else given.checkpoint,
        keep["freq"],
        keep["at_end"],
        plan.allow_pickle,
    )
    _Trials(plan, job, searcher, progress).run(resume, given.experiment)
    return ExperimentAnalysis(plan.folder, objects=plan.objects)


def _judge_ends(analysis: ExperimentAnalysis, raise_on_failed_trial: bool) -> None:
    failed = [trial for trial in analysis.trials if trial.status == "ERROR"]
    if failed and raise_on_failed_trial:
        raise TuneError(_failures(failed, str(analysis.experiment_path)), analysis)


def _failures(failed: list[Trial], folder: str) -> str:
    first = failed[0]
    count = "a trial" if len(failed) == 1 else f"{len(failed)} trials"
    named = str(first.error).startswith(f"{first.name}: ")
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{folder}: {count} failed: {'' if named else f'{first.name}: '}{first.error}{more}"


class _Trials:
    """The trials of an experiment while they run."""

    def __init__(self, plan: spec.Plan, job: trainable.Job, searcher: search.Search, progress: Progress) -> None:
        self._plan, self._search, self._progress = plan, searcher, progress
        self._job, self._payload, self._n_objects = job, "", -1
        self._bytes = b""
        self._experiment: _pawl.Experiment | None = None
        self._newest: dict[int, str | None] = {}  # newest checkpoint of each trial at the last sync
        self._kept: Kept | None = None

    def run(self, resume: int, restore: str | None) -> None:
        plan = self._plan
        with contextlib.ExitStack() as after:
            folder = tempfile.mkdtemp(prefix="pawl-tune-")
            after.callback(shutil.rmtree, folder, ignore_errors=True)
            self._payload = os.path.join(folder, "job")
            self._write_job()
            experiment = _pawl.Experiment(
                _json.dumps(plan.document),
                plan.folder,
                resume=resume,
                restore=restore,
                judge=None if plan.stopper is None else self._judge,
                explore=None if plan.explorer is None else self._explore,
            )
            after.callback(experiment.close)
            self._experiment = experiment
            places.forget(restore)
            self._kept = Kept(plan.stopper, plan.folder)
            self._progress.begin(experiment)
            self._search.begin(experiment)
            self._write_job()
            synced = after.enter_context(places.Synced(plan.folder, plan.sync))
            runner = self._runner(experiment)
            after.callback(runner.close)
            after.callback(self._kept.keep, at_once=True)
            watch = _signals.acquire(0.0)
            after.callback(_signals.release)
            self._work(runner, watch, synced)

    def _runner(self, experiment: _pawl.Experiment) -> Runner:
        if self._plan.engine == "ray":
            from .ray_engine import RayRunner

            runner = RayRunner(experiment, self._plan, lambda: self._bytes)
            self._search.widen(runner.room())
            return runner
        words = [sys.executable, "-m", "pawl.tune._worker"]
        command = [one.replace("{", "{{").replace("}", "}}") for one in words]
        if not self._plan.forks:
            return _pawl.TrialRunner(experiment, command, self._environment())
        forker = [sys.executable, "-m", "pawl.tune._forker"]
        return _pawl.TrialRunner(experiment, command, self._environment(), forker=forker)

    def _write_job(self) -> None:
        """Writes the job for the trials, again whenever a configuration adds values that JSON
        cannot hold.
        """
        if self._n_objects == len(self._job.objects):
            return
        self._bytes = self._job.payload(self._plan.space)
        if self._plan.engine == "local":
            _files.replace(self._payload, self._bytes, durable=False)
        self._n_objects = len(self._job.objects)

    def _environment(self) -> list[str]:
        found = [f"{trainable.PAYLOAD}={self._payload}", "PYTHONUNBUFFERED=1"]
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if ours not in map(sysconfig.get_path, ("purelib", "platlib")):
            # The package is not installed, but the trials must find it.
            found.append("PYTHONPATH=" + os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")])))
        return found

    def _work(self, runner: Runner, watch: _pawl.Watch, synced: places.Synced) -> None:
        try:
            while not watch.signal:
                if self._step(runner, synced):
                    return
        except BaseException as error:
            self._progress.interrupted(error)
            self._leave(runner, synced)
            raise
        self._leave(runner, synced)
        raise _signals.Preempted(
            f"the search in {self._plan.folder} was asked to end; with resume='AUTO' it continues from its checkpoints"
        )

    def _leave(self, runner: Runner, synced: places.Synced) -> None:
        """Asks the trials to save and end. A second Ctrl+C kills them."""
        runner.stop(False)
        while not self._step(runner, synced):
            pass

    def _step(self, runner: Runner, synced: places.Synced) -> bool:
        """Handles the next event. True at the end."""
        experiment, kept = self._experiment, self._kept
        assert experiment is not None and kept is not None
        kept.keep()
        self._search.more(experiment)
        self._write_job()
        event = runner.poll(_POLL_MS)
        self._progress.tick(experiment)
        is_done = self._search.is_over(experiment) if event is None else event[0] == "done"
        if is_done:
            self._search.finish(experiment)
        if event is None or is_done:
            return is_done
        kind, number, text, reason, _, how, again = event
        if kind == "notice":
            self._progress.notice(experiment, number, text or "")
        elif kind == "report" and text is not None:
            self._search.result(experiment, number, text)
            self._progress.report(experiment, number, reason or "")
            if synced.is_on and (newest := experiment.trial(number)["checkpoint"]) != self._newest.get(number):
                self._newest[number] = newest
                synced.request()
        elif kind == "checkpoint":
            synced.request()
        elif kind == "ended":
            synced.request()
            self._search.ended(experiment, number, how == "failed", again)
            self._progress.ended(experiment, number, how, text or "", again)
            if how == "failed" and not again and self._plan.fail_fast:
                raise TuneError(text or "a trial has failed", ExperimentAnalysis(self._plan.folder))
        return False

    def _explore(self, text: str) -> str:
        explorer = self._plan.explorer
        assert explorer is not None
        found = explorer(self._plan.objects.restore(json.loads(text)))
        if not isinstance(found, dict):
            raise UsageError(f"custom_explore_fn must return the configuration, a dict, received {found!r}")
        return _json.dumps(self._plan.objects.put(found))

    def _judge(self, number: int, text: str) -> int:
        stopper, experiment = self._plan.stopper, self._experiment
        if stopper is None or experiment is None:
            return _GO_ON
        result = _json.loads(text)
        result["config"] = self._plan.objects.restore(result.get("config"))
        stop = stopper(str(result["trial_id"]), result)
        return _STOP_ALL if stopper.stop_all() else _STOP_TRIAL if stop else _GO_ON


__all__ = ["TrialError", "TuneError", "execute", "run"]
