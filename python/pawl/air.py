# SPDX-License-Identifier: Apache-2.0
"""The classes of ``pawl.train`` by the name of the module that programs for Ray import them from
(``ray.air``).

from pawl.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
"""

from .train import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig

__all__ = ["Checkpoint", "CheckpointConfig", "FailureConfig", "Result", "RunConfig", "ScalingConfig"]
