# SPDX-License-Identifier: Apache-2.0
"""The watcher of SIGTERM and SIGUSR1, one per process, and the exception that ends a job after
them.
"""

from __future__ import annotations

import threading

from . import _pawl

REQUEUE_EXIT_CODE = 75  # EX_TEMPFAIL: another start may succeed


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


_lock = threading.RLock()  # a garbage collection in acquire may call release for an owner that was dropped
_watch: _pawl.Watch | None = None
_users = 0


def acquire(grace_seconds: float) -> _pawl.Watch:
    """Starts the watcher, or shares the running one, which keeps its first user's grace time."""
    global _watch, _users
    with _lock:
        _users += 1  # first, so that no such release stops the watcher that this call returns
        try:
            if _watch is None:
                _watch = _pawl.Watch(grace_seconds)
        except BaseException:
            _users -= 1
            raise
        return _watch


def release() -> None:
    """Restores the earlier handlers when the last user releases the watcher."""
    global _watch, _users
    with _lock:
        _users -= 1
        if _users == 0 and _watch is not None:
            _watch.close()
            _watch = None
