# SPDX-License-Identifier: Apache-2.0
"""Errors for unknown options, methods and functions. They name the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])

_SHOWN = 10
# Option -> how it is written as an argument of CheckpointManager.
_WRITTEN: dict[str, str] = {}
_GROUPS: set[str] = set()
# Options of Orbax, Flax, Lightning, transformers, accelerate, torch's DCP, Ray, Composer and others
# -> ours.
_ELSEWHERE = {
    **dict.fromkeys(
        (
            "keep",
            "keep_checkpoint_max",
            "keep_checkpoints_num",
            "keep_most_recent_by_count",
            "max_checkpoints",
            "max_to_keep",
            "n_saved",
            "num_checkpoints_to_keep",
            "save_num_checkpoints_to_keep",
            "save_top_k",
            "save_total_limit",
            "total_limit",
        ),
        "num_to_keep",
    ),
    **dict.fromkeys(
        (
            "checkpoint_freq",
            "checkpoint_frequency",
            "checkpoint_interval",
            "every_n_epochs",
            "every_n_steps",
            "every_n_train_steps",
            "save_checkpoint_steps",
            "save_decision_policy",
            "save_interval_steps",
            "save_on_steps",
            "save_steps",
            "save_strategy",
            "should_save_fn",
            "train_time_interval",
        ),
        "save_interval",
    ),
    **dict.fromkeys(
        (
            "best_fn",
            "checkpoint_score_attr",
            "checkpoint_score_attribute",
            "metric",
            "metric_for_best_model",
            "monitor",
            "score_function",
            "score_name",
        ),
        "score_attribute",
    ),
    **dict.fromkeys(("best_mode", "checkpoint_score_order", "greater_is_better"), "score_order"),
    **dict.fromkeys(
        (
            "checkpoint_dir",
            "ckpt_dir",
            "directory",
            "dirpath",
            "folder",
            "output_dir",
            "save_dir",
            "save_folder",
            "storage",
            "storage_path",
        ),
        "root",
    ),
    **dict.fromkeys(("block", "blocking", "sync", "synchronous"), "wait"),
    **dict.fromkeys(("callback", "callbacks", "hooks"), "on_durable (also on_uploaded, on_deleted and on_error)"),
    **dict.fromkeys(("checkpoint_id", "filepath", "checkpoint_path"), "path"),
    **dict.fromkeys(
        ("checkpoint_name", "filename", "filename_prefix", "prefix", "save_filename", "step_prefix"),
        "naming=pawl.Naming(name_template=...)",
    ),
    **dict.fromkeys(("overwrite_output_dir", "save_overwrite"), "overwrite"),
    **dict.fromkeys(("keep_every_n_steps", "keep_period"), "retention=pawl.Retention(keep_every=...)"),
    **dict.fromkeys(
        ("keep_checkpoint_every_n_hours", "keep_time_interval"), "retention=pawl.Retention(keep_hourly=...)"
    ),
    **dict.fromkeys(("preservation_policy", "should_keep_fn"), "retention=pawl.Retention(keep=...)"),
    "save_last": "retention=pawl.Retention(keep_latest=...)",
    "bandwidth": "io=pawl.IO(write_bytes_per_second=...)",
    "thread_count": "io=pawl.IO(threads=...)",
    "num_concurrent_uploads": "uploads=pawl.Uploads(n_streams=...)",
    "upload_timeout_in_seconds": "timeouts=pawl.Timeouts(upload=...)",
    "mirror": "mirrors",
    "remote_file_name": "mirrors",
    "mode": "score_order (of scores) or staging=pawl.Staging(mode=...)",
    "strict_restore": "strict",
    "state_dict": "state",
    "model": "state={'model': model, ...}",
}
# Options that are not needed, or that need another call.
_SAID = {
    **dict.fromkeys(
        (
            "async",
            "async_",
            "async_manager",
            "async_options",
            "async_save",
            "enable_async",
            "enable_async_checkpointing",
        ),
        "CheckpointManager.save works in the background, and wait=True waits",
    ),
    **dict.fromkeys(
        ("autoresume", "load_path", "resume", "resume_from_checkpoint"),
        "open the manager, then call restore()",
    ),
    **dict.fromkeys(
        ("cleanup_tmp_directories", "create", "enable_background_delete"), "the manager does that by itself"
    ),
    **dict.fromkeys(("device", "map_location"), "tensors come back where those of state=... are"),
    "weights_only": "no code of a checkpoint is ever run",
}
# The same for single functions and classes.
_SAID_BY = {
    "CheckpointManager": {"path": "use root"},
    "load": {
        "step": "the path names the step: 'RUN@400'",
        "id": "the path names the id: 'RUN@id:7'",
        "which": "the path names it: 'RUN@best'",
    },
    "hold": {"step": "it takes the id; manager.checkpoints() has id and step"},
    "convert": {
        "cast": "use dtype",
        "step": "use select='400'",
        "which": "use select='best'",
        "id": "use select='id:7'",
    },
}

# Methods and functions of other libraries -> ours.
_CALLS = {
    "CheckpointManager": {
        **dict.fromkeys(("flush", "join", "wait", "wait_for_save"), "wait_until_finished()"),
        **dict.fromkeys(("load", "load_checkpoint", "load_state", "resume", "restore_or_initialize"), "restore()"),
        **dict.fromkeys(("async_save", "save_checkpoint", "save_state"), "save()"),
        **dict.fromkeys(("best", "best_checkpoint", "best_model_path", "get_best_checkpoint"), '["best"]'),
        **dict.fromkeys(("get_checkpoint", "last_model_path", "latest", "latest_checkpoint"), "checkpoint()"),
        **dict.fromkeys(("all_checkpoints", "best_checkpoints", "best_k_models", "list", "ls"), "checkpoints()"),
        **dict.fromkeys(("delete_checkpoint", "remove"), "delete()"),
        **dict.fromkeys(("finish", "shutdown", "stop"), "close()"),
        "item_metadata": "metadata()",
        "reached_preemption": "preempted",
        "steps": "all_steps()",
    },
    "Checkpoint": {
        **dict.fromkeys(("load", "load_state", "restore", "state", "state_dict"), "to_dict(), or pawl.load(its path)"),
        "metadata": "get_metadata()",
        **dict.fromkeys(
            ("id", "metrics", "name", "nbytes", "progress", "score", "step", "time"),
            "CheckpointManager.checkpoints(), whose rows have it",
        ),
    },
    "pawl": {
        **dict.fromkeys(("load_checkpoint", "load_state_dict", "restore", "restore_checkpoint"), "load"),
        **dict.fromkeys(("dump", "save_checkpoint", "save_state_dict"), "save"),
        **dict.fromkeys(("async_save", "save_async"), "CheckpointManager, whose save works in the background"),
        **dict.fromkeys(
            ("AsyncCheckpointer", "Checkpointer", "CheckpointManagerOptions", "ModelCheckpoint", "Saver"),
            "CheckpointManager",
        ),
        **dict.fromkeys(("get_checkpoint", "latest_checkpoint"), "load('RUN@latest')"),
        **dict.fromkeys(("list", "ls", "runs"), "tree, or the command pawl ls"),
        "CheckpointSaver": "composer.CheckpointSaver",
        "FileSystemReader": "torch.StorageReader",
        "FileSystemWriter": "torch.StorageWriter",
    },
}


def elsewhere(owner: str, name: str) -> str:
    """The text of the AttributeError of a manager, a checkpoint or the module."""
    what = "module 'pawl'" if owner == "pawl" else f"'{owner}' object"
    meant = _CALLS[owner].get(name)
    return f"{what} has no attribute {name!r}{f'; use {meant}' if meant else ''}"


def listed(names: Iterable[object]) -> str:
    """ "a, b, c". After 10 names it ends with a count: "a, ... and 7 more"."""
    texts = [str(name) for name in names]
    more = [f"... and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join(texts[:_SHOWN] + more)


def nearest(name: str, known: list[str]) -> str:
    """ "; did you mean model/w?", or nothing."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _accepts(known: list[str], written: str) -> bool:
    """Whether a function has the argument with which the text begins."""
    return re.split("[= ]", written)[0] in known


