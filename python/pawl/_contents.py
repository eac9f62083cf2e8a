# SPDX-License-Identifier: Apache-2.0
"""Lists the checkpoints of an open run, and decides which to keep."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from . import _checks, _pawl
from ._notebook import Rows
from ._pawl import NotFoundError, UsageError
from .checkpoint import Checkpoint, of_run
from .inspection import Progress
from .records import CheckpointInfo, Decision, Finding, checkpoint_info, place_of


class Contents:
    """The part of CheckpointManager that lists checkpoints and decides which to keep.

    A step selects the newest checkpoint of that step. A call for one checkpoint waits for the saves
    that this manager has begun. Lists contain the durable checkpoints and never wait.
    """

    _run: _pawl.Run

    # ---- what there is ----

    def latest_step(self) -> int | None:
        """The newest checkpoint.

        Returns:
            Its step, or None.

        Raises:
            AccessError: It is unknown, since a checkpoint may not be read.
        """
        return self._step_of("latest")

    def best_step(self) -> int | None:
        """The best checkpoint by the score attributes.

        Returns:
            Its step, or None.

        Raises:
            AccessError: It is unknown, since a checkpoint may not be read.
        """
        return self._step_of("best")

    def _step_of(self, mark: Literal["latest", "best"]) -> int | None:
        rows = self._run.list(True)
        if not any(row["bad"] and not row["damaged"] for row in rows):
            return next((row["step"] for row in rows if row[mark]), None)
        try:  # one that cannot be read may be the one: find refuses then
            return self._run.info(self._run.find(mark))["step"]
        except NotFoundError:
            return None

    def all_steps(self) -> list[int]:
        """The steps of all checkpoints.

        Returns:
            Each step once, oldest first.
        """
        return list(dict.fromkeys(info["step"] for info in self._run.list()))

    def checkpoints(self, *, with_bad: bool = False) -> Rows[CheckpointInfo]:
        """The facts of all checkpoints.

        Args:
            with_bad: Also those of damaged ones. Default: False.

        Returns:
            A list, oldest first; a notebook shows it as a table, and ``to_pandas()`` makes a
            DataFrame.
        """
        return Rows(map(checkpoint_info, self._run.list(with_bad)))

    def metrics(self, step: int | None = None, *, id: int | None = None) -> dict[str, float]:
        """The metrics of a checkpoint.

        Args:
            step: Step of the checkpoint.
            id: Its id, instead of ``step``.

        Returns:
            Numbers by name, with those scored later.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        return self._run.info(self._id(step, id))["metrics"]

    def metadata(self, step: int | None = None, *, id: int | None = None) -> Any:
        """The metadata that was saved with a checkpoint.

        Args:
            step: Step of the checkpoint.
            id: Its id, instead of ``step``.

        Returns:
            The tree as it was given to ``save``; {} if none was.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        return self._run.metadata(self._id(step, id))

    def checkpoint(self, step: int | None = None, *, id: int | None = None) -> Checkpoint:
        """A checkpoint as a separate object.

        Args:
            step: Step of the checkpoint. Default: None, the latest.
            id: Its id, instead of ``step``.

        Returns:
            The checkpoint; nothing is read yet.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        return of_run(self._run, self._run.find(self._selector(step, id, "latest")))

    def __getitem__(self, step: int | str) -> Checkpoint:
        """``manager[400]``: the checkpoint of a step; also "latest", "best", "good" and "id:7"."""
        selector = step if isinstance(step, str) else f"step:{_checks.step(step)}"
        return of_run(self._run, self._run.find(selector))

    def __contains__(self, step: object) -> bool:
        """``400 in manager``: whether ``manager[400]`` exists; also takes a Checkpoint."""
        if isinstance(step, Checkpoint):
            return any((found.path, found._id) == (step.path, step._id) for found in self)
        with contextlib.suppress(NotFoundError, UsageError):
            return bool(self[step])  # type: ignore[index]
        return False

    def __iter__(self) -> Iterator[Checkpoint]:
        """All checkpoints, oldest first."""
        return iter([of_run(self._run, info["id"]) for info in self._run.list()])

    def __reversed__(self) -> Iterator[Checkpoint]:
        """All checkpoints, newest first."""
        return iter(list(self)[::-1])

    def __len__(self) -> int:
        """How many checkpoints there are."""
        return len(self._run.list())

    def __bool__(self) -> bool:
        """True, even without a checkpoint."""
        return True

    # ---- what to keep ----

    def delete(self, step: int | None = None, *, id: int | None = None, force: bool = False) -> None:
        """Deletes a checkpoint.

        Args:
            step: Step of the checkpoint.
            id: Its id, instead of ``step``.
            force: Also a pinned one, the latest and the best. Default: False.

        Raises:
            BusyError: A reader holds it; or it is pinned, the latest or the best, and ``force`` is
                False.
            NotFoundError: There is no such checkpoint.
        """
        self._run.remove(self._id(step, id), force)

    def pin(self, step: int | None = None, *, id: int | None = None) -> bool:
        """Keeps a checkpoint, whatever the rules of retention are.

        Args:
            step: Step of the checkpoint.
            id: Its id, instead of ``step``.

        Returns:
            False if it was pinned already.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        found = self._id(step, id)
        was = self._run.info(found)["pinned"]
        self._run.pin(found)
        return not was

    def unpin(self, step: int | None = None, *, id: int | None = None) -> bool:
        """Removes the pin of a checkpoint.

        Args:
            step: Step of the checkpoint.
            id: Its id, instead of ``step``.

        Returns:
            False if it was not pinned.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        found = self._id(step, id)
        was = self._run.info(found)["pinned"]
        self._run.unpin(found)
        return was

    def score(self, step: int | None, metrics: Mapping[str, object], *, id: int | None = None) -> None:
        """Adds metrics that were computed after the save; the best checkpoint is chosen again.

        Args:
            step: Step of the checkpoint, or None with ``id``.
            metrics: Numbers by name; they replace those of the same name.
            id: Id of the checkpoint, instead of ``step``.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        self._run.score(self._id(step, id), metrics)

    def prune(self, *, dry_run: bool = False) -> Rows[Decision]:
        """Applies retention now.

        Args:
            dry_run: Only decide. Default: False.

        Returns:
            A decision for each checkpoint, oldest first.
        """
        return Rows(Decision(*row) for row in self._run.prune(dry_run))

    def verify(
        self, step: int | None = None, *, id: int | None = None, progress: Progress | None = None
    ) -> Rows[Finding]:
        """Reads and checks every byte of a checkpoint.

        Args:
            step: Step of the checkpoint. Default: None, all of them.
            id: Its id, instead of ``step``.
            progress: Called with the bytes done and all bytes, a few times a second.

        Returns:
            The damage; [] if every byte is as it was written.

        Raises:
            NotFoundError: There is no such checkpoint.
        """
        one = 0 if step is None and id is None else self._id(step, id)
        return Rows(Finding(**row) for row in self._run.verify(one, progress))

    # ---- the run ----

    @property
    def root(self) -> pathlib.Path | str:
        """The run's folder; a URL is a ``str``."""
        return place_of(self._run.root)

    @property
    def run_id(self) -> str:
        """The run's id, 32 hex digits."""
        return self._run.run_id or ""

    def reload(self) -> None:
        """Reads what other processes have saved or deleted since."""
        self._run.reload()

    @staticmethod
    def _selector(step: int | None, id: int | None, which: str) -> str:
        if which not in ("latest", "best", "good"):
            raise UsageError(
                f'which must be "latest", "best" or "good", received {_checks.shown(which)}; '
                "step=400 selects a step, id=7 an id"
            )
        if step is not None and id is not None:
            raise UsageError("give a step or an id, not both")
        if step is None and id is None:
            return which
        if which != "latest":
            raise UsageError(f'{"id" if step is None else "step"} and which="{which}" contradict each other: give one')
        return f"step:{_checks.step(step)}" if id is None else f"id:{_checks.whole('id', id)}"

    def _id(self, step: int | None, id: int | None) -> int:
        if step is None and id is None:
            raise UsageError("give a step or an id")
        return self._run.find(self._selector(step, id, "latest"))
