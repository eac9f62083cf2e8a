# SPDX-License-Identifier: Apache-2.0
"""The job of test_dcp_import.py: `dcp_folder_worker.py WORLD FOLDER` forks the ranks, which save with torch's own writer."""

from __future__ import annotations

import datetime
import os
import sys
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_worker import VALUES, model_on, sharded, state_on, train, whole
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from waiting import HANG_SECONDS


def states(mesh: DeviceMesh) -> dict[str, dict[str, Any]]:
    """What is saved, by the name of its folder."""
    model, optimizer = model_on(mesh, 0)
    train(model, optimizer, 0)
    weights, moments = get_state_dict(model, optimizer)
    return {
        "rows": state_on(mesh, 0),
        "columns": state_on(mesh, 1),
        "training": {"model": weights, "optimizer": moments, "step": 1},
        "mixed": {
            "columns of bytes": sharded(whole("bytes", (6, 10)).to(torch.uint8), mesh, 1),
            "scalar": torch.tensor(3),
            "list": [{"a": torch.ones(2)}, [torch.zeros(1), VALUES], 5],
            "inside": (1, {"t": torch.arange(3)}),
            "long": "x" * 9000,
        },
    }


def run(rank: int, world: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=HANG_SECONDS),
    )
    for name, state in states(init_device_mesh("cpu", (world,))).items():
        dcp.save(state, checkpoint_id=f"{folder}/{name}")
    dist.destroy_process_group()


def main(world: int, folder: str) -> int:
    ranks = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(rank, world, folder)
                code = 0
            except BaseException:
                print(f"rank {rank}:", traceback.format_exc(), file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        ranks.append(pid)
    return max(os.waitpid(pid, 0)[1] != 0 for pid in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