def explain(owner: str, known: list[str], name: str, value: object = None) -> str:
    """The error text for an unknown option of a class or a function: what to write instead."""
    text = f"{owner} has no option {name!r}"
    if said := _SAID_BY.get(owner, {}).get(name) or _SAID.get(name):
        return f"{text}; {said}"
    is_group = owner in _GROUPS
    other = _ELSEWHERE.get(name, "")
    if (own := re.search(rf"pawl\.{owner}\((\w+)=", other)) or _accepts(known, other):
        return f"{text}; use {own[1] if own else other}"
    written = {key: value for key, value in _WRITTEN.items() if is_group or _accepts(known, value)}
    if given := written.get(name, other if is_group else ""):
        return f"{text}; it is {given}{' of CheckpointManager' if is_group else ''}"
    near = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(name, written, 1)
    if not near and isinstance(value, int | float) and not isinstance(value, bool) and "metrics" in known:
        return f"{text}; write metrics={{{name!r}: {value!r}}}"
    if not near:
        return f"{text}; expected {'one of ' * (len(known) > 1)}{listed(known) or 'none'}"
    return f"{text}; did you mean {near[0] if near[0] in known else written[near[0]]}?"


def _checked(original: C, owner: str, known: list[str]) -> C:
    names = frozenset(known)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        if not names.issuperset(options):
            name = next(name for name in options if name not in names)
            raise TypeError(explain(owner, known, name, options[name]))
        return original(*args, **options)

    return call  # type: ignore[return-value]


def _options_of(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def explained(what: C) -> C:
    """A decorator: the function, or the class with its methods, explains unknown options."""
    if not isinstance(what, type):
        return _checked(what, what.__qualname__, _options_of(what))
    name = what.__name__
    for method, function in inspect.getmembers(what, inspect.isfunction):
        if not method.startswith("_"):
            function.__qualname__ = f"{name}.{method}"  # also if inherited, since errors show it
            setattr(what, method, _checked(function, function.__qualname__, _options_of(function)))
    original: Callable[..., Any] = vars(what)["__init__"]
    known = _options_of(original)
    written = "{0}"
    if name != "CheckpointManager":
        _GROUPS.add(name)
        written = f"{name.lower()}=pawl.{name}({{0}}=...)"
    if name != "Mirror":
        _WRITTEN.update({option: written.format(option) for option in known if option != "root"})
    setattr(what, "__init__", _checked(original, name, known))  # noqa: B010
    return what
