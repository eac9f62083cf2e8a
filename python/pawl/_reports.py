# SPDX-License-Identifier: Apache-2.0
"""What must be reported without a call that asks: it goes to the logger "pawl"."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from . import _pawl

_log = logging.getLogger("pawl")


def fallbacks(root: str, taken: str, reasons: Sequence[str]) -> None:
    """An older checkpoint than the one that was meant has been restored."""
    for reason in reasons:
        _log.warning("%s: restored %s, since a newer checkpoint was skipped: %s", root, taken, reason)


def no_numbers(root: str, names: Sequence[str]) -> None:
    """Metrics that are not kept, since they are not numbers."""
    _log.warning("%s: metrics that are not numbers are not kept: %s", root, ", ".join(names))


def store(warning: str | None) -> None:
    """What the store of a run cannot promise."""
    if warning is not None:
        _log.warning("%s", warning)


def waits(why: str) -> None:
    """Opening a run waits for the lease of another process."""
    _log.warning("waiting for the lease: %s", why)


def beside(root: str, error: BaseException, what: str, other: BaseException) -> None:
    """What went wrong while an exception was on its way out: told with that one, never in its place."""
    text = f"{what}: {type(other).__name__}: {other}"
    error.add_note(f"pawl: {text}")
    _log.error("%s: %s", root, text)


def finish(run: _pawl.Run) -> None:
    """Closes a run that its owner has left open, and logs errors that no call has raised."""
    root = run.root
    try:
        run.close()
    except _pawl.PawlError as error:
        _log.error("%s: failed in the background, and no call raised the error: %s", root, error)
