# SPDX-License-Identifier: Apache-2.0
"""The benchmark of devices: it measures nothing without one, and works wherever torch does."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from common import run_program
from waiting import HANG_SECONDS

BENCH = pathlib.Path(__file__).parents[2] / "bench/device.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *arguments]
    no_device = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=no_device, timeout=HANG_SECONDS)


def test_without_a_device_nothing_is_measured(tmp_path: pathlib.Path) -> None:
    found = bench("--folder", str(tmp_path / "folder"), "--output", str(tmp_path / "out.json"))
    assert found.returncode == 1
    assert "finds no GPU; nothing was measured" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_a_number_is_the_first(tmp_path: pathlib.Path) -> None:
    run_program(
        f"""
import sys
sys.path.insert(0, {str(BENCH.parent)!r})
import torch
torch.cuda.set_device = torch.cuda._utils._get_device_index  # its check, which refuses a device without a number
import device_ways
assert [str(device_ways.Device(name).device) for name in ("cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:1", "cpu"]
"""
    )


@pytest.mark.long
def test_a_try_on_the_processor_checks_and_measures_everything(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    output = tmp_path / "out.json"
    found = bench("--device", "cpu", "--quick", "--folder", str(tmp_path), "--output", str(output), "--page", str(page))
    assert found.returncode == 0, found.stderr
    assert "checkpoints of mode lazy are right" in found.stderr
    assert not page.exists()  # figures of a processor say nothing about a device
    results = json.loads(output.read_text())
    assert results["missing"] == {}
    assert {"no save", "pawl", "pawl lazy", "pawl staged", "torch.save", "DCP"} <= set(
        results["samples"][next(iter(results["facts"]))]
    )
