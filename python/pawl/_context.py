# SPDX-License-Identifier: Apache-2.0
"""What a worker of a training and a trial of a search both are told of themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    experiment_name: str
    trial_name: str
    trial_id: str
    trial_dir: str

    def get_experiment_name(self) -> str:
        return self.experiment_name

    def get_trial_name(self) -> str:
        return self.trial_name

    def get_trial_id(self) -> str:
        return self.trial_id

    def get_trial_dir(self) -> str:
        return self.trial_dir
