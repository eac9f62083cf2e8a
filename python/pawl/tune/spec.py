# SPDX-License-Identifier: Apache-2.0
"""Makes the document of an experiment from the arguments of tune.run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _checks
from .._pawl import UnsupportedError, UsageError
from ..syncer import SyncConfig
from . import schedulers, space, stopper, trainable

_RESUME = ("AUTO", "LOCAL", "REMOTE", "PROMPT", "ERRORED_ONLY")


def check_resume(resume: object) -> str | None:
    """Returns one of the words in ``_RESUME``, or None for a new experiment."""
    if resume is None or resume is False:
        return None
    if resume is True:
        return "LOCAL"
    if isinstance(resume, str) and resume in _RESUME:
        return resume
    raise UsageError(f"resume must be True, False or one of {', '.join(_RESUME)}, received {resume!r}")


def whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of {least} or more, received {value!r}")
    return value


_RESOURCES = {"cpu": "cpu", "CPU": "cpu", "gpu": "gpu", "GPU": "gpu", "memory": "memory_bytes"}
_ENGINES = ("local", "ray")


def engine_of(engine: object) -> str:
    """The engine that runs the trials.

    If none is given, it is Ray in a process that has joined a cluster, else this machine.
    """
    if engine is None:
        ray = sys.modules.get("ray")
        return "ray" if ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized() else "local"
    if not isinstance(engine, str) or engine not in _ENGINES:
        raise UsageError(f'engine must be "local", "ray" or None, received {engine!r}')
    return engine


def custom_of(given: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Splits resources into those of a machine and those that only a cluster has.

    The latter are given by their names or in "custom_resources".
    """
    if not isinstance(given, Mapping):
        return given, {}
    custom = {name: value for name, value in given.items() if name not in _RESOURCES and name != "custom_resources"}
    custom |= given.get("custom_resources") or {}
    for name, value in custom.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"resources_per_trial: {name} must be a number of 0 or more, received {value!r}")
    return {name: value for name, value in given.items() if name in _RESOURCES}, custom


