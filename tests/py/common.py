# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python tests."""

from __future__ import annotations

import math
import os
import pathlib
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from waiting import HANG_SECONDS

import pawl

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]


def random_torch(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of random bits (of the values 0 and 1 for bool)."""
    generator = np.random.default_rng(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool:
        bits = generator.integers(0, 2, count, dtype=np.uint8)
    else:
        bits = generator.integers(0, 256, count * size, dtype=np.uint8)
    return torch.from_numpy(bits).view(dtype).reshape(shape)


def torch_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the logical contents."""
    dense = tensor.detach().cpu().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def same(a: Any, b: Any) -> bool:
    """Equal types, equal values, equal bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.requires_grad == b.requires_grad
            and torch_bytes(a) == torch_bytes(b)
        )
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return [*a] == [*b] and [type(k) for k in a] == [type(k) for k in b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def round_trip(state: Any) -> Any:
    """What comes back when a state is saved and restored into new objects."""
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, state, wait=True)
        restored = manager.restore()
        assert restored is not None
        return restored.state


def interpreter(program: str) -> subprocess.Popen[str]:
    """A process of its own that runs a program, with this pawl."""
    path = {"PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | path,
    )


def run_program(program: str) -> str:
    """What a program prints that ends well and complains about nothing."""
    process = interpreter(program)
    out, err = process.communicate(timeout=HANG_SECONDS)
    if (process.returncode, err) != (0, ""):
        raise AssertionError(f"status {process.returncode}\n{err}")
    return out


def result_of_failure(fit: Any, *args: Any, **options: Any) -> Any:
    """What the error of a training run that fails has for its result."""
    from pawl import train

    with pytest.raises(train.TrainingFailedError) as caught:
        fit(*args, **options)
    result = caught.value.result
    assert result is not None and result.error is caught.value
    return result
