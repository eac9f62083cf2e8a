# SPDX-License-Identifier: Apache-2.0
"""Clones of checkpoints that are in ``upload_dir`` and not here.

Each clone gets its own files there, which the place copies by itself (R158). ray_engine calls this
module. The copies are made by elsewhere.copy, on threads.

A clone begins as a note that names its donor's files. Until it has its own files, neither the clone
nor the donor starts again: a start may write another checkpoint of the same name. Nothing else
removes files there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future

from .. import _pawl
from .._pawl import PawlError
from . import elsewhere
from .spec import Plan


class Clones:
    """Copies the files of clones. ``tell`` gets a trial's number and an error text, on a thread."""

    def __init__(
        self, experiment: _pawl.Experiment, plan: Plan, threads: Executor, tell: Callable[[int, str], None]
    ) -> None:
        self._experiment, self._plan, self._threads, self._tell = experiment, plan, threads, tell
        self._is_on = elsewhere.copies(plan.sync) and plan.document.get("scheduler", {}).get("type") == "pbt"
        self._seen: set[str] = set()
        self._busy: dict[str, tuple[Future[None], set[str]]] = {}  # place -> copy, waiting trials

    def look(self) -> None:
        """Starts copying the files of new clones."""
        for number in range(self._experiment.counts()["trials"] if self._is_on else 0):
            row = self._experiment.trial(number)
            name, checkpoint = row["name"], row["checkpoint"]
            folder = os.path.join(self._plan.folder, name, str(checkpoint))
            if checkpoint is None or folder in self._seen:
                continue
            self._seen.add(folder)
            note = elsewhere.note_of(folder)
            place = self.place_of(name, checkpoint)
            if note is None or note["place"] == place:
                continue
            donor = str(note["place"]).partition("?")[0].rstrip("/").split("/")[-2:-1]
            work = self._threads.submit(self._copy, number, folder, place)
            self._busy[place] = work, {name, *donor}

    def place_of(self, trial: str, checkpoint: str) -> str:
        return elsewhere.place_of(self._plan.sync, self._plan.local or self._plan.folder, trial, checkpoint)

    def _copy(self, number: int, folder: str, place: str) -> None:
        try:
            elsewhere.copy(folder, place, self._plan.sync)
        except (PawlError, OSError) as error:  # it still uses its donor's files
            self._tell(number, f"{os.path.basename(folder)} was not copied at its place: {error}")

    def wanted(self, trial: str) -> Future[None] | None:
        """A copy that must end before this trial starts, or None."""
        for place, (work, trials) in list(self._busy.items()):
            if work.done():
                del self._busy[place]
            elif trial in trials:
                return work
        return None
