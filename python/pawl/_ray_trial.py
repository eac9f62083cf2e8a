# SPDX-License-Identifier: Apache-2.0
"""Trials of Ray Tune's own Tuner; the class is pawl.ray.TrialSaver."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from .checkpoint import load, save


class TrialSaver:
    """The checkpoints of a trial of Ray Tune's own Tuner. Create it in the trial's function.

        saver = pawl.ray.TrialSaver()
        saver.restore(state)                                    # its own, or that of the trial it was cloned from
        for step in range(state["step"], 100):
            ...
            saver.report({"loss": loss}, state)

    Ray copies, clones and deletes the checkpoints as its schedulers decide. A state of another
    trial contains the optimizer settings of that trial. Set the values of ``config`` again after
    ``restore``: ``group["lr"] = config["lr"]``.
    """

    def report(self, metrics: Mapping[str, Any], state: object = None) -> None:
        """Calls ``ray.tune.report``. It does not return if the trial is paused or stopped.

        Args:
            metrics: Values by name.
            state: Saved as the checkpoint. Default: None, no checkpoint.
        """
        from ray import tune

        if state is None:
            tune.report(dict(metrics))
            return
        with tempfile.TemporaryDirectory(prefix="pawl-") as folder:
            path = os.path.join(folder, "checkpoint")
            save(state, path)
            tune.report(dict(metrics), checkpoint=tune.Checkpoint.from_directory(path))

    def restore(self, state: object = None) -> Any:
        """The checkpoint to continue from.

        Args:
            state: Objects to restore into. Default: None, new objects.

        Returns:
            The tree; None if the trial has no checkpoint.
        """
        from ray import tune

        found = tune.get_checkpoint()
        if found is None:
            return None
        with found.as_directory() as folder:
            return load(folder, state=state)
