# SPDX-License-Identifier: Apache-2.0
"""What must be reported without a call that asks: it goes to the logger "pawl"."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from . import _pawl
from ._notebook import size
from .records import Event

_RAISED = {"pawl_raised": True}  # in a record: a call raises it as well


class _Unheard(logging.Handler):
    """For programs that set up no logging: writes a warning to stderr, unless a call raises the same error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Passes the record on, if nothing else shows it."""
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
    """An older checkpoint than the one that was meant has been restored."""
    for reason in reasons:
        _log.warning("%s: restored %s, since a newer checkpoint was skipped: %s", root, taken, reason)


def added(root: str | os.PathLike[str], report: Sequence[str]) -> None:
    """Tensors went into dicts that were empty, where no optimizer sees them yet."""
    for row in report:
        if row.startswith("added: "):
            _log.warning("%s: %s", root, row.removeprefix("added: "))


def no_numbers(root: str | os.PathLike[str], names: Sequence[str]) -> None:
    """Metrics that are not kept, since they are not numbers."""
    _log.warning("%s: metrics that are not numbers are not kept: %s", root, ", ".join(names))


def store(root: str | os.PathLike[str], warning: str | None) -> None:
    """What the store of a run cannot promise."""
    if warning is not None:
        _log.warning("%s: %s", root, warning)


def waits(root: str | os.PathLike[str], why: str) -> None:
    """Opening a run waits for the lease of another process."""
    _log.warning("%s: waiting for the lease: %s", root, why)


def trouble(root: str | os.PathLike[str], why: str) -> None:
    """What went wrong in the background, without a failed save or upload."""
    _log.warning("%s: %s", root, why)


def is_wanted(level: int = logging.INFO) -> bool:
    """Whether lines of this level go anywhere."""
    return _log.isEnabledFor(level)


def resumed(root: str | os.PathLike[str], step: int, name: str) -> None:
    """A checkpoint was restored."""
    _log.info("%s: resumed from step %d (%s)", root, step, name)


def event(root: str | os.PathLike[str], event: Event) -> None:
    """What has happened to a checkpoint."""
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
    """What went wrong while an exception was on its way out: told with that one, never in its place."""
    text = f"{what}: {type(other).__name__}: {other}"
    error.add_note(f"pawl: {text}")
    _log.error("%s: %s", root, text, extra=_RAISED)


def finish(run: _pawl.Run) -> None:
    """Closes a run that its owner has left open, and logs errors that no call has raised."""
    root = run.root
    try:
        run.close()
    except _pawl.PawlError as error:
        _log.error("%s: failed in the background, and no call raised the error: %s", root, error)
