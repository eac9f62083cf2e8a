# SPDX-License-Identifier: Apache-2.0
"""The trial's side of a search: report, checkpoint_dir, get_checkpoint, and the trial's name and
id.

A trial is a process that the runner has started. They communicate through a socket, one JSON object
a line (docs/reference/tune.md).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from .. import _files, _metrics
from .._context import Context
from .._pawl import UsageError
from ..checkpoint import Checkpoint as _Checkpoint
from ..checkpoint import new_folder
from . import _json, elsewhere


class Checkpoint(_Checkpoint):
    """A checkpoint of a trial: a folder with any files, which is also a path, or a dict
    (``from_dict``) to report.

    The checkpoint of a trial on a cluster may exist in ``upload_dir`` only. ``fetch``,
    ``as_directory``, ``to_directory`` and ``to_dict`` copy it to this machine.

    Paths are ``str``, as in Ray Tune.

    Args:
        path: Its folder.
    """

    @property
    def path(self) -> str | None:
        """The folder; None in memory."""
        return self._path

    def fetch(self) -> str:
        """Copies the files to this machine if they are not here.

        Returns:
            Path of the folder.

        Raises:
            UnsupportedError: A sync function has copied them elsewhere.
            StorageError: They cannot be fetched.
        """
        path = os.fspath(self)
        elsewhere.bring(path)
        return path

    def __fspath__(self) -> str:
        if self.path is None:
            raise UsageError("a checkpoint in memory has no path; use to_directory() or as_directory()")
        return self.path

    def __str__(self) -> str:
        return repr(self) if self.path is None else self.path

    @property
    def value(self) -> str | None:
        """The path, under its name in older versions of Ray Tune; None in memory."""
        return self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path is not None and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def to_dict(self) -> dict[str, Any]:
        if self.path is not None:
            self.fetch()
        return super().to_dict()

    @contextmanager
    def as_directory(self) -> Generator[str, None, None]:  # type: ignore[override]
        if self.path is not None:
            self.fetch()
        with super().as_directory() as folder:
            yield os.fspath(folder)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:  # type: ignore[override]
        if self.path is not None:
            self.fetch()
        if not self._has_files():
            return os.fspath(super().to_directory(path))
        target = os.path.abspath(path) if path is not None else new_folder(None)
        shutil.copytree(self, target, dirs_exist_ok=True)
        return target

    def _has_files(self) -> bool:
        return self.path is not None and not os.path.isfile(os.path.join(self.path, "manifest.json"))


class TrialEnded(SystemExit):
    """The trial must end now: it was stopped, paused, or continues elsewhere.

    It is not an error. Do not catch it.
    """


@dataclass(frozen=True)
class TrialContext(Context):
    """The name and id of a trial.

    Attributes:
        experiment_name: Name of the experiment.
        trial_name: Name of the trial.
        trial_id: Its id.
        trial_dir: Its folder.
        trial_resources: What it takes, such as ``{"cpu": 2.0}``.
    """

    trial_resources: Mapping[str, float] = field(default_factory=dict)

    def get_trial_resources(self) -> Mapping[str, float]:
        """What the trial takes.

        Returns:
            ``trial_resources``.
        """
        return self.trial_resources


class Channel(Protocol):
    """The trial's channel to its runner."""

    def send(self, message: Mapping[str, Any]) -> None: ...

    def receive(self) -> dict[str, Any]: ...


