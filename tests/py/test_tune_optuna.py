# SPDX-License-Identifier: Apache-2.0
"""pawl.tune asks a real Optuna, and gives DataFrames of a real pandas."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from frameworks import run

pytestmark = pytest.mark.framework


def test_optuna_is_asked_told_and_told_again_when_an_experiment_goes_on(tmp_path: pathlib.Path) -> None:
    out = run("optuna", "optuna_worker.py", tmp_path)
    assert "Optuna has nothing like tune.randn" in out
    assert "Optuna searches no grids" in out
    assert "the space has nothing to draw" in out


def test_without_optuna_and_pandas_the_errors_say_what_is_missing() -> None:
    program = "from pawl.tune.optuna import OptunaSearch; OptunaSearch()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install optuna" in done.stderr
