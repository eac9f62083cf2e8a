# SPDX-License-Identifier: Apache-2.0
"""pawl.train: runs a train function in several workers, with checkpoints to resume from.

    def train_func(config):
        model = Net()
        checkpoint = train.get_checkpoint()
        if checkpoint:
            model.load_state_dict(checkpoint.to_dict()["model_weights"])
        model = train.torch.prepare_model(model)
        for epoch in range(...):
            ...
            train.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"model_weights": model.state_dict()}))

    result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()

The interface is that of Ray Train, with its names; see docs/reference/train.md. It needs PyTorch.
"""

from typing import TYPE_CHECKING, Any

from . import torch as torch
from .checkpoint import Checkpoint
from .config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from .result import Result, TrainingFailedError
from .session import (
    REQUEUE_EXIT_CODE,
    Preempted,
    TrainContext,
    get_checkpoint,
    get_context,
    load_checkpoint,
    report,
    save_checkpoint,
)
from .torch import TorchTrainer
from .trainer import DataParallelTrainer

if TYPE_CHECKING:
    from .legacy import CheckpointStrategy

__all__ = [
    "REQUEUE_EXIT_CODE",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointStrategy",
    "DataParallelTrainer",
    "FailureConfig",
    "Preempted",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "TorchTrainer",
    "TrainContext",
    "TrainingFailedError",
    "get_checkpoint",
    "get_context",
    "load_checkpoint",
    "report",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    """Loads CheckpointStrategy on first use.

    It is here because older versions of Ray Train have it here.
    """
    if name == "CheckpointStrategy":
        from .legacy import CheckpointStrategy

        return CheckpointStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
