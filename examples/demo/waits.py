# SPDX-License-Identifier: Apache-2.0
"""Measures how long a save holds a training run: pawl, torch.save and DCP's async_save, on the same state, in turn.

python waits.py FOLDER MEGABYTES     # prints the medians in seconds as one line of JSON
"""

from __future__ import annotations

import json
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

import pawl

ROUNDS = 5
TENSORS = 20

# A save returns a function that waits until it is over, so that no save disturbs the next one.
Save = Callable[[int], Callable[[], object]]


def main(folder: pathlib.Path, megabytes: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    state = {f"layer {i}": torch.randn(megabytes * 250_000 // TENSORS) for i in range(TENSORS)}
    waits: dict[str, list[float]] = {"torch.save": [], "DCP async_save": [], "pawl": []}
    with pawl.CheckpointManager(folder / "pawl", num_to_keep=1, ranks=pawl.Ranks(rank=0, world_size=1)) as manager:

        def by_torch(step: int) -> Callable[[], object]:
            torch.save(state, folder / "torch.pt")
            return lambda: None

        def by_dcp(step: int) -> Callable[[], object]:
            future = async_save(state, checkpoint_id=folder / f"dcp{step}")

            def finish() -> None:
                assert not isinstance(future, AsyncSaveResponse)
                future.result()
                shutil.rmtree(folder / f"dcp{step}")

            return finish

        def by_pawl(step: int) -> Callable[[], object]:
            ticket = manager.save(step, state)
            return ticket.wait if ticket else lambda: None

        saves: dict[str, Save] = {"torch.save": by_torch, "DCP async_save": by_dcp, "pawl": by_pawl}
        for step in range(ROUNDS + 1):
            for name, save in saves.items():
                begin = time.perf_counter()
                wait = save(step)
                waits[name].append(time.perf_counter() - begin)
                wait()
    dist.destroy_process_group()
    shutil.rmtree(folder)
    # The first save of each sets its memory up and does not count.
    print(json.dumps({name: statistics.median(seconds[1:]) for name, seconds in waits.items()}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
