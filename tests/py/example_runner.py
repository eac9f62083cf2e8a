# SPDX-License-Identifier: Apache-2.0
"""Runs a program of examples/ for test_example_programs.py: example_runner.py LINE program.py arguments. The process is
killed when it has printed a line that begins with LINE (never if that is empty), and the path NEEDS exists."""

from __future__ import annotations

import builtins
import os
import pathlib
import runpy
import signal
import sys
from typing import Any

import torch
from waiting import exists

LINE = sys.argv[1]
NEEDS = os.environ.get("NEEDS", "/")
_print = builtins.print


def print_and_die(*words: Any, **options: Any) -> None:
    _print(*words, **options)
    if LINE and str(words[0]).startswith(LINE):
        exists(pathlib.Path(NEEDS))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # torchvision's own operators need CUDA's libraries in the wheel that the index has; only their names are needed here.
    if "composer" in sys.argv[2]:
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    builtins.print = print_and_die
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
