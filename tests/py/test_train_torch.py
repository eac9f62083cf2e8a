# SPDX-License-Identifier: Apache-2.0
"""pawl.train.torch: models and data loaders of two workers in a process group, and of one alone."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import cloudpickle
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler

import pawl
from pawl import train
from pawl.train import Checkpoint, RunConfig, ScalingConfig, TorchTrainer

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def share(shuffle: bool) -> list[list[int]]:
    """What each of the workers sees of ten rows."""
    loader = train.torch.prepare_data_loader(DataLoader(list(range(10)), batch_size=2, shuffle=shuffle))
    seen: list[Any] = [None] * 2
    loader.sampler.set_epoch(1)
    torch.distributed.all_gather_object(seen, [int(row) for batch in loader for row in batch])
    return seen


def together(config: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = train.torch.prepare_model(torch.nn.Linear(2, 1))
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel) and sorted(model.state_dict()) == [
        "bias",
        "weight",
    ]
    rank = train.get_context().get_world_rank()
    model(torch.full((1, 2), float(rank))).sum().backward()
    pieces = train.torch.prepare_model(torch.nn.Linear(4, 4, bias=False), parallel_strategy="fsdp")
    weight = pieces.state_dict()["weight"]
    assert weight.to_local().shape == (2, 4) and weight.shape == (4, 4)
    values = {"gradient": model.module.weight.grad, "pieces": pieces.state_dict(), "whole": weight.full_tensor()}
    train.report({"in_turn": share(False), "shuffled": share(True)}, checkpoint=Checkpoint.from_dict(values))


def test_models_and_loaders_of_two_workers(tmp_path: pathlib.Path) -> None:
    """Gradients are averaged, pieces are saved as one tensor, every row is one worker's."""
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1})
    result = TorchTrainer(together, scaling_config=scaling, run_config=RunConfig("run", tmp_path)).fit()
    assert result.error is None and result.checkpoint is not None and result.metrics is not None
    assert result.metrics["in_turn"] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    first, second = result.metrics["shuffled"]
    assert sorted(first + second) == list(range(10)) and first != sorted(first)
    last = result.checkpoint.to_dict()
    assert last["gradient"].tolist() == [[0.5, 0.5]]
    assert torch.equal(last["pieces"]["weight"], last["whole"])


@pytest.mark.parametrize("sampler", [SubsetRandomSampler([7, 8]), WeightedRandomSampler([0.0] * 9 + [1.0], 4)])
def test_a_sampler_of_ones_own_is_not_replaced(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    loader = DataLoader(list(range(10)), sampler=sampler)
    with pytest.raises(pawl.UsageError, match=f"would replace the loader's {type(sampler).__name__}"):
        train.torch.prepare_data_loader(loader)
    assert train.torch.prepare_data_loader(loader, add_dist_sampler=False) is loader


def test_alone_a_model_and_a_loader_stay_what_they_are() -> None:
    model, loader = torch.nn.Linear(2, 1), DataLoader([1, 2])
    assert train.torch.prepare_model(model) is model
    assert train.torch.prepare_data_loader(loader) is loader
    assert train.torch.get_device() == torch.device("cpu")
    with pytest.raises(pawl.UsageError, match='parallel_strategy must be "ddp", "fsdp" or None'):
        train.torch.prepare_model(model, parallel_strategy="pipeline")  # type: ignore[arg-type]