def resources_of(given: Mapping[str, Any] | None) -> dict[str, float]:
    """The resources of each trial, in the form of the document."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"resources_per_trial must be a dict such as {{'cpu': 1, 'gpu': 0.5}}, received {given!r}")
    found: dict[str, float] = {"cpu": 1, "gpu": 0}
    for name, value in (given or {}).items():
        if name not in _RESOURCES:
            raise UsageError(f"resources_per_trial: expected some of cpu, gpu, memory, received {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"resources_per_trial: {name} must be a number of 0 or more, received {value!r}")
        found[_RESOURCES[name]] = value
    return found


@dataclass
class Plan:
    """All settings of an experiment before it begins."""

    document: dict[str, Any]
    folder: str
    objects: space.Objects
    space: Mapping[str, Any]
    stopper: stopper.Stopper | None
    sync: SyncConfig
    resources: dict[str, float] = field(default_factory=dict)
    engine: str = "local"
    local: str = ""  # the folder as given; below ~ it is another folder on each machine
    custom: dict[str, float] = field(default_factory=dict)  # resources that only a cluster has
    forks: bool = False  # trials are forked from a process that has loaded their modules
    fail_fast: bool = False
    allow_pickle: bool = False
    explorer: schedulers.Explorer | None = None  # of population based training
    given: str | None = None  # a checkpoint that all trials begin with


def _metric(
    metric: str | None, mode: str | None, scheduler: schedulers.TrialScheduler | None
) -> tuple[str | None, str | None]:
    """Metric and mode of the experiment: those of tune.run, else those of the scheduler."""
    given = scheduler.metric if scheduler else None
    order = scheduler.mode if scheduler else None
    for name, one, other in (("metric", metric, given), ("mode", mode, order)):
        if one is not None and other is not None and one != other:
            raise UsageError(f"{name}: tune.run has {one!r}, the scheduler has {other!r}; give it once")
    metric, mode = metric or given, mode or order
    if mode not in (None, "min", "max"):
        raise UsageError(f'mode must be "min" or "max", received {mode!r}')
    if metric is not None and mode is None:
        raise UsageError(f'metric is {metric!r}: give mode as well, "min" or "max"')
    return metric, mode


def _folder(name: str, local_dir: str | os.PathLike[str] | None) -> str:
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name:
        raise UsageError(f"name must be the name of a folder, received {name!r}")
    place = _checks.path("local_dir", "~/ray_results" if local_dir is None else local_dir)
    if "://" in place:
        raise UsageError(f"local_dir must be a folder; give a URL as SyncConfig(upload_dir={place!r})")
    return os.path.join(os.path.abspath(place), name)


def default_name(what: Any) -> str:
    return f"{trainable.name_of(what)}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"


def _seconds(budget: object) -> float:
    return 0.0 if budget is None else _checks.seconds("time_budget_s", budget)


def _score(attribute: str | None) -> str:
    if attribute is not None and not isinstance(attribute, str):
        raise UsageError(f"checkpoint_score_attr must be the name of a result, received {attribute!r}")
    return attribute or "training_iteration"


def _sync(config: SyncConfig | None) -> SyncConfig:
    if config is not None and not isinstance(config, SyncConfig):
        raise UsageError(f"sync_config must be a tune.SyncConfig, received {config!r}")
    return config or SyncConfig()


def may_fork(resources: Mapping[str, float]) -> bool:
    """Whether trials may be forked. A GPU that was opened before a fork cannot be used after it."""
    return resources.get("gpu", 0) == 0


def keep_options(plan: Plan, fail_fast: bool, fork: bool) -> None:
    """Sets options that the document has no keys for, and notes in it what Tuner.restore needs."""
    plan.fail_fast, plan.forks = fail_fast, fork and may_fork(plan.resources)
    options = {"fail_fast": (bool(fail_fast), False), "fork": (bool(fork), True), "custom": (plan.custom, {})}
    before = plan.document.get("user", {})
    kept = {name: now for name, (now, default) in options.items() if name in before or now != default}
    if kept:
        plan.document["user"] = {**before, **kept}


def again(
    what: Any,
    folder: str,
    space_: Mapping[str, Any] | None,
    sync: SyncConfig,
    engine: str | None = None,
    fail_fast: bool | None = None,
    fork: bool | None = None,
) -> Plan:
    """The plan of an existing experiment.

    ``space_`` is the space that it began with. It is needed if that holds values that JSON cannot
    hold. ``fail_fast`` and ``fork`` are as it began if they are None.
    """
    with open(os.path.join(folder, "experiment.json"), encoding="utf-8") as file:
        document = json.load(file)["document"]
    objects = space.Objects()
    if space_ is not None:
        encoded = space.encode(space_, objects)
        if document["space"] or document["search"] != "given":  # that of a searcher stays empty
            document["space"] = encoded
    document |= {"name": os.path.basename(folder), "local_dir": os.path.dirname(folder)}
    plan = Plan(document, folder, objects, space_ or {}, None, sync, document["resources"], engine_of(engine))
    kept = document.get("user", {})
    plan.custom = kept.get("custom", {})  # elsewhere the document has only the resources of a machine
    if plan.engine == "ray" and not plan.custom:
        plan.custom = custom_of(getattr(what, "resources", None))[1]
    fail_fast = kept.get("fail_fast", False) if fail_fast is None else fail_fast
    keep_options(plan, fail_fast, kept.get("fork", True) if fork is None else fork)
    plan.local = folder
    return plan


def check_saving(what: Any, given: Mapping[str, Any]) -> None:
    """Refuses options that request checkpoints of a function, which saves by itself. Checks the
    trainable first.
    """
    trainable.check(what)
    for name, value in given.items():
        if value and not trainable.is_class(trainable.Wrapped(what).trainable):
            raise UsageError(
                f"{name}={value!r} is for subclasses of tune.Trainable; the function {trainable.name_of(what)} "
                "makes its checkpoints itself, by tune.checkpoint_dir or tune.report(checkpoint=...)"
            )


def make(what: Any, o: Mapping[str, Any]) -> Plan:
    """Makes the plan of a new experiment. ``o`` holds the arguments of tune.run by their names."""
    check_saving(what, {name: o[name] for name in ("checkpoint_freq", "checkpoint_at_end")})
    scheduler, config = o["scheduler"], o["config"] or {}
    if isinstance(scheduler, str):
        scheduler = schedulers.create_scheduler(scheduler)
    if scheduler is not None and not isinstance(scheduler, schedulers.TrialScheduler):
        raise UnsupportedError(f"scheduler must be one of pawl.tune.schedulers, received {scheduler!r}")
    if not isinstance(config, Mapping):
        raise UsageError(f"config must be a dict, received {config!r}")
    config = scheduler.complete(config) if scheduler is not None else config
    objects = space.Objects()
    metric, mode = _metric(o["metric"], o["mode"], scheduler)
    limits, stop = stopper.split(o["stop"])
    given = o["search_alg"] is not None or any(True for _ in space.functions(config))
    folder = _folder(o["name"] or default_name(what), o["local_dir"])
    wanted, custom = o["resources_per_trial"] or getattr(what, "resources", None), dict[str, float]()
    engine = engine_of(o.get("engine"))
    if engine == "ray":
        wanted, custom = custom_of(wanted)
    resources = resources_of(wanted)
    keep = o["keep_checkpoints_num"]
    sync = _sync(o["sync_config"])
    document: dict[str, Any] = {
        "name": os.path.basename(folder),
        "local_dir": os.path.dirname(folder),
        "num_samples": whole("num_samples", o["num_samples"], 1),
        "seed": whole("seed", o["seed"], 0),
        "space": space.encode(config, objects),
        "search": "given" if given else "grid-random",
        "stop": limits,
        "max_failures": whole("max_failures", o["max_failures"], -1),
        "resources": resources,
        "max_concurrent": whole("max_concurrent_trials", o["max_concurrent_trials"] or 0, 0),
        "checkpoint": {
            "keep": None if keep is None else whole("keep_checkpoints_num", keep, 1),
            "score_attr": _score(o["checkpoint_score_attr"]),
            "freq": whole("checkpoint_freq", o["checkpoint_freq"], 0),
            "at_end": bool(o["checkpoint_at_end"]),
        },
        "time_budget_s": _seconds(o["time_budget_s"]),
        "heartbeat_s": _checks.seconds("heartbeat_s", o["heartbeat_s"]),
        "grace_s": _checks.seconds("grace_s", o["grace_s"]),
    }
    if metric is not None:
        document |= {"metric": metric, "mode": mode}
    if scheduler is not None:
        document["scheduler"] = scheduler.spec(objects)
    explorer = scheduler.explorer() if scheduler is not None else None
    local = os.path.join(os.fspath(o["local_dir"] or "~/ray_results"), os.path.basename(folder))
    local = local if local.startswith("~") else folder
    plan = Plan(document, folder, objects, config, stop, sync, resources, engine, local, custom)
    plan.explorer = explorer
    return plan
