# SPDX-License-Identifier: Apache-2.0
"""Are checkpoints of a training run on a device right? Each save is followed by the next step at once, and must hold
the state of the moment of the call, bit for bit."""

from __future__ import annotations

import pathlib
from typing import Any

import measure
import phases
import torch
from device_ways import Device, join_group

import pawl

SAVES = 6
WIDTH = 1500  # a weight of 9 MB: smaller ones are never copied late
MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "snapshot": ({}, False),
    "lazy": ({}, True),
    "staged": ({"staging": pawl.Staging(device="auto")}, False),
    "ring": ({"staging": pawl.Staging(mode="ring", ring_bytes=16 << 20)}, False),
    "direct": ({"staging": pawl.Staging(mode="direct", ring_bytes=16 << 20)}, False),
}


class Net(torch.nn.Module):
    """With BatchNorm, whose buffers change in each forward pass. `near` is on another device."""

    def __init__(self, device: torch.device, near: torch.device) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 4)
        ).to(device)
        self.head = torch.nn.Linear(4, 3).to(near)
        self.near = near

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).to(self.near))


def copy(tree: Any) -> Any:
    """All tensors, at this point of their streams."""
    if isinstance(tree, dict):
        return {key: copy(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [copy(value) for value in tree]
    if isinstance(tree, torch.Tensor):
        return getattr(tree, "_local_tensor", tree).detach().clone()
    return tree


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        near = [getattr(x, "_local_tensor", x).detach().cpu().contiguous() for x in (a, b)]
        return torch.equal(near[0].view(torch.uint8), near[1].view(torch.uint8)) if a.ndim else torch.equal(*near)
    return bool(a == b)


def check(folder: pathlib.Path, device: Device, mode: str, model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options, lazy = MODES[mode]
    state = {"model": model, "optimizer": optimizer}

    def forward() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, WIDTH, device=device.device)).square().sum().backward()

    with measure.scratch(folder, f"check-{mode}") as root, pawl.CheckpointManager(root, num_to_keep=1, **options) as m:
        forward()
        optimizer.step()
        for number in range(SAVES):
            expected = {"model": copy(model.state_dict()), "optimizer": copy(optimizer.state_dict())}
            m.save(number, state, lazy=lazy)
            forward()  # without a wait
            m.before_step()
            optimizer.step()
            m.wait_until_finished()
            m.restore(state)
            found = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if not same(expected, found):
                raise SystemExit(f"{mode}, save {number}: the checkpoint does not hold the state of the call")


def sharded(device: Device) -> torch.nn.Module:
    """FSDP2 on one device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join_group(device)
    model = Net(device.device, device.device)
    fully_shard(model, mesh=init_device_mesh(device.device.type, (1,)))
    return model


def check_all(folder: pathlib.Path, device: Device) -> None:
    many = device.is_gpu and torch.cuda.device_count() > 1
    near = torch.device("cuda:1" if many else "cpu")
    for mode in MODES:
        check(folder, device, mode, Net(device.device, device.device))
        check(folder, device, mode, Net(device.device, near))
        check(folder, device, mode, sharded(device))
        phases.say(f"checkpoints of mode {mode} are right")
