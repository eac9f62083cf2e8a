# SPDX-License-Identifier: Apache-2.0
"""The first save of a process against its later ones: 2 s after prepare, 2 s after restore, and with neither. Each case
is a process of its own, and the cases take turns. The figure is a ratio of saves of the same process."""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

MIB = 1 << 20
N_TENSORS = 16
LATER = 5  # saves after the first
READY_SECONDS = 2.0
CASES = ("prepare", "restore", "neither")
SCALED_BYTES = 1024 * MIB


def case(folder: pathlib.Path, name: str, nbytes: int) -> dict[str, float]:
    """In a process of its own."""
    import measure
    import torch

    import pawl

    state = {f"layer{i:02}": torch.randn(nbytes // 4 // N_TENSORS) for i in range(N_TENSORS)}
    with measure.scratch(folder, "first") as path:
        if name == "restore":  # another process has saved it
            command = [sys.executable, __file__, "write", str(path), str(nbytes)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        with pawl.CheckpointManager(path, num_to_keep=1) as manager:
            if name == "restore":
                manager.restore(state)
            elif name == "prepare":
                manager.prepare(state)
            time.sleep(READY_SECONDS)
            seconds = []
            for step in range(LATER + 1):
                for tensor in state.values():
                    tensor.add_(1)
                begin = time.perf_counter()
                ticket = manager.save(step, state)
                seconds.append(time.perf_counter() - begin)
                assert ticket is not None
                ticket.wait()
    later = statistics.median(seconds[1:])
    return {"times": seconds[0] / later, "first": seconds[0], "later": later}


def write(path: pathlib.Path, nbytes: int) -> None:
    import torch

    import pawl

    state = {f"layer{i:02}": torch.randn(nbytes // 4 // N_TENSORS) for i in range(N_TENSORS)}
    with pawl.CheckpointManager(path, num_to_keep=1) as manager:
        manager.save(0, state, wait=True)


def run(folder: pathlib.Path, rounds: int, scale: float, add: Callable[[str, dict[str, float]], None]) -> None:
    for _ in range(rounds):
        for name in CASES:
            command = [sys.executable, __file__, name, str(folder), str(int(SCALED_BYTES * scale))]
            done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            add(name, json.loads(done.stdout))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(case(pathlib.Path(sys.argv[2]), sys.argv[1], int(sys.argv[3]))))