class SocketChannel:
    """The trial's end of the socket. Several threads may send; one waits for answers."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        data = _json.dumps(dict(message)).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(data)
            except OSError:
                raise TrialEnded("the runner has ended") from None

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise TrialEnded("the runner has ended")
        return dict(json.loads(line))


class Session:
    """One trial while its function runs."""

    def __init__(self, channel: Channel, context: TrialContext, config: dict[str, Any], checkpoint: str | None) -> None:
        self.context, self.config = context, config
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        self.save_wanted = False
        self.replaced = False  # the trial continues from the checkpoint of another one
        self._channel = channel
        self._waiting: str | None = None  # the name of a checkpoint that no report has named yet
        self._saved = True  # the last result has a checkpoint

    def report(self, metrics: object, checkpoint: object = None) -> None:
        row = _metrics.plain(metrics)
        if checkpoint is not None:
            self._take_checkpoint(checkpoint)
        name, self._waiting = self._waiting, None
        self._saved = name is not None
        self._channel.send({"report": row, "checkpoint": name})
        answer = self._channel.receive()
        if "error" in answer:
            raise UsageError(f"report: {answer['error']}")
        if name is not None:
            self.checkpoint = Checkpoint(os.path.join(self.context.trial_dir, name))
        self.save_wanted = bool(answer.get("save"))
        verdict = answer["verdict"]
        self.replaced = verdict == "exploit"
        if verdict != "continue":
            raise TrialEnded(0)

    @contextmanager
    def checkpoint_dir(self, step: int) -> Generator[str, None, None]:
        if isinstance(step, bool) or not hasattr(type(step), "__index__") or int(step) < 0:
            raise UsageError(f"checkpoint_dir: step must be a whole number of 0 or more, received {step!r}")
        name = f"checkpoint_{int(step):06d}"
        partial = _files.hidden(os.path.join(self.context.trial_dir, name))
        os.mkdir(partial)
        try:
            yield partial
            _files.publish(partial, os.path.join(self.context.trial_dir, name))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if self._waiting not in (None, name):
            shutil.rmtree(os.path.join(self.context.trial_dir, str(self._waiting)), ignore_errors=True)
        self._waiting = name

    def heartbeat(self) -> None:
        self._channel.send({"heartbeat": 1})

    def is_saved(self) -> bool:
        """Whether the last result has a checkpoint."""
        return self._saved

    def send_checkpoint(self) -> None:
        """Sends a checkpoint that was made after the last report."""
        if self._waiting is not None:
            self._channel.send({"checkpoint": self._waiting})
            self._waiting, self._saved = None, True

    def _take_checkpoint(self, checkpoint: object) -> None:
        if not isinstance(checkpoint, _Checkpoint):
            raise UsageError(
                f"report: checkpoint must be a pawl.tune.Checkpoint, received {type(checkpoint).__name__}; "
                "make it by Checkpoint.from_dict or Checkpoint.from_directory"
            )
        with self.checkpoint_dir(self._next()) as folder:
            if checkpoint.path is not None and not os.path.isdir(checkpoint.path):
                raise UsageError(f"report: {checkpoint.path} is not a folder, so it cannot be reported as a checkpoint")
            if checkpoint.path is not None:
                shutil.copytree(checkpoint.path, folder, dirs_exist_ok=True)
            else:
                checkpoint.to_directory(folder)

    def _next(self) -> int:
        """A step that no checkpoint in the folder has yet."""
        names = (name.partition("checkpoint_") for name in os.listdir(self.context.trial_dir))
        return 1 + max((int(step) for before, _, step in names if not before and step.isdecimal()), default=0)


_here: Session | None = None


def enter(session: Session | None) -> None:
    """Sets the session of this process; None at its end."""
    global _here
    _here = session


def current() -> Session:
    if _here is None:
        raise UsageError("this can only be called in a trial, which tune.run starts")
    return _here


def is_session_enabled() -> bool:
    """Whether this process is a trial.

    Returns:
        True in a trial.
    """
    return _here is not None


def report(_metrics: Mapping[str, Any] | float | None = None, *, checkpoint: Any = None, **values: Any) -> None:
    """Reports results of the trial: ``report(loss=0.3)``, or ``report({"loss": 0.3},
    checkpoint=checkpoint)``. Does not return if the trial was stopped or paused.

    Args:
        _metrics: Values by name; or a number, named "_metric". Default: None.
        checkpoint: The checkpoint of this result. Default: None, what the last ``with
            checkpoint_dir(...)`` block wrote, if there was one since the last report.
        values: More values by name.

    Raises:
        TrialEnded: The trial is to end.
        UsageError: It is not called by a trial, or an argument is wrong.
    """
    if _metrics is None:
        row: dict[str, Any] = {}
    elif isinstance(_metrics, Mapping):
        row = dict(_metrics)
    else:
        row = {"_metric": _metrics}
    current().report({**row, **values}, checkpoint)


def heartbeat() -> None:
    """Reports that the trial makes progress, for ``tune.run(heartbeat_s=...)``.

    Raises:
        UsageError: It is not called by a trial.
    """
    current().heartbeat()


@contextmanager
def checkpoint_dir(step: int) -> Generator[str, None, None]:
    """A folder for a checkpoint. When the ``with`` block ends, its files are stored durably as
    ``checkpoint_<step>``. If an error ends the block, they are removed.

    Args:
        step: Number of the checkpoint, 0 or more.

    Yields:
        Path of an empty folder.

    Raises:
        UsageError: It is not called by a trial, or the step is not a number.
    """
    with current().checkpoint_dir(step) as folder:
        yield folder


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint to continue from, or the one that was reported last.

    Returns:
        The checkpoint, or None.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().checkpoint


def get_context() -> TrialContext:
    """The name and id of this trial.

    Returns:
        Both, with the experiment's name and the trial's folder.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().context


def get_trial_dir() -> str:
    """The folder of this trial.

    Returns:
        Its path.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().context.trial_dir


def get_trial_name() -> str:
    """The name of this trial.

    Returns:
        The name.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().context.trial_name


def get_trial_id() -> str:
    """The id of this trial.

    Returns:
        The id.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().context.trial_id


def get_trial_resources() -> Mapping[str, float]:
    """What this trial takes.

    Returns:
        Amounts by name, such as ``{"cpu": 2.0}``.

    Raises:
        UsageError: It is not called by a trial.
    """
    return current().context.trial_resources
