# SPDX-License-Identifier: Apache-2.0
"""Sends metrics and the cost of each checkpoint to the logger that a training run already has.

    CheckpointManager(root, logger=SummaryWriter("tb"))                     # TensorBoard
    CheckpointManager(root, logger=mlflow)                                  # MLflow, in its active run
    CheckpointManager(root, logger=wandb.init())                            # Weights & Biases
    CheckpointManager(root, logger=pawl.loggers.PrometheusFile("/var/lib/node_exporter/pawl.prom"))

Several loggers are given as a list. A function ``f(scalars, step)`` is a logger, too. The scalars
are:

- the metrics given to ``save``
- ``checkpoint/blocked_seconds`` and ``checkpoint/bytes``
- ``checkpoint/durable_seconds``, from the call of ``save`` until the checkpoint survives a power
  cut

The last three are known when a save has ended. The next call of ``save``, ``wait_until_finished``
or ``close`` logs them with the step of the save, in the calling thread.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _checks, _files, _metrics
from ._pawl import Ticket, UsageError

Log = Callable[[Mapping[str, float], int], None]

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = ("checkpoint/blocked_seconds", "checkpoint/bytes", "checkpoint/durable_seconds")


def _log_of(logger: Any) -> Log:
    """A function that gives scalars to the logger by the methods that it has."""
    if hasattr(logger, "add_scalar"):  # TensorBoard and similar

        def add(scalars: Mapping[str, float], step: int) -> None:
            for name, value in scalars.items():
                logger.add_scalar(name, value, step)

        return add
    if hasattr(logger, "log_metrics"):  # MLflow, Lightning's loggers
        return lambda scalars, step: logger.log_metrics(dict(scalars), step=step)
    if hasattr(logger, "log"):  # W&B, whose own step may be ahead by now and never goes back
        return lambda scalars, step: logger.log({**scalars, "checkpoint/step": step})
    if callable(logger):
        return lambda scalars, step: logger(dict(scalars), step)
    raise UsageError(
        f"logger must have add_scalar, log_metrics or log, or be a function (scalars, step), "
        f"received {_checks.shown(logger)}"
    )


class Scalars:
    """Passes the manager's scalars to the loggers.

    Args:
        loggers: One logger, or a list: each has ``add_scalar``, ``log_metrics`` or ``log``, or is a
            function.
    """

    def __init__(self, loggers: Any) -> None:
        several = isinstance(loggers, Sequence) and not isinstance(loggers, str)
        self._logs = [_log_of(one) for one in (loggers if several else [loggers])]
        self._running: list[tuple[Ticket, int]] = []

    def saved(self, ticket: Ticket, step: int) -> None:
        """Registers a save that has begun.

        Args:
            ticket: Its ticket.
            step: Its step.
        """
        self._running.append((ticket, step))
        self.flush()

    def metrics(self, metrics: Mapping[str, object] | None, step: int) -> None:
        """Logs the metrics that are numbers.

        Args:
            metrics: Values by name, or None.
            step: Their step.
        """
        numbers = _metrics.numbers_of(metrics or {})
        if numbers:
            self.log(numbers, step)

    def flush(self) -> None:
        """Logs the saves that have ended since.

        A failed save is not logged. Another call raises its error, so it must not be read here.
        """
        running, self._running = self._running, []
        for ticket, step in running:
            if not ticket.done():
                self._running.append((ticket, step))
            elif ticket.stage == "settled" and ticket.id is not None:
                stats = ticket.stats
                durable = stats["write_seconds"] + stats["commit_seconds"]
                values = (ticket.blocked_seconds, float(stats["nbytes"]), durable)
                self.log(dict(zip(_SCALARS, values, strict=True)), step)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Gives scalars to every logger.

        Args:
            scalars: Numbers by name.
            step: Their step.
        """
        for log in self._logs:
            log(scalars, step)


class PrometheusFile:
    """A file in Prometheus' text format, for the textfile collector of node_exporter.

    It has the last checkpoint's step, time and cost, the number of checkpoints, and the last
    metrics. It is replaced atomically.

    Args:
        path: The file.
        labels: Labels of every line.

    Raises:
        UsageError: A label cannot be used; the message gives the reason.
    """

    def __init__(self, path: str | os.PathLike[str], **labels: str) -> None:
        self._path = _checks.path("path", path)
        for name in labels:
            if name == "name" or name.startswith("__") or not _LABEL.fullmatch(name):
                raise UsageError(
                    f"PrometheusFile: '{name}' cannot be a label; expected letters of ASCII, digits and _, other than "
                    "'name' (the label of a metric's own name) and names that begin with __ or a digit"
                )
        text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        self._labels = text
        self._values: dict[str, tuple[str, float]] = {}
        self._metrics: dict[str, float] = {}
        self._n = 0

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        """Takes scalars and replaces the file.

        Args:
            scalars: Numbers by name.
            step: Their step.
        """
        if _SCALARS[0] in scalars:
            self._n += 1
            kinds = {name: ("gauge", scalars[name]) for name in _SCALARS}
            now = {"checkpoint/step": ("gauge", float(step)), "checkpoint/timestamp_seconds": ("gauge", time.time())}
            self._values = kinds | now | {"checkpoint/saved_total": ("counter", float(self._n))}
        else:
            self._metrics.update(scalars)
        self._write()

    def _write(self) -> None:
        lines = []
        for name, (kind, value) in self._values.items():
            full = "pawl_" + name.replace("/", "_")
            lines += [f"# TYPE {full} {kind}", self._line(full, "", value)]
        if self._metrics:
            lines.append("# TYPE pawl_metric gauge")
        lines += [self._line("pawl_metric", f'name="{_escaped(n)}"', value) for n, value in self._metrics.items()]
        _files.replace(self._path, "\n".join(lines) + "\n", durable=False)

    def _line(self, name: str, more: str, value: float) -> str:
        labels = ",".join(text for text in (self._labels, more) if text)
        shown = repr(value) if math.isfinite(value) else "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
        return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
