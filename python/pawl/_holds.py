# SPDX-License-Identifier: Apache-2.0
"""Common code of the adaptors that mainly hold a run's manager."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ._pawl import NotFoundError
from .manager import CheckpointManager
from .options import Ranks
from .records import Restored


class HoldsManager:
    """Has a ``CheckpointManager``.

    Closing it, or leaving its ``with`` block, closes the manager.
    """

    manager: CheckpointManager

    def close(self) -> None:
        """Waits for running saves and releases the run."""
        self.manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.__exit__(kind, exc, trace)


def leave(
    manager: CheckpointManager, error: BaseException, interrupted: Callable[[], dict[str, Any]] | None = None
) -> None:
    """Closes a manager as its ``with`` block does when an exception ends it.

    ``interrupted`` makes the arguments of ``save`` for the state as it is now. It is called with
    ``save_on_exception``.
    """
    if manager._save_on_exception and interrupted is not None:

        def offer() -> None:
            manager._offered, manager._ticket = interrupted(), None

        manager._beside(manager.root, error, "the save on the way out failed", offer)
    manager.__exit__(type(error), error, error.__traceback__)


def newest(root: str) -> Restored[Any] | None:
    """Restores the newest valid checkpoint of a run in one process.

    None if there is none, or no run.
    """
    try:
        with CheckpointManager(root, read_only=True, ranks=Ranks(rank=0, world_size=1)) as manager:
            return manager.restore()
    except NotFoundError:
        return None
