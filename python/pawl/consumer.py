# SPDX-License-Identifier: Apache-2.0
"""Reads a run from another process: waits for its next checkpoint, or holds one during its use."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from . import _checks, _pawl
from ._names import explained
from ._pawl import NotFoundError
from .checkpoint import Checkpoint, of_run
from .options import Duration

_POLL_SECONDS = 0.1


def _open(root: str, deadline: float | None) -> _pawl.Run:
    """Opens a run for reading. Waits for it to exist, until the deadline."""
    while True:
        try:
            return _pawl.Run(root, read_only=True)
        except NotFoundError:
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(left, _POLL_SECONDS))


@explained
def wait_for_new(root: str | os.PathLike[str], after: int = 0, timeout: Duration | None = None) -> int:
    """Waits for a checkpoint with an id above ``after``. The run need not exist yet.

    Args:
        root: The run's folder or URL.
        after: An id. Default: 0, any checkpoint.
        timeout: Longest wait, as a duration. Default: None, no limit.

    Returns:
        The id of the newest checkpoint.

    Raises:
        TimeoutError: No such checkpoint was saved in time.
    """
    after = _checks.whole("after", after)
    place = _checks.path("root", root)
    limit = _checks.limit(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    try:
        run = _open(place, deadline)
    except NotFoundError as error:
        raise _pawl.TimeoutError(f"no checkpoint after id {after} came within {limit:.3g} seconds: {error}") from None
    try:
        return run.wait_for_new(after, None if deadline is None else max(deadline - time.monotonic(), 0.0))
    finally:
        run.close()


@explained
@contextmanager
def hold(root: str | os.PathLike[str], id: int) -> Generator[Checkpoint, None, None]:
    """Holds a checkpoint for the length of a ``with`` block: no process deletes it meanwhile. A
    hold ends with the process that made it.

    Args:
        root: The run's folder or URL.
        id: Id of the checkpoint.

    Yields:
        The checkpoint.

    Raises:
        NotFoundError: It does not exist.
    """
    id = _checks.whole("id", id)
    run = _pawl.Run(_checks.path("root", root), read_only=True)
    try:
        held = run.hold(id)
        try:
            yield of_run(run, id)
        finally:
            held.close()
    finally:
        run.close()
