# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch with tensors on a device that the processor cannot read, for machines without one.

It has just what pawl asks of torch. Importing this module puts it into sys.modules as ``torch``.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

strided = object()
uint8, float32, float64, int64 = np.dtype("u1"), np.dtype("f4"), np.dtype("f8"), np.dtype("i8")


class Size(tuple):
    pass


class Tensor:
    is_meta = requires_grad = False
    layout = strided
    broken = False

    def __init__(self, array: np.ndarray, is_cpu: bool = False) -> None:
        self.array, self.is_cpu = array, is_cpu
        self.dtype, self.shape = array.dtype, Size(array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self) -> int:
        assert self.is_cpu, "the processor cannot read this"
        return int(self.array.__array_interface__["data"][0])

    def is_neg(self) -> bool:
        return False

    def detach(self) -> Tensor:
        return Tensor(self.array, self.is_cpu)

    def contiguous(self) -> Tensor:
        if self.broken:
            raise RuntimeError("the device is gone")
        return Tensor(np.ascontiguousarray(self.array), self.is_cpu)

    def reshape(self, *shape: int) -> Tensor:
        return Tensor(self.array.reshape(shape), self.is_cpu)

    def view(self, dtype: np.dtype[Any]) -> Tensor:
        return Tensor(self.array.view(dtype), self.is_cpu)

    def copy_(self, other: Tensor) -> Tensor:
        self.array[...] = other.array
        return self


class Module:
    pass


class Parameter(Tensor):
    pass


def frombuffer(memory: memoryview, dtype: np.dtype[Any]) -> Tensor:
    return Tensor(np.frombuffer(memory, dtype), True)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Tensor:
    return Tensor(np.empty(shape, dtype), True)


nn = types.SimpleNamespace(Module=Module, Parameter=Parameter)
sys.modules["torch"] = sys.modules[__name__]
