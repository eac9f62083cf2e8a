# SPDX-License-Identifier: Apache-2.0
"""What both trainings of the demo share: fixed arithmetic, options, and the timing of pawl beside torch.save."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import tempfile
import time
from typing import Any

import numpy
import torch


def make_deterministic(threads: int = 2) -> None:
    """The same input gives the same bits, in every process on this machine."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def options(steps: int, save_every: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="run folder")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--save-every", type=int, default=save_every)
    parser.add_argument("--report", type=pathlib.Path, help="also time torch.save on the same state; figures go here")
    return parser


class Timings:
    """Seconds that each save held the training; beside it, when asked for, torch.save of the same state."""

    def __init__(self, report: pathlib.Path | None, folder: str) -> None:
        self.report = report
        self.folder = str(pathlib.Path(folder).parent)
        self.rows: list[dict[str, float]] = []

    def saved(self, ticket: Any, seconds: float, state: dict[str, Any]) -> None:
        if self.report is None:
            return
        ticket.wait()
        self.rows.append({"pawl": seconds} | torch_save_seconds(plain(state), self.folder))

    def write(self) -> None:
        if self.report is not None:
            self.report.write_text(json.dumps(self.rows))


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in state.items()}


def torch_save_seconds(state: dict[str, Any], folder: str) -> dict[str, float]:
    """Seconds until torch.save returns, and until its file is durable."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="torch-save-", suffix=".pt") as file:
        begin = time.perf_counter()
        torch.save(state, file.name)
        returned = time.perf_counter()
        descriptor = os.open(file.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return {"torch": returned - begin, "torch_durable": time.perf_counter() - begin}
