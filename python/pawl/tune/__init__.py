# SPDX-License-Identifier: Apache-2.0
"""pawl.tune: searches over hyperparameters. Trials save, pause, are cloned, fail and continue.

    def train(config, checkpoint_dir=None):
        step = load(checkpoint_dir) if checkpoint_dir else 0
        while step < 100:
            ...
            with tune.checkpoint_dir(step=step) as folder:
                save(folder)
            tune.report(loss=loss)

    analysis = tune.run(train, name="search", config={"lr": tune.loguniform(1e-4, 1e-1)}, num_samples=16,
                        metric="loss", mode="min", resume="AUTO")
    print(analysis.best_config, analysis.best_checkpoint)

The names are those of Ray Tune. The trials are processes that the library's runner starts and
watches. See docs/reference/tune-python.md.
"""

from ..syncer import SyncConfig
from . import schedulers, search, stopper
from .analysis import ExperimentAnalysis, Trial
from .cluster import init
from .driver import TrialError, TuneError, run
from .schedulers import create_scheduler
from .search import Searcher
from .session import (
    Checkpoint,
    TrialContext,
    TrialEnded,
    checkpoint_dir,
    get_checkpoint,
    get_context,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    heartbeat,
    is_session_enabled,
    report,
)
from .space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from .stopper import Stopper
from .trainable import Trainable, with_parameters, with_resources
from .tuner import CheckpointConfig, FailureConfig, Result, ResultGrid, RunConfig, TuneConfig, Tuner

syncConfig = SyncConfig  # noqa: N816 - as the guide of Ray Tune spells it once

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "ExperimentAnalysis",
    "FailureConfig",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Searcher",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "Trial",
    "TrialContext",
    "TrialEnded",
    "TrialError",
    "TuneConfig",
    "TuneError",
    "Tuner",
    "checkpoint_dir",
    "choice",
    "create_scheduler",
    "get_checkpoint",
    "get_context",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "grid_search",
    "heartbeat",
    "init",
    "is_session_enabled",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "stopper",
    "syncConfig",
    "uniform",
    "with_parameters",
    "with_resources",
]
