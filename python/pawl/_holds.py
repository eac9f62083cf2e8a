# SPDX-License-Identifier: Apache-2.0
"""Common code of the adaptors that mainly hold a run's manager."""

from __future__ import annotations

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


def newest(root: str) -> Restored[Any] | None:
    """Restores the newest valid checkpoint of a run in one process.

    None if there is none, or no run.
    """
    try:
        with CheckpointManager(root, read_only=True, ranks=Ranks(rank=0, world_size=1)) as manager:
            return manager.restore()
    except NotFoundError:
        return None
