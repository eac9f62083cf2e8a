# SPDX-License-Identifier: Apache-2.0
"""The jobs of test_dcp.py: `dcp_worker.py JOB WORLD FOLDER` forks the ranks, once everything is imported, and waits for
them. A rank that fails says why, and takes the others with it."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from waiting import HANG_SECONDS

import pawl
import pawl.torch

OPTIONS: dict[str, Any] = {"timeouts": pawl.Timeouts(commit=HANG_SECONDS)}


def whole(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same on all ranks."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(shape, generator=generator).to(dtype)


TENSORS: dict[str, torch.Tensor] = {
    "rows": whole("rows", (13, 5)),
    "columns": whole("columns", (6, 11), torch.bfloat16),
    "few": whole("few", (2, 3)),  # fewer rows than ranks
    "vector": whole("vector", (101,), torch.float64),
}
VALUES: dict[str, Any] = {
    "step": 7,
    "rate": 1e-3,
    "name": "x",
    "betas": (0.9, 0.999),
    "none": None,
    "sizes": [1, [2, 3]],
}


def sharded(tensor: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(dim)]
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def state_on(mesh: DeviceMesh, dim: int, zero: bool = False) -> dict[str, Any]:
    fill = torch.zeros_like if zero else torch.clone
    weights = {name: sharded(fill(t), mesh, min(dim, t.ndim - 1)) for name, t in TENSORS.items()}
    weights["tied"] = weights["rows"]
    plain = {"whole": fill(whole("whole", (4, 4))), "scalar": fill(torch.tensor(2.5)), "nothing": torch.empty(0, 3)}
    values = dict.fromkeys(VALUES) if zero else VALUES
    return {"model": weights, "plain": plain, "list": [fill(torch.arange(3.0)), 5], "values": values}


def check(state: dict[str, Any], mesh: DeviceMesh, dim: int) -> None:
    expected = state_on(mesh, dim)
    for name, tensor in state["model"].items():
        assert torch.equal(tensor.to_local(), expected["model"][name].to_local()), name
    for name, tensor in state["plain"].items():
        assert torch.equal(tensor, expected["plain"][name]), name
    assert torch.equal(state["list"][0], torch.arange(3.0)) and state["list"][1] == 5
    assert state["values"] == VALUES


@contextlib.contextmanager
def refused(kind: type[Exception], *texts: str) -> Iterator[None]:
    """DCP has raised, and on the ranks that failed it was this."""
    try:
        yield
    except CheckpointException as error:
        reasons = [reason[0] for reason in error.failures.values()]
        assert all(isinstance(reason, pawl.PawlError) for reason in reasons), reasons
        told = [str(reason) for reason in reasons if isinstance(reason, kind)]
        assert any(all(text in line for text in texts) for line in told), reasons
        return
    raise AssertionError("nothing was raised")


def reshard(rank: int, world: int, folder: str) -> None:
    """Four ranks save on a mesh of two dimensions; two read it, by columns, and save; three read that."""
    square = init_device_mesh("cpu", (2, 2))
    with pawl.torch.StorageWriter(f"{folder}/four", **OPTIONS) as writer:
        dcp.save(state_on(square, 0), checkpoint_id="a/step_400", storage_writer=writer)
        assert writer.manager.all_steps() == [400] and writer.manager.world_size == 4
        dcp.save(state_on(square, 1), storage_writer=writer)
        assert writer.manager.all_steps() == [400, 401]
    for name in ("a/step_400", None):
        state = state_on(square, 0, zero=True)
        dcp.load(state, checkpoint_id=name, storage_reader=pawl.torch.StorageReader(f"{folder}/four"))
        check(state, square, 0)
    previous = "four"
    for ranks, dim in ((2, 1), (3, 0)):
        group = dist.new_group(list(range(ranks)))
        mesh = DeviceMesh("cpu", list(range(ranks)))
        if rank < ranks:
            state = state_on(mesh, dim, zero=True)
            reader = pawl.torch.StorageReader(f"{folder}/{previous}")
            dcp.load(state, storage_reader=reader, process_group=group)
            check(state, mesh, dim)
            with pawl.torch.StorageWriter(f"{folder}/{ranks}", process_group=group, **OPTIONS) as writer:
                dcp.save(state, checkpoint_id=1, storage_writer=writer, process_group=group)
        dist.barrier()
        previous = str(ranks)


def refuse(rank: int, world: int, folder: str) -> None:
    """What one rank cannot save fails on all, soon; and the next save goes through."""
    mesh = init_device_mesh("cpu", (world,))
    root = f"{folder}/refused"
    with pawl.torch.StorageWriter(root, **OPTIONS) as writer:
        state = state_on(mesh, 0)
        state["odd"] = {"thing": object()} if rank == world - 1 else {}
        with refused(pawl.UnsupportedError, "'odd/thing': a builtins.object cannot be held in a state"):
            dcp.save(state, checkpoint_id=1, storage_writer=writer)
        del state["odd"]
        dcp.save(state, checkpoint_id=2, storage_writer=writer)
        assert writer.manager.all_steps() == [2]
        try:
            dcp.save(state, storage_writer=writer, use_collectives=False)
            raise AssertionError("nothing was raised")
        except pawl.UsageError as error:
            assert "every rank save by itself" in str(error)
    dist.barrier()
    if rank == 0:
        pack = f"{root}/latest/rank00000-00000.safetensors"
        size = os.path.getsize(pack)
        with open(pack, "r+b") as file:
            file.seek(size - 8)
            file.write(b"damaged!")
    dist.barrier()
    with refused(pawl.CorruptError, "checkpoint_"):
        dcp.load(state_on(mesh, 0, zero=True), storage_reader=pawl.torch.StorageReader(root))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    optimizer.zero_grad()
    loss = model(whole(f"input {step}", (4, 10))).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def model_on(mesh: DeviceMesh, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 17), torch.nn.ReLU(), torch.nn.Linear(17, 3))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def fsdp2(rank: int, world: int, folder: str) -> None:
    """A sharded model and its optimizer, saved in the background, continue in a new model where they were."""
    mesh = init_device_mesh("cpu", (world,))
    root = f"{folder}/fsdp2"
    model, optimizer = model_on(mesh, 0)
    group = dist.new_group()  # of the saves in the background: the training continues with the other one
    with pawl.torch.StorageWriter(
        root, process_group=group, retention=pawl.Retention(keep_last=1), **OPTIONS
    ) as writer:
        for step in range(3):
            train(model, optimizer, step)
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            future = dcp.async_save(state, checkpoint_id=f"step_{step}", storage_writer=writer, process_group=group)
            if step < 2:
                future.result()
        saved = {name: tensor.full_tensor() for name, tensor in weights.items()}
        expected = train(model, optimizer, 3)  # the last save still runs
        future.result()
        assert writer.manager.latest_step() == 2
        writer.manager.wait_until_finished()
        assert rank > 0 or writer.manager.all_steps() == [2]  # rank 0 deletes
    model, optimizer = model_on(mesh, 1)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": -1}
    dcp.load(state, storage_reader=pawl.torch.StorageReader(root))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert state["step"] == 2
    assert train(model, optimizer, 3) == expected
    if rank == 0:
        torch.save(saved, f"{folder}/saved")


def kinds(rank: int, world: int, folder: str) -> None:
    """Shards across two dimensions of a mesh, with DCP's cached plans; and the ShardedTensors of FSDP1."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(10, 18), torch.nn.ReLU(), torch.nn.Linear(18, 6))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with pawl.torch.StorageWriter(f"{folder}/kinds", **OPTIONS) as writer:
        for step in range(3):
            train(model, optimizer, step)
            weights, moments = get_state_dict(model, optimizer)
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            dcp.save({"m": weights, "o": moments}, checkpoint_id=step, storage_writer=writer, planner=planner)
        assert writer.manager.latest_step() == 2
        saved = {name: tensor.full_tensor() for name, tensor in weights.items()}
        if rank == 0:
            tree = pawl.load(f"{folder}/kinds@2")
            assert all(torch.equal(tree["m"][name], tensor) for name, tensor in saved.items())
        expected = train(model, optimizer, 3)
        weights, moments = get_state_dict(model, optimizer)
        state = {"m": weights, "o": moments}
        dcp.load(state, storage_reader=pawl.torch.StorageReader(f"{folder}/kinds"))
        set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
        assert train(model, optimizer, 3) == expected
        older = FullyShardedDataParallel(torch.nn.Linear(7, 5), device_id=torch.device("cpu"))
        with FullyShardedDataParallel.state_dict_type(older, StateDictType.SHARDED_STATE_DICT):
            shards = older.state_dict()
            before = [shard.tensor.clone() for tensor in shards.values() for shard in tensor.local_shards()]
            dcp.save({"f": shards}, checkpoint_id=50, storage_writer=writer)
            here = [shard.tensor for tensor in shards.values() for shard in tensor.local_shards()]
            for tensor in here:
                tensor.zero_()
            dcp.load({"f": shards}, checkpoint_id=50, storage_reader=pawl.torch.StorageReader(f"{folder}/kinds"))
            assert all(torch.equal(a, b) for a, b in zip(here, before, strict=True))


