# SPDX-License-Identifier: Apache-2.0
"""The watcher of SIGTERM and SIGUSR1, one per process, shared by all that use it; how a job ends by them."""

from __future__ import annotations

import threading

from . import _pawl

REQUEUE_EXIT_CODE = 75  # EX_TEMPFAIL: what was asked for may go well another time


class Preempted(SystemExit):
    """SIGTERM or SIGUSR1 asked the job to end, and it did; its exit status asks a scheduler to
    start it again.

    Args:
        message: What has been saved.
    """

    def __init__(self, message: str) -> None:
        super().__init__(REQUEUE_EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


_lock = threading.Lock()
_watch: _pawl.Watch | None = None
_users = 0


def acquire(grace_seconds: float) -> _pawl.Watch:
    """Starts watching, or joins in. The first user's grace time counts."""
    global _watch, _users
    with _lock:
        if _watch is None:
            _watch = _pawl.Watch(grace_seconds)
        _users += 1
        return _watch


def release() -> None:
    """Puts the earlier handlers back when the last user leaves."""
    global _watch, _users
    with _lock:
        _users -= 1
        if _users == 0 and _watch is not None:
            _watch.close()
            _watch = None
