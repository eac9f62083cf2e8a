# SPDX-License-Identifier: Apache-2.0
"""Trainables: classes whose steps the trial runs, functions that report, and either with more
arguments.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _files, _pickled, _pickles
from .._pawl import UsageError
from ..checkpoint import load, save
from .session import Session

_NOTES = ".trainable.json"  # in a class's checkpoint: result of save_checkpoint, configuration


class Trainable:
    """A training run in steps. A subclass defines ``setup``, ``step``, ``save_checkpoint`` and
    ``load_checkpoint``.

    Args:
        config: The configuration. Default: None, empty.
        session: The session of a trial, which ``tune.run`` passes. Default: None.
    """

    def __init__(self, config: dict[str, Any] | None = None, session: Session | None = None) -> None:
        self.config = config or {}
        self._session = session
        self._iteration = 0
        self._time_total = 0.0
        self._restored = False
        self._allow_pickle = False
        self.setup(self.config)

    # ---- what a subclass has ----

    def setup(self, config: dict[str, Any]) -> None:
        """Called once, before everything else.

        Args:
            config: The configuration.
        """

    def step(self) -> dict[str, Any]:
        """One step of the training.

        Returns:
            Results by name; ``done: True`` in it ends the trial.

        Raises:
            NotImplementedError: The subclass has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method step")

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Saves the state of the training.

        Args:
            checkpoint_dir: An empty folder for files.

        Returns:
            None or the folder if files were written; or a dict (tensors, numbers, texts, lists and
            dicts of them; anything with ``allow_pickle=True`` of tune.run).

        Raises:
            NotImplementedError: The subclass has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method save_checkpoint")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restores the state of the training.

        Args:
            checkpoint: The dict that ``save_checkpoint`` returned, else the folder.

        Raises:
            NotImplementedError: The subclass has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method load_checkpoint")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switches to another configuration without a new object.

        Args:
            new_config: The configuration.

        Returns:
            False if it cannot; then a new object is made.
        """
        return False

    def apply_config(self, config: dict[str, Any]) -> None:
        """Called after ``load_checkpoint`` if the checkpoint was made with another configuration
        (population based training). Set new values over restored ones here, such as ``lr`` in an
        optimizer's param_groups.

        Args:
            config: The configuration.
        """

    def cleanup(self) -> None:
        """Called at the end."""

    # ---- what a subclass may read ----

    @property
    def iteration(self) -> int:
        """Number of steps made, including those before the checkpoint."""
        return self._iteration

    training_iteration = iteration

    @property
    def logdir(self) -> str:
        """The trial's folder."""
        return self._session.context.trial_dir if self._session else os.getcwd()

    @property
    def trial_name(self) -> str:
        """Name of the trial."""
        return self._session.context.trial_name if self._session else "default"

    @property
    def trial_id(self) -> str:
        """Id of the trial."""
        return self._session.context.trial_id if self._session else "default"

    @property
    def trial_resources(self) -> Mapping[str, float]:
        """What the trial takes, such as ``{"cpu": 2.0}``."""
        return self._session.context.trial_resources if self._session else {}

    def get_config(self) -> dict[str, Any]:
        """The configuration.

        Returns:
            ``config``.
        """
        return self.config

    # ---- what runs it ----

    def train(self) -> dict[str, Any]:
        """Runs one step and counts it.

        Returns:
            The results of ``step``, with "done".

        Raises:
            UsageError: ``step`` did not return a dict.
        """
        begin = time.monotonic()
        result = self.step()
        if not isinstance(result, Mapping):
            raise UsageError(f"{type(self).__name__}.step must return a dict, received {type(result).__name__}")
        self._iteration += 1
        self._time_total += time.monotonic() - begin
        return {"done": False, **result}

    def save(self, checkpoint_dir: str) -> str:
        """Saves a checkpoint.

        Args:
            checkpoint_dir: An empty folder.

        Returns:
            The folder.

        Raises:
            UsageError: ``save_checkpoint`` wrote files and returned a dict, or returned something
                else.
        """
        found = self.save_checkpoint(checkpoint_dir)
        notes = {"kind": "files", "path": "", "iteration": self._iteration, "config": _texts(self.config)}
        if isinstance(found, dict):
            if os.listdir(checkpoint_dir):
                raise UsageError(
                    f"{type(self).__name__}.save_checkpoint must write files or return a dict, but did both"
                )
            os.rmdir(checkpoint_dir)  # save makes it again
            save(_pickles.wrap(found) if self._allow_pickle else found, checkpoint_dir)
            notes["kind"] = "dict"
        elif isinstance(found, str):
            notes["path"] = self._inside(found, checkpoint_dir)
        elif found is not None:
            raise UsageError(
                f"{type(self).__name__}.save_checkpoint must return None, a dict or a path, received {found!r}"
            )
        with open(os.path.join(checkpoint_dir, _NOTES), "w", encoding="utf-8") as file:
            json.dump(notes, file)
        return checkpoint_dir

    def _inside(self, path: str, checkpoint_dir: str) -> str:
        relative = os.path.relpath(os.path.join(checkpoint_dir, path), checkpoint_dir)
        if relative.split(os.sep)[0] == os.pardir:
            raise UsageError(
                f"{type(self).__name__}.save_checkpoint must return a path in {checkpoint_dir}, received {path}"
            )
        return "" if relative == os.curdir else relative

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """Continues from what ``save`` wrote.

        Args:
            checkpoint_path: The folder.
        """
        folder = os.fspath(checkpoint_path)
        notes = _notes(folder)
        if notes.get("kind") == "dict":
            self.load_checkpoint(_pickles.unwrap(load(folder), self._allow_pickle))
        else:
            self.load_checkpoint(os.path.join(folder, notes["path"]) if notes.get("path") else folder)
        self._iteration = int(notes.get("iteration", 0))
        self._restored = True
        if notes and notes.get("config") != _texts(self.config):
            self.apply_config(self.config)

    def stop(self) -> None:
        """Ends it: calls ``cleanup``."""
        self.cleanup()


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): repr(value) for key, value in config.items()}


