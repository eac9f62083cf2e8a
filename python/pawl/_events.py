# SPDX-License-Identifier: Apache-2.0
"""Delivers the events of a run: it calls their hooks and writes to the logger "pawl"."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from . import _pawl, _reports
from .records import Event

# The library's name of an event -> the kind that hooks get.
_KINDS = {
    "save": "saved",
    "upload": "uploaded",
    "remove": "deleted",
    "save failed": "failed",
    "upload failed": "failed",
}


def _make(kind: str, row: Mapping[str, Any]) -> Event:
    return Event(
        kind=kind,
        time=datetime.fromtimestamp(row["unix_seconds"], UTC),
        id=row.get("id", 0),
        step=row.get("step"),
        name=row.get("name", ""),
        reason=row.get("reason", ""),
        mirror=row.get("mirror", ""),
        error=row.get("error", ""),
        nbytes=row.get("bytes", 0),
        seconds=row.get("seconds", row.get("total_seconds", 0.0)),
        blocked_seconds=row.get("blocked_seconds", 0.0),
    )


class Queue:
    """The events of an open run, for its hooks and the log."""

    def __init__(self, run: _pawl.Run, hooks: Mapping[str, Callable[[Event], object] | None]) -> None:
        self._run = run
        self._hooks = {kind: hook for kind, hook in hooks.items() if hook is not None}
        self._warned = {run.warning}  # opening the run logs this one

    def serve(self) -> None:
        """Logs the events since the last call, and calls their hooks."""
        if not self._is_needed():
            return
        while not self._run.closed and (text := self._run.event()) is not None:
            row = json.loads(text)
            if row["what"] == "warning":
                self._warn(row["error"])
            kind = _KINDS.get(row["what"])
            if kind is None:
                continue
            event = _make(kind, row)
            if _reports.is_wanted():
                _reports.event(self._run.root, event)
            if kind in self._hooks:
                self._hooks[kind](event)

    def _is_needed(self) -> bool:
        return bool(self._hooks) or _reports.is_wanted(logging.WARNING)

    def _warn(self, text: str) -> None:
        """Logs a problem that stops nothing. Logs the same text only once."""
        if text not in self._warned:
            self._warned.add(text)
            _reports.trouble(self._run.root, text)

    def wait_last(self, uploads: bool) -> None:
        """Waits as closing the run does, if the last events are needed."""
        if not self._run.closed and self._is_needed():
            self._run.wait(None, uploads)
