# SPDX-License-Identifier: Apache-2.0
"""pawl.orbax next to the real Orbax: what it has saved is loaded, and written in other formats."""

from __future__ import annotations

import json
import pathlib

import pytest
import safetensors.torch
from frameworks import run

pytestmark = pytest.mark.framework

FOUR_DEVICES = "--xla_force_host_platform_device_count=4"


def test_R151_checkpoints_of_orbax_are_loaded_and_converted(tmp_path: pathlib.Path) -> None:
    """By the worker: trees alone, of a manager, several together, prefixes of steps, sharded arrays, bfloat16, texts,
    numbers; what is none, or is damaged."""
    out = run("orbax", "orbax_worker.py", tmp_path, XLA_FLAGS=FOUR_DEVICES, JAX_PLATFORMS="cpu")
    assert json.loads(out.splitlines()[-1])["orbax"]
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert sorted(loaded) == ["dense.w", "scale"] and float(loaded["dense.w"][0, 9]) == 9.0
