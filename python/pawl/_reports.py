# SPDX-License-Identifier: Apache-2.0
"""Reports that no call returns. They go to the logger "pawl"."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from . import _pawl
from ._notebook import size
from .records import Event

_RAISED = {"pawl_raised": True}  # marks a log record of an error that a call raises as well


class _Unheard(logging.Handler):
    """Writes warnings to stderr in programs that set up no logging.

    It skips errors that a call raises as well.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Passes the record to ``logging.lastResort`` if no other handler shows it."""
        last = logging.lastResort
        if last and record.levelno >= last.level and not hasattr(record, "pawl_raised") and not self._is_heard(record):
            last.handle(record)

    def _is_heard(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


_log = logging.getLogger("pawl")
_log.addHandler(_Unheard())


def fallbacks(root: str | os.PathLike[str], taken: str, reasons: Sequence[str]) -> None:
    """Warns that an older checkpoint than the requested one was restored."""
    for reason in reasons:
        _log.warning("%s: restored %s, since a newer checkpoint was skipped: %s", root, taken, reason)


def added(root: str | os.PathLike[str], report: Sequence[str]) -> None:
    """Warns that tensors were added to empty dicts, where no optimizer knows them yet."""
    for row in report:
        if row.startswith("added: "):
            _log.warning("%s: %s", root, row.removeprefix("added: "))


def no_numbers(root: str | os.PathLike[str], names: Sequence[str]) -> None:
    """Warns that some metrics are not kept, since they are not numbers."""
    _log.warning("%s: metrics that are not numbers are not kept: %s", root, ", ".join(names))


def store(root: str | os.PathLike[str], warning: str | None) -> None:
    """Warns of a guarantee that the store of a run cannot give."""
    if warning is not None:
        _log.warning("%s: %s", root, warning)


def waits(root: str | os.PathLike[str], why: str) -> None:
    """Warns that opening a run waits for the lease of another process."""
    _log.warning("%s: waiting for the lease: %s", root, why)


def trouble(root: str | os.PathLike[str], why: str) -> None:
    """Warns of a background problem that fails no save and no upload."""
    _log.warning("%s: %s", root, why)


def is_wanted(level: int = logging.INFO) -> bool:
    """Whether the logger is enabled for this level."""
    return _log.isEnabledFor(level)


def resumed(root: str | os.PathLike[str], step: int, name: str) -> None:
    """Logs that a checkpoint was restored."""
    _log.info("%s: resumed from step %d (%s)", root, step, name)


def event(root: str | os.PathLike[str], event: Event) -> None:
    """Logs what happened to a checkpoint."""
    what = f"step {event.step}" if event.step is not None else event.name
    match event.kind:
        case "saved":
            blocked = f"blocked {_seconds(event.blocked_seconds)}"
            _log.info("%s: saved %s in %s, %s, %s", root, what, _seconds(event.seconds), size(event.nbytes), blocked)
        case "uploaded":
            _log.info(
                "%s: uploaded %s to %s in %s, %s",
                root, what, event.mirror, _seconds(event.seconds), size(event.nbytes),
            )  # fmt: skip
        case "deleted":
            _log.info("%s: deleted %s (%s)", root, what, event.reason)
        case "failed":
            to = f" to {event.mirror}" if event.mirror else ""
            _log.warning("%s: %s%s failed: %s", root, what, to, event.error, extra=_RAISED)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s"


def beside(root: str | os.PathLike[str], error: BaseException, what: str, other: BaseException) -> None:
    """Reports an error that occurred while another exception was propagating.

    It becomes a note of that exception, and never replaces it.
    """
    text = f"{what}: {type(other).__name__}: {other}"
    error.add_note(f"pawl: {text}")
    _log.error("%s: %s", root, text, extra=_RAISED)


def finish(run: _pawl.Run) -> None:
    """Closes a run that its owner left open. Logs the error if closing fails."""
    root = run.root
    try:
        run.close()
    except _pawl.PawlError as error:
        _log.error("%s: failed in the background, and no call raised the error: %s", root, error)
