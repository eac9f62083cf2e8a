# SPDX-License-Identifier: Apache-2.0
"""The states that are saved and restored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

State = dict[str, Any]
LAYERS = 9


def adamw_state(scale: float, device: torch.device | str = "cpu") -> State:
    """W1: weights and both moments of a transformer in fp32: 339 tensors, 2.5 GB at scale 1."""
    width = max(8, round(1168 * math.sqrt(scale)) // 8 * 8)
    vocabulary = max(64, round(54_000 * math.sqrt(scale)))
    shapes: dict[str, tuple[int, ...]] = {
        "token": (vocabulary, width),
        "position": (1024, width),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.bias": (vocabulary,),
    }
    for layer in range(LAYERS):
        for name, rows, columns in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            shapes[f"{layer}.{name}.weight"] = (rows * width, columns * width)
            shapes[f"{layer}.{name}.bias"] = (rows * width,)
        for name in ("norm1", "norm2"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (width,)
    generator = torch.Generator(device).manual_seed(1)
    parts = ("model", "exp_avg", "exp_avg_sq")
    return {
        part: {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
        for part in parts
    }


def small_state() -> State:
    """W3: 10 MB in 640 tensors, a trial of a hyperparameter search."""
    generator = torch.Generator().manual_seed(3)
    return {"model": {f"layer{i:03}": torch.randn(64, 64, generator=generator) for i in range(640)}}


def many_state(n: int = 20_000) -> State:
    """W5: 20,000 tensors of 1 KB."""
    generator = torch.Generator().manual_seed(5)
    return {"model": {f"table{i:05}": torch.randn(256, generator=generator) for i in range(n)}}


def tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)


class Optimizer:
    """Gives a state as an optimizer that updates every tensor in it does: a lazy save may copy them later."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.param_groups = [{"params": list(tensors(state))}]

    def state_dict(self) -> State:
        return self._state


def nbytes(state: State) -> int:
    return sum(t.nbytes for t in tensors(state))


def flat(state: State) -> dict[str, torch.Tensor]:
    """One level, for formats without a tree."""
    return {f"{part}/{name}": tensor for part, group in state.items() for name, tensor in group.items()}


def change(state: State) -> None:
    """What a training step does to a state: every tensor becomes another one, in place."""
    for tensor in tensors(state):
        tensor.add_(1e-3)


def empty_like(state: State) -> State:
    """A live state to restore into, with its memory already touched."""
    return {part: {name: torch.zeros_like(t) for name, t in group.items()} for part, group in state.items()}


def copy_into(live: State, loaded: State) -> None:
    for part, group in live.items():
        for name, tensor in group.items():
            tensor.copy_(loaded[part][name])


def equal(a: State, b: State) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))