WIDE = torch.arange(200.0).reshape(10, 20)


def wide(spec: Any, zero: bool = False) -> Any:
    tensor = sharded_tensor.zeros(spec, 10, 20)
    for shard in tensor.local_shards():
        (row, column), (height, width) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        if not zero:
            shard.tensor.copy_(WIDE[row : row + height, column : column + width])
    return tensor


def rows_of(*parts: tuple[int, int]) -> EnumerableShardingSpec:
    """Height and rank of each part, from the top."""
    shards, row = [], 0
    for height, rank in parts:
        shards.append(ShardMetadata([row, 0], [height, 20], f"rank:{rank}/cpu"))
        row += height
    return EnumerableShardingSpec(shards)


def pieces(rank: int, world: int, folder: str) -> None:
    """The plans of DCP's own test of resharding: with several shards of a tensor on one rank."""
    plans = [
        ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"]),
        ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu", "rank:1/cpu", "rank:0/cpu"]),
        rows_of((2, 0), (1, 1), (3, 0), (3, 1), (1, 0)),
        rows_of((8, 1), (2, 0)),
        rows_of((4, 1), (2, 1), (4, 1)),
    ]
    for number, saved in enumerate(plans):
        state = {"w": wide(saved), "deep": {"w": wide(saved), "n": [number]}}
        with pawl.torch.StorageWriter(f"{folder}/run") as writer:
            dcp.save(state, checkpoint_id=f"plan_{number}", storage_writer=writer)
        for loaded in plans:
            state = {"w": wide(loaded, True), "deep": {"w": wide(loaded, True), "n": [None]}}
            dcp.load(state, checkpoint_id=f"plan_{number}", storage_reader=pawl.torch.StorageReader(f"{folder}/run"))
            for one, right in ((state["w"], wide(loaded)), (state["deep"]["w"], wide(loaded))):
                for shard, expected in zip(one.local_shards(), right.local_shards(), strict=True):
                    assert torch.equal(shard.tensor, expected.tensor), (number, loaded)
            assert state["deep"]["n"] == [number]
        plain = {"w": torch.zeros(10, 20), "deep": {"w": torch.zeros(10, 20)}}
        dcp.load(plain, checkpoint_id=f"plan_{number}", storage_reader=pawl.torch.StorageReader(f"{folder}/run"))
        assert torch.equal(plain["w"], WIDE) and torch.equal(plain["deep"]["w"], WIDE)


