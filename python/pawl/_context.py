# SPDX-License-Identifier: Apache-2.0
"""The names that a worker of a training run and a trial of a search both have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """The names of a worker of a training run, or of a trial of a search.

    Attributes:
        experiment_name: Name of the run or of the experiment.
        trial_name: Name of the trial.
        trial_id: Id of the trial.
        trial_dir: Folder of the trial.
    """

    experiment_name: str
    trial_name: str
    trial_id: str
    trial_dir: str

    def get_experiment_name(self) -> str:
        """The name of the run or of the experiment.

        Returns:
            ``experiment_name``.
        """
        return self.experiment_name

    def get_trial_name(self) -> str:
        """The name of the trial.

        Returns:
            ``trial_name``.
        """
        return self.trial_name

    def get_trial_id(self) -> str:
        """The id of the trial.

        Returns:
            ``trial_id``.
        """
        return self.trial_id

    def get_trial_dir(self) -> str:
        """The folder of the trial.

        Returns:
            ``trial_dir``.
        """
        return self.trial_dir
