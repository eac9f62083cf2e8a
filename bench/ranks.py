# SPDX-License-Identifier: Apache-2.0
"""One rank of the measurement of many ranks: W1 as DTensors, saved and restored by pawl and by DCP in turns. Started by
phases.py under torchrun; rank 0 writes the samples."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import measure
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import workloads
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import pawl

warnings.filterwarnings("ignore")


def pieces(scale: float, dim: int, fill: bool) -> dict[str, Any]:
    """The state with every tensor cut along a dimension (or the only one it has) over the ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made: dict[str, Any] = {}
    for part, group in workloads.adamw_state(scale).items():
        made[part] = {}
        for name, whole in group.items():
            placement = Shard(min(dim, whole.ndim - 1)) if whole.numel() > 4096 else Replicate()
            local = (
                whole.chunk(dist.get_world_size(), placement.dim)[dist.get_rank()] if placement.is_shard() else whole
            )
            local = local.clone() if fill else torch.zeros_like(local)
            made[part][name] = DTensor.from_local(
                local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
            )
    return made


def slowest(seconds: float) -> float:
    """Of all ranks."""
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    dist.barrier()
    begin = time.perf_counter()
    result = call()
    return slowest(time.perf_counter() - begin), result


STEP_SECONDS = 0.5


class Bench:
    def __init__(self, folder: pathlib.Path, scale: float) -> None:
        self.folder = folder
        self.state = pieces(scale, 0, True)
        self.same = pieces(scale, 0, False)
        self.other = pieces(scale, 1, False)
        self.manager = pawl.CheckpointManager(folder / "pawl", timeouts=pawl.Timeouts(commit=300))
        self.step = 0
        self.group = dist.new_group(backend="gloo")  # DCP's background thread must not meet our own calls

    def change(self) -> None:
        for group in self.state.values():
            for tensor in group.values():
                tensor._local_tensor.add_(1e-3)

    def place(self, name: str) -> pathlib.Path:
        path = self.folder / name
        if dist.get_rank() == 0:
            measure.remove(path)
        dist.barrier()
        return path

    def save_pawl(self) -> dict[str, float]:
        self.change()
        self.step += 1
        blocked, ticket = timed(lambda: self.manager.save(self.step, self.state))
        waited, _ = timed(ticket.wait)
        if dist.get_rank() == 0 and self.step > 1:  # as with DCP, deleting is not measured
            self.manager.delete(self.step - 1)
        dist.barrier()
        return {"blocked": blocked, "durable": blocked + waited}

    def save_pawl_lazy(self) -> dict[str, float]:
        """save(lazy=True), then half a second of computing in every rank, then before_step()."""
        self.change()
        self.step += 1
        a = torch.ones(512, 512)
        state = workloads.Optimizer(self.state)
        begin = time.perf_counter()
        blocked, ticket = timed(lambda: self.manager.save(self.step, state, lazy=True))
        step_end = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < step_end:
            a @ a
        fence, _ = timed(self.manager.before_step)
        timed(ticket.wait)
        durable = slowest(time.perf_counter() - begin)
        if dist.get_rank() == 0 and self.step > 1:
            self.manager.delete(self.step - 1)
        dist.barrier()
        return {"blocked": blocked + fence, "durable": durable}

    def save_dcp(self) -> dict[str, float]:
        self.change()
        path = self.place("dcp")
        seconds, _ = timed(lambda: dcp.save(self.state, checkpoint_id=path))
        return {"blocked": seconds, "durable": seconds}

    def save_dcp_async(self) -> dict[str, float]:
        self.change()
        path = self.place("dcp-async")
        blocked, future = timed(lambda: dcp.async_save(self.state, checkpoint_id=path, process_group=self.group))
        waited, _ = timed(future.result)
        self.place("dcp-async")  # it is not read, and its pages would push out those of the others
        return {"blocked": blocked, "durable": blocked + waited}

    def restore(self, which: str, live: dict[str, Any]) -> dict[str, float]:
        is_pawl = which == "pawl"
        path = pathlib.Path(self.manager.root) / "latest" if is_pawl else self.folder / "dcp"
        call = partial(self.manager.restore, live) if is_pawl else partial(dcp.load, live, checkpoint_id=path)
        if dist.get_rank() == 0:
            measure.fill_cache(path.resolve())
        seconds, _ = timed(call)
        return {"seconds": seconds}


def main() -> None:
    folder, scale, rounds, output = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    bench = Bench(folder, scale)
    turns: dict[str, dict[str, Callable[[], dict[str, float]]]] = {
        f"{world} ranks save": {
            "pawl": bench.save_pawl,
            "pawl lazy": bench.save_pawl_lazy,
            "DCP": bench.save_dcp,
            "DCP async_save": bench.save_dcp_async,
        },
        f"{world} ranks restore": {
            "pawl": lambda: bench.restore("pawl", bench.same),
            "DCP": lambda: bench.restore("DCP", bench.same),
        },
        f"{world} ranks restore, rows to columns": {
            "pawl": lambda: bench.restore("pawl", bench.other),
            "DCP": lambda: bench.restore("DCP", bench.other),
        },
    }
    samples: dict[str, Any] = {}
    for number in range(rounds + 1):
        for group, peers in turns.items():
            names = list(peers)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                figures = peers[name]()
                for key, value in figures.items() if number else ():
                    samples.setdefault(group, {}).setdefault(name, {}).setdefault(key, []).append(value)
        if dist.get_rank() == 0:
            os.sync()
            print(f"  {world} ranks: round {number} of {rounds}", file=sys.stderr, flush=True)
    bench.save_pawl()  # what is measured must be right, too
    for live in (bench.same, bench.other):
        bench.manager.restore(live)
        for part, tensors in live.items():
            for name, tensor in tensors.items():
                saved = bench.state[part][name]
                if not torch.equal(tensor.redistribute(placements=saved.placements)._local_tensor, saved._local_tensor):
                    raise RuntimeError(f"{part}/{name} was not restored")
    bench.manager.close()
    if dist.get_rank() == 0:
        pathlib.Path(output).write_text(json.dumps(samples))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