def staged(rank: int, world: int, folder: str) -> None:
    """async_save copies every kind of tensor before it returns. Tied tensors stay tied."""
    mesh = init_device_mesh("cpu", (world,))
    plans = {"one": rows_of((10, 0)), "two": rows_of((4, 0), (6, 0)), "again": rows_of((10, 0))}
    weight, count = torch.ones(50), distribute_tensor(torch.tensor(3.0), mesh, [Replicate()])
    state = {name: wide(plan) for name, plan in plans.items()}
    state["again"] = state["one"]
    state |= {"deep": [{"w": wide(plans["two"])}], "weight": weight, "tied": weight, "count": count, "n": 5}
    with pawl.torch.StorageWriter(f"{folder}/staged", **OPTIONS) as writer:
        future = dcp.async_save(state, storage_writer=writer)
        for tensor in (weight, count.to_local(), *(s.tensor for s in state["two"].local_shards())):
            tensor.zero_()
        future.result()
    loaded = {name: wide(plan, True) for name, plan in plans.items()}
    loaded |= {"deep": [{"w": wide(plans["two"], True)}]}
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(f"{folder}/staged"))
    for tensor in (*(loaded[name] for name in plans), loaded["deep"][0]["w"]):
        assert torch.equal(torch.cat([shard.tensor for shard in tensor.local_shards()]), WIDE)
    tree = pawl.load(f"{folder}/staged@latest")
    assert torch.equal(tree["weight"], torch.ones(50)) and tree["tied"] is tree["weight"]
    assert (float(tree["count"]), tree["n"]) == (3.0, 5)


def run(job: str, rank: int, world: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=HANG_SECONDS),
    )
    for name in job.split("+"):
        {"reshard": reshard, "refuse": refuse, "fsdp2": fsdp2, "kinds": kinds, "pieces": pieces, "staged": staged}[
            name
        ](rank, world, folder)
    dist.destroy_process_group()


def main(job: str, world: int, folder: str) -> int:
    ranks = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(job, rank, world, folder)
                code = 0
            except BaseException:
                print(f"rank {rank}:", traceback.format_exc(), file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        ranks.append(pid)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
