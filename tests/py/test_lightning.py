# SPDX-License-Identifier: Apache-2.0
"""pawl.lightning below the real Lightning."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest
from frameworks import run

import pawl

WORKER = "lightning_worker.py"
STEPS_PER_EPOCH = 6


def test_a_killed_training_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "kill", expect=-signal.SIGKILL)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.latest_step() in (STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH)
        assert manager.verify() == []
        assert manager.metrics(manager.latest_step())["loss"] > 0
    run("lightning", WORKER, tmp_path, "resume")
    assert (tmp_path / "steps").read_text() == "[18, 24]"


def test_a_signal_saves_once_more(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "term")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [16]


def test_the_plugin_writes_what_lightning_names(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "plugin")
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    kept = [name for name in names if name.startswith("epoch=")]
    assert len(kept) == 1 and {"by_hand.ckpt", "last.ckpt"} <= set(names), names
    for name in [*kept, "by_hand.ckpt", "last.ckpt"]:
        assert pawl.load(tmp_path / name)["pytorch-lightning_version"]


@pytest.mark.parametrize("module", ["lightning"])
def test_without_the_library_the_error_says_what_to_install(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import pawl.{module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"pip install 'pawl[{module}]'" in done.stderr