def _notes(folder: str) -> dict[str, Any]:
    try:
        return _files.read_dict(os.path.join(folder, _NOTES))
    except FileNotFoundError:
        return {}


class Wrapped:
    """A trainable with further arguments, and with the resources of a trial."""

    def __init__(self, trainable: Any) -> None:
        inner = trainable if isinstance(trainable, Wrapped) else None
        self.trainable: Any = inner.trainable if inner else trainable
        self.arguments: dict[str, Any] = dict(inner.arguments) if inner else {}
        self.resources: Mapping[str, Any] | None = inner.resources if inner else None


def with_parameters(trainable: Any, **kwargs: Any) -> Wrapped:
    """A trainable with further arguments, which may be large.

    Args:
        trainable: A function, or a subclass of Trainable.
        kwargs: Arguments of the function, or of the class's ``setup``.

    Returns:
        A trainable.
    """
    found = Wrapped(trainable)
    found.arguments |= kwargs
    return found


def with_resources(trainable: Any, resources: Mapping[str, Any]) -> Wrapped:
    """A trainable with what each trial takes.

    Args:
        trainable: A function, or a subclass of Trainable.
        resources: Amounts by name, ``{"cpu": 2, "gpu": 1}``.

    Returns:
        A trainable.
    """
    found = Wrapped(trainable)
    found.resources = dict(resources)
    return found


def is_class(trainable: Any) -> bool:
    return isinstance(trainable, type) and issubclass(trainable, Trainable)


def check(trainable: Any) -> None:
    """Checks that it is a subclass of Trainable, or a function of the configuration."""
    inner = trainable.trainable if isinstance(trainable, Wrapped) else trainable
    if is_class(inner):
        return
    if isinstance(inner, type) or not callable(inner):
        raise UsageError(f"the trainable must be a function or a subclass of tune.Trainable, received {inner!r}")
    known = {"checkpoint_dir", "reporter"} | set(trainable.arguments if isinstance(trainable, Wrapped) else ())
    needed = [
        name
        for name, one in inspect.signature(inner).parameters.items()
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and name not in known
    ]
    if len(needed) != 1:
        raise UsageError(
            f"the trainable takes the configuration, and checkpoint_dir if it wants; {_pickled.who(inner)} needs "
            f"{', '.join(needed) or 'nothing'}"
        )


def name_of(trainable: Any) -> str:
    inner = trainable.trainable if isinstance(trainable, Wrapped) else trainable
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def call_function(wrapped: Wrapped, session: Session, report: Callable[..., None]) -> Any:
    """Calls a function in a trial. Returns its result."""
    function = wrapped.trainable
    parameters = inspect.signature(function).parameters
    more = dict(wrapped.arguments)
    if "checkpoint_dir" in parameters:
        more["checkpoint_dir"] = None if session.checkpoint is None else session.checkpoint.path
    if "reporter" in parameters:
        more["reporter"] = report
    return function(session.config, **more)


def make_class(wrapped: Wrapped, session: Session, allow_pickle: bool = False) -> Trainable:
    """Makes the object whose steps a trial runs."""
    kind: Any = wrapped.trainable
    if wrapped.arguments:
        given = wrapped.arguments

        class WithParameters(kind):  # type: ignore[misc]
            def setup(self, config: dict[str, Any]) -> None:
                super().setup(config, **given)

        WithParameters.__name__ = kind.__name__
        kind = WithParameters
    made: Trainable = kind(session.config, session)
    made._allow_pickle = allow_pickle
    return made


PAYLOAD = "PAWL_TUNE_PAYLOAD"  # names the file with the job in the environment of a trial


@dataclass(frozen=True)
class Job:
    """What all trials of an experiment must know."""

    trainable: Wrapped
    objects: dict[str, Any]  # values of configurations that JSON cannot hold
    experiment: str
    resources: dict[str, float]
    restore: str | None = None  # a checkpoint for trials that have none of their own
    freq: int = 0  # classes: steps between two checkpoints
    at_end: bool = False
    allow_pickle: bool = False  # in checkpoints of classes

    def payload(self, config: Mapping[str, Any]) -> bytes:
        """Pickles the job for ``job_of``, with ``sys.path``, which must be set before modules are
        loaded.
        """
        inner = _pickled.dumps(self, self.trainable.trainable, config, "config", "trainable")
        here = os.getcwd()
        return pickle.dumps(([entry or here for entry in sys.path], inner))


def job_of(payload: bytes) -> Job:
    path, inner = pickle.loads(payload)
    sys.path.extend(entry for entry in path if entry not in sys.path)
    found: Job = pickle.loads(inner)
    return found
