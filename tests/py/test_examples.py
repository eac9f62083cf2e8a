# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say: a run that was killed in the middle of a save ends as one that never was."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
PAWL = os.environ.get("PAWL_BIN", "pawl")
DATA = ROOT / "examples" / "c" / "digits.csv"


def train(run: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = BUILD / "examples" / "c" / "train_digits"
    return subprocess.run([program, *options, DATA, run], capture_output=True, text=True, timeout=HANG_SECONDS)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_c_example_killed_in_a_save_and_resumed_ends_with_the_same_weights(tmp_path: pathlib.Path) -> None:
    straight = train(tmp_path / "straight", "--epochs", "6")
    killed = train(tmp_path / "killed", "--epochs", "6", "--die-in-save", "4")
    assert killed.returncode == -signal.SIGKILL
    resumed = train(tmp_path / "killed", "--epochs", "6")
    assert re.match(r"resumed after epoch [34] from ", resumed.stdout)
    assert last_line(resumed) == last_line(straight)
    diff = subprocess.run(
        [PAWL, "diff", tmp_path / "straight", tmp_path / "killed"], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert diff.returncode == 0, diff.stdout + diff.stderr


def test_c_example_of_another_length_ends_with_other_weights(tmp_path: pathlib.Path) -> None:
    assert last_line(train(tmp_path / "a", "--epochs", "2")) != last_line(train(tmp_path / "b", "--epochs", "3"))


def test_c_example_says_why_it_cannot_save(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = train(tmp_path / "file" / "run", "--epochs", "1")
    assert done.returncode != 0
    assert "train_digits: " in done.stderr


def test_the_demo_ends_with_its_headline(tmp_path: pathlib.Path) -> None:
    demo = ROOT / "examples" / "demo" / "demo.py"
    environment = os.environ | {"PATH": f"{pathlib.Path(PAWL).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, demo, "--steps", "20", "--megabytes", "20", "--folder", tmp_path / "demo"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"killed: [0-9.]+ MB of checkpoint_0000\d\d were on disk in a folder that is not", done.stdout)
    assert "\nresumed after step " in done.stdout
    # Which checkpoints are the three best depends on the text that the machine has.
    assert re.search(r"^restore takes step (7|9|11|13|15|17) instead of 19$", done.stdout, re.MULTILINE)
    assert re.search(r"load_file: \d\d tensors", done.stdout)
    assert re.search(r"^ +DCP async_save █+ [0-9,]+ ms$", done.stdout, re.MULTILINE)
    assert "== Killed in the middle of a save, resumed, equal in every bit\n" in done.stdout
