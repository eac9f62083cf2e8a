# SPDX-License-Identifier: Apache-2.0
"""Training with PyTorch: workers in one process group, models and data prepared for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from .._pawl import UsageError
from .checkpoint import Checkpoint
from .trainer import DataParallelTrainer

__all__ = ["Checkpoint", "DistributedModel", "TorchTrainer", "get_device", "prepare_data_loader", "prepare_model"]


class TorchTrainer(DataParallelTrainer):
    """A DataParallelTrainer whose workers form a process group of torch: NCCL with ``use_gpu``,
    else Gloo.
    """

    def _group_backend(self) -> str | None:
        return "nccl" if self._scaling.use_gpu else "gloo"


class DistributedModel(DistributedDataParallel):
    """DistributedDataParallel whose state dict is that of the wrapped model, and fits that as well.

    Its arguments are those of DistributedDataParallel.
    """

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the wrapped model.

        Args:
            args: As in ``torch.nn.Module``.
            kwargs: As in ``torch.nn.Module``.

        Returns:
            Its state dict, without the prefix "module.".
        """
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads a state of the wrapped model.

        Args:
            state_dict: The state, with or without the prefix "module.".
            args: As in ``torch.nn.Module``.
            kwargs: As in ``torch.nn.Module``.

        Returns:
            What the model returns.
        """
        prefix = "module."
        if state_dict and all(key.startswith(prefix) for key in state_dict):
            state_dict = {key[len(prefix) :]: value for key, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **kwargs)


def get_device() -> torch.device:
    """The device of this worker.

    Returns:
        A device of CUDA with NCCL, else the CPU.
    """
    if distributed.is_initialized() and distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: Literal["ddp", "fsdp"] | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Moves a model to this worker's device and synchronizes it with those of the other workers.

    Load its weights before.

    Args:
        model: The model.
        move_to_device: Move it, or to which device. Default: True, this worker's.
        parallel_strategy: "ddp" for DistributedDataParallel, "fsdp" for ``fully_shard``, or None.
            Default: "ddp".
        parallel_strategy_kwargs: More arguments of the strategy. Default: None.

    Returns:
        The model to train.

    Raises:
        UsageError: There is no such strategy.
    """
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise UsageError(f'parallel_strategy must be "ddp", "fsdp" or None, received {parallel_strategy!r}')
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if move_to_device is not False:
        model = model.to(device)
    if parallel_strategy is None or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, **options)
        return model
    if device.type == "cuda":
        options.setdefault("device_ids", [device])
    return DistributedModel(model, **options)


class _OnDevice:
    """A data loader whose batches are on the worker's device."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield _move(batch, self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _move(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _move(value, device) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_move(value, device) for value in batch)
    return batch


def prepare_data_loader(
    data_loader: DataLoader[Any], add_dist_sampler: bool = True, move_to_device: bool = True
) -> Any:
    """A loader for this worker's share of the data, shuffled if ``data_loader`` shuffles.

    Call ``loader.sampler.set_epoch(epoch)`` in every epoch, as for any DistributedSampler.

    Args:
        data_loader: The loader of all data.
        add_dist_sampler: Divide the data among the workers. Default: True.
        move_to_device: Move the batches to the worker's device. Default: True.

    Returns:
        The loader to use.

    Raises:
        UsageError: The loader has its own sampler or batch sampler.
    """
    loader, device = data_loader, get_device()
    several = distributed.is_initialized() and distributed.get_world_size() > 1
    distributable = not isinstance(loader.dataset, IterableDataset) and not isinstance(
        loader.sampler, DistributedSampler
    )
    if several and add_dist_sampler and distributable:
        if loader.batch_size is None:
            raise UsageError(
                "prepare_data_loader: a loader with a batch sampler of its own; give add_dist_sampler=False"
            )
        if type(loader.sampler) not in (RandomSampler, SequentialSampler):  # torch's own for shuffle=
            raise UsageError(
                f"prepare_data_loader: a DistributedSampler would replace the loader's {type(loader.sampler).__name__} "
                "and use all data; give add_dist_sampler=False"
            )
        loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=DistributedSampler(
                loader.dataset,
                shuffle=isinstance(loader.sampler, RandomSampler),
            ),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
        )
    return _OnDevice(loader, device) if move_to_device and device.type != "cpu" else loader
