# SPDX-License-Identifier: Apache-2.0
"""Unknown names of options: the error names the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

# Option -> the argument of CheckpointManager, as it is written.
_WRITTEN: dict[str, str] = {}
# Options of other libraries -> ours.
_ELSEWHERE = {
    "max_to_keep": "num_to_keep",
    "keep_checkpoint_max": "num_to_keep",
    "keep_checkpoints_num": "num_to_keep",
    "num_checkpoints_to_keep": "num_to_keep",
    "save_num_checkpoints_to_keep": "num_to_keep",
    "save_total_limit": "num_to_keep",
    "save_top_k": "num_to_keep",
    "total_limit": "num_to_keep",
    "keep_period": "retention=pawl.Retention(keep_every=...)",
    "keep_time_interval": "retention=pawl.Retention(keep_hourly=...)",
    "save_last": "retention=pawl.Retention(keep_latest=...)",
    "best_fn": "score_attribute",
    "best_mode": "score_order",
    "checkpoint_score_attribute": "score_attribute",
    "checkpoint_score_attr": "score_attribute",
    "checkpoint_score_order": "score_order",
    "checkpoint_frequency": "save_interval",
    "checkpoint_freq": "save_interval",
    "every_n_epochs": "save_interval",
    "every_n_train_steps": "save_interval",
    "every_n_steps": "save_interval",
    "save_interval_steps": "save_interval",
    "save_steps": "save_interval",
    "metric_for_best_model": "score_attribute",
    "monitor": "score_attribute",
    "metric": "score_attribute",
    "greater_is_better": "score_order",
    "mode": "score_order (of scores) or staging=pawl.Staging(mode=...)",
    "bandwidth": "io=pawl.IO(write_bytes_per_second=...)",
    "mirror": "mirrors",
    "dirpath": "root",
    "directory": "root",
    "save_folder": "root",
    "save_overwrite": "overwrite",
    "resume": "restore() after the manager is opened",
}


def explain(owner: str, known: list[str], name: str) -> str:
    """What to write instead of an unknown option."""
    if name in _ELSEWHERE and owner == "CheckpointManager":
        return f"{owner} has no option {name!r}; use {_ELSEWHERE[name]}"
    if name in _WRITTEN:
        where = "" if owner == "CheckpointManager" else " of CheckpointManager"
        return f"{owner} has no option {name!r}; it is {_WRITTEN[name]}{where}"
    near = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(name, _WRITTEN, 1)
    if not near:
        return f"{owner} has no option {name!r}; expected one of {', '.join(known)}"
    meant = near[0] if near[0] in known else _WRITTEN[near[0]]
    return f"{owner} has no option {name!r}; did you mean {meant}?"


def explained(cls: C) -> C:
    """The class, whose constructor explains an unknown option."""
    original: Callable[..., None] = vars(cls)["__init__"]
    known = [name for name in inspect.signature(original).parameters if name != "self"]
    written = "{0}" if cls.__name__ == "CheckpointManager" else f"{cls.__name__.lower()}=pawl.{cls.__name__}({{0}}=...)"
    if cls.__name__ != "Mirror":
        _WRITTEN.update({name: written.format(name) for name in known if name != "root"})

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise TypeError(explain(cls.__name__, known, name))
        original(self, *args, **options)

    setattr(cls, "__init__", init)  # noqa: B010
    return cls
