# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that test_ranks.py starts: does what its first argument says and prints what it found as JSON."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from waiting import HANG_SECONDS, wait_until

import pawl

warnings.filterwarnings("ignore")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CASES: dict[str, Callable[..., dict[str, Any]]] = {}


def case(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def manager(root: str, **options: Any) -> pawl.CheckpointManager:
    return pawl.CheckpointManager(root, timeouts=pawl.Timeouts(commit=HANG_SECONDS), signals=False, **options)


@contextlib.contextmanager
def follow(root: str, name: str) -> Iterator[None]:
    """A with block of rank 0: the block of each other rank begins when it has ended."""
    mark = f"{root}.{name}"
    if RANK > 0:
        wait_until(lambda: os.path.exists(mark), mark)
    yield
    if RANK == 0:
        open(mark, "w").close()


# ---- plain arrays

ROWS = np.arange(103 * 8, dtype=np.float32).reshape(103, 8)
WHOLE = np.arange(1200 * 300, dtype=np.float32).reshape(1200, 300)


def my_rows() -> tuple[np.ndarray[Any, Any], int]:
    parts = np.array_split(ROWS, WORLD)
    return parts[RANK], sum(len(part) for part in parts[:RANK])


def numpy_state(fill: bool) -> dict[str, Any]:
    rows, at = my_rows()
    return {
        "whole": WHOLE.copy() if fill else np.zeros_like(WHOLE),
        "rows": pawl.Shard(rows.copy() if fill else np.zeros_like(rows), ROWS.shape, (at, 0)),
        "place": pawl.PerRank(100 * RANK + 7 if fill else -1),
        "loss": RANK + 0.5 if fill else 0.0,
        "rng": pawl.rng_state(),
    }


@case
def arrays_save(root: str) -> dict[str, Any]:
    with manager(root) as m:
        np.random.seed(RANK)
        ticket = m.save(3, numpy_state(True), metrics={"accuracy": 0.5} if RANK == 0 else None)
        drawn = np.random.random()
        assert ticket is not None
        ticket.wait()
        return {"steps": m.all_steps(), "rank": m.rank, "world": m.world_size, "drawn": drawn}


@case
def arrays_restore(root: str, rank_values: str) -> dict[str, Any]:
    with manager(root) as m:
        state = numpy_state(False)
        np.random.seed(1000 + RANK)
        restored = m.restore(state, rank_values=rank_values)  # type: ignore[arg-type]
        assert restored is not None
        rows, _ = my_rows()
        return {
            "step": restored.step,
            "whole": bool((state["whole"] == WHOLE).all()),
            "rows": bool((state["rows"].tensor == rows).all()),
            "place": state["place"].value,
            "loss": state["loss"],
            "drawn": np.random.random(),
            "report": restored.report,
        }


@case
def own_saves(root: str) -> dict[str, Any]:
    """No rank waits for its saves: a pin of rank 0 and a restore of all ranks see them."""
    with manager(root) as m:
        m.save(3, numpy_state(True))
        pinned = m.pin(3) if RANK == 0 else None
        m.save(4, numpy_state(True))
        state = numpy_state(False)
        restored = m.restore(state)
        assert restored is not None
        return {"pinned": pinned, "step": restored.step, "whole": bool((state["whole"] == WHOLE).all())}


@case
def opened_again(root: str) -> dict[str, Any]:
    """No rank waits for rank 0 between one opening and the next."""

    def come(number: int) -> None:
        """Rank 0 waits until the others get here: when it closes the run, it waits five seconds for them at most."""
        if RANK > 0:
            open(f"{root}.{number}.{RANK}", "w").close()
        for rank in range(1, WORLD if RANK == 0 else 0):
            wait_until(lambda mark=f"{root}.{number}.{rank}": os.path.exists(mark))  # type: ignore[misc]

    for number in range(10):
        come(number)
        with manager(root):
            pass
    answers = []
    for number, rank_values in enumerate(("strict", "strict", "drop"), start=10):
        come(number)
        with manager(root) as m:
            try:
                m.restore(numpy_state(False), rank_values=rank_values)  # type: ignore[arg-type]
                answers.append("restored")
            except pawl.PawlError as error:
                answers.append(str(error))
    return {"answers": answers}


@case
def own_parts(root: str) -> dict[str, Any]:
    """Every rank gives metrics of its own; only the best checkpoint is kept."""
    with manager(
        root, num_to_keep=1, score_attribute="loss", score_order="min", retention=pawl.Retention(keep_latest=False)
    ) as m:
        for step, loss in ((1, 2.0), (2, 1.0), (3, 3.0)):
            state = {"part": pawl.PerRank(f"part {RANK} of step {step}".encode()), "rows": numpy_state(True)["rows"]}
            ticket = m.save(step, state, metrics={"loss": loss if RANK == 0 else -100.0 * step})
            assert ticket is not None
            ticket.wait()
        return {"best": m.best_step(), "metrics": m.metrics(2)}


@case
def renamed(root: str) -> dict[str, Any]:
    """A live key that nothing was saved for, next to a saved one that has no place here."""
    with manager(root) as m:
        m.save(1, {"a": np.ones(3), "c": np.ones(2)}, wait=True)
        live = {"b": np.zeros(3), "c": np.zeros(2)}
        try:
            m.restore(live)
        except pawl.MismatchError as error:
            return {"error": str(error)}
    return {"error": ""}


# ---- folders of nodes


@case
def nodes_save(root: str, folder: str, step: str) -> dict[str, Any]:
    """Two ranks to a node, each pack on two nodes."""
    with manager(root, ranks=pawl.Ranks(node_folder=folder, n_partners=1), num_to_keep=2) as m:
        state = {**numpy_state(True), "step": np.full(4096, int(step))}
        ticket = m.save(int(step), state)
        assert ticket is not None
        ticket.wait()
        return {"steps": m.all_steps()}


@case
def nodes_restore(root: str, folder: str) -> dict[str, Any]:
    with manager(root, ranks=pawl.Ranks(node_folder=folder, n_partners=0)) as m:
        state = {**numpy_state(False), "step": np.zeros(4096, dtype=int)}
        restored = m.restore(state, rank_values="drop")
        assert restored is not None
        rows, _ = my_rows()
        good = bool((state["whole"] == WHOLE).all() and (state["rows"].tensor == rows).all())
        return {"step": restored.step, "good": good and bool((state["step"] == restored.step).all())}


# ---- torch


def build(kind: str) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(37, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10)
    )
    mesh: Any
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (WORLD,))
    elif kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("copies", "pieces"))
    elif kind == "tp":
        mesh = init_device_mesh("cpu", (WORLD,))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif kind == "fsdp_tp":
        mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("fsdp", "tp"))
        model = parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["fsdp"]
    elif kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    else:
        return model
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(24, 37, generator=generator), torch.randn(24, 10, generator=generator)
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import DTensor

    found = {}
    for name, value in state.items():
        found[name.removeprefix("module.")] = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
    return found


@case
def torch_save(root: str, kind: str) -> dict[str, Any]:
    dist.init_process_group("gloo")
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for seed in range(3):
        train(model, optimizer, seed)
    with manager(root) as m:
        ticket = m.save(3, {"model": model, "optimizer": optimizer, "rng": pawl.rng_state()})
        train(model, optimizer, 99)  # while the save is being written
        assert ticket is not None
        ticket.wait()
    model = build(kind)  # as it was when it was saved, for the comparison
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for seed in range(3):
        train(model, optimizer, seed)
    torch.save(whole(model.state_dict()), f"{root}.{RANK}.pt")
    dist.destroy_process_group()
    return {}


@case
def torch_restore(root: str, kind: str) -> dict[str, Any]:
    dist.init_process_group("gloo")
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 55)
    with manager(root) as m:
        restored = m.restore({"model": model, "optimizer": optimizer, "rng": pawl.rng_state()}, rank_values="drop")
    assert restored is not None
    expected, found = torch.load(f"{root}.0.pt"), whole(model.state_dict())
    first = next(iter(optimizer.state.values()))
    dist.destroy_process_group()
    return {
        "step": restored.step,
        "same": sorted(expected) == sorted(found)
        and all(torch.equal(expected[name], found[name]) for name in expected),
        "class": type(next(iter(model.parameters()))).__name__,
        "optimizer_step": float(first["step"]),
    }


def layouts(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Of every tensor of the optimizer's state but the counters: is it laid out as its parameter?"""
    found = list[bool]()
    parameter: Any
    value: Any
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if name == "step":
                found.append(type(value) is torch.Tensor)
                continue
            alike = type(value) is type(parameter.data) and value.shape == parameter.shape
            if hasattr(parameter, "placements"):
                alike = alike and value.placements == parameter.placements
                alike = alike and value.device_mesh == parameter.device_mesh
                alike = alike and value.to_local().shape == parameter.to_local().shape
            found.append(bool(alike))
    return found


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Two groups, so that an optimizer's numbers are not the order of the model's parameters. The eps is large, since a
    bias in front of a normalisation has no gradient but what rounding leaves, which must not be scaled up."""
    biases: list[Any] = [p for name, p in model.named_parameters() if "bias" in name]
    others: list[Any] = [p for name, p in model.named_parameters() if "bias" not in name]
    groups: list[dict[str, Any]] = [{"params": biases, "lr": 0.02}, {"params": others}]
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-3)


@case
def cold_save(root: str, kind: str) -> dict[str, Any]:
    """Three steps, a save, two more steps."""
    dist.init_process_group("gloo")
    model = build(kind)
    optimizer = optimizer_of(model)
    for seed in range(5):
        train(model, optimizer, seed)
        if seed == 2:
            with manager(root) as m:
                m.save(3, {"model": model, "optimizer": optimizer}, wait=True)
    torch.save(whole(model.state_dict()), f"{root}.{RANK}.pt")
    dist.destroy_process_group()
    return {}


@case
def cold_restore(root: str, kind: str) -> dict[str, Any]:
    """Continues from there with an optimizer that has not stepped yet."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = build(kind)
    optimizer = optimizer_of(model)
    with manager(root) as m:
        restored = m.restore({"model": model, "optimizer": optimizer})
    assert restored is not None
    alike = layouts(optimizer)
    for seed in (3, 4):
        train(model, optimizer, seed)
    expected, found = torch.load(f"{root}.0.pt"), whole(model.state_dict())
    dist.destroy_process_group()
    return {
        "report": restored.report,
        "alike": len(alike) == 3 * len(list(model.parameters())) and all(alike),
        "same": sorted(expected) == sorted(found) and all(torch.equal(expected[k], found[k]) for k in expected),
        "close": all(torch.allclose(expected[k], found[k], rtol=1e-4, atol=1e-5) for k in expected),
    }


@case
def cold_part(root: str, kind: str) -> dict[str, Any]:
    """Not all of the optimizer's tensors are asked for: the others are not made up."""
    dist.init_process_group("gloo")
    model = build(kind)
    optimizer = optimizer_of(model)
    with manager(root) as m:
        m.restore(
            {"model": model, "optimizer": optimizer}, paths=["optimizer/state/*/exp_avg", "optimizer/state/*/step"]
        )
    states: dict[Any, dict[str, Any]] = dict(optimizer.state)
    names = sorted({name for values in states.values() for name in values})
    alike = layouts(optimizer)
    dist.destroy_process_group()
    return {"names": names, "alike": len(alike) > 0 and all(alike)}


@case
def fsdp1(root: str) -> dict[str, Any]:
    """What FSDP1's sharded state dicts hold (it runs on accelerators only): ShardedTensors, here of unlike pieces."""
    from torch.distributed._shard import sharded_tensor

    dist.init_process_group("gloo")
    state = {}
    for name, size in (("weight", 37), ("bias", 10)):
        at, n = (0, size - 3) if RANK == 0 else (size - 3, 3)
        local = torch.arange(at * 4, (at + n) * 4, dtype=torch.float32).reshape(n, 4)
        shard = sharded_tensor.Shard.from_tensor_and_offsets(local, [at, 0], RANK)
        state[name] = sharded_tensor.init_from_local_shards([shard], size, 4)
    classes = sorted({type(value).__name__ for value in state.values()})
    with manager(root) as m:
        m.save(1, {"model": state}, wait=True)
        kept = {name: [s.tensor.clone() for s in value.local_shards()] for name, value in state.items()}
        for value in state.values():
            for shard in value.local_shards():
                shard.tensor.zero_()
        m.restore({"model": state})
    same = all(
        torch.equal(a, b.tensor)
        for name, value in state.items()
        for a, b in zip(kept[name], value.local_shards(), strict=True)
    )
    dist.destroy_process_group()
    return {"classes": classes, "same": same}


@case
def several_shards(root: str) -> dict[str, Any]:
    """A ShardedTensor of which rank 0 has two shards."""
    from torch.distributed._shard import sharded_tensor

    dist.init_process_group("gloo")
    local = [
        sharded_tensor.Shard.from_tensor_and_offsets(torch.ones(2, 4), [at, 0], RANK)
        for at in ((0, 2) if RANK == 0 else (4,))
    ]
    state = {"model": {"w": sharded_tensor.init_from_local_shards(local, 6, 4)}}
    with manager(root) as m:
        dist.barrier()  # rank 0 fails by itself, and would wait only five seconds for one that opens the run later
        try:
            m.save(1, state, wait=True)
            error = ""
        except pawl.PawlError as caught:
            error = str(caught)
        steps = m.all_steps()
    dist.destroy_process_group()
    return {"error": error, "steps": steps}


@case
def pipeline(root: str) -> dict[str, Any]:
    """The ranks hold different layers."""
    layer = torch.full((4, 3), float(RANK))
    state = {f"layer{RANK}": pawl.Shard(layer, (4, 3), (0, 0), writer="here"), "step": 5}
    with manager(root) as m:
        m.save(1, state, wait=True)
        layer.zero_()
        m.restore(state)
    return {"same": bool((layer == RANK).all())}


# ---- reads that are shared

COMMON = {
    "big": np.arange(1500 * 1000, dtype=np.float32).reshape(1500, 1000),  # cut between the ranks
    "other": np.arange(700 * 1000, dtype=np.int64).reshape(700, 1000),
    "small": np.arange(17, dtype=np.float64),
    "none": np.zeros((0, 4), dtype=np.float32),
    "scalar": np.array(3.5),
}
SHARDED = np.arange(64 * 4096, dtype=np.int32).reshape(64, 4096)
TEXT = "long " * 40000


def gloo(seconds: float, fail_at: int = 0) -> Callable[..., Any]:
    """A broadcast over gloo, with a deadline for each; on rank 1 the call with this number raises instead."""
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=HANG_SECONDS))
    dist.barrier(group)  # how long the start takes does not count
    _set_pg_timeout(datetime.timedelta(seconds=seconds), group)
    calls = 0

    def broadcast(data: bytes | bytearray, root: int = 0) -> bytes | None:
        nonlocal calls
        if isinstance(data, bytearray):
            calls += 1
            if RANK == 1 and calls == fail_at:
                raise RuntimeError("the network is gone")
            dist.broadcast(torch.frombuffer(data, dtype=torch.uint8), src=root, group=group)
            return None
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(buffer, src=root, group=group)
        return buffer.numpy().tobytes()

    return broadcast


def shared_state(fill: bool, half: bool = False) -> dict[str, Any]:
    def own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy() if fill else np.full_like(array, 9)

    at = 64 // WORLD * RANK
    rows = SHARDED[at : at + 64 // WORLD]
    state: dict[str, Any] = {name: own(array) for name, array in COMMON.items()}
    if not fill:  # of another layout in memory
        state["other"] = np.full((1000, 700), 9, dtype=np.int64).T
    if half and RANK == WORLD - 1:  # this one wants the second half only
        state["big"] = pawl.Shard(own(COMMON["big"][750:]), COMMON["big"].shape, (750, 0))
    return state | {"sharded": pawl.Shard(own(rows), SHARDED.shape, (at, 0)), "text": TEXT if fill else ""}


def is_right(state: dict[str, Any], half: bool = False) -> bool:
    expected = shared_state(True, half)
    for name, value in expected.items():
        found = state[name]
        if isinstance(value, pawl.Shard):
            value, found = value.tensor, found.tensor
        if not (np.array_equal(found, value) if name != "text" else found == value):
            return False
    return True


@case
def share_save(root: str, steps: str) -> dict[str, Any]:
    with manager(root, packs=pawl.Packs(block_bytes=1 << 16, pack_bytes=1 << 21, reuse=False)) as m:
        for step in range(1, int(steps) + 1):
            state = shared_state(True)
            state["step"] = np.array(step)
            m.save(step, state, wait=True)
    return {}


@case
def share_restore(root: str, kind: str) -> dict[str, Any]:
    """All share what they read ("no": none does), one wants half of a tensor, or something is wrong."""
    broadcast = gloo(20, fail_at=4) if kind == "raises" else gloo(HANG_SECONDS)
    half, answer = kind == "half", dict[str, Any]()
    with manager(root, ranks=pawl.Ranks(broadcast=broadcast)) as m:
        state = shared_state(False, half)
        state["step"] = np.array(0)
        if kind == "other" and RANK == 1:
            state["small"] = np.zeros(18)
        shares = kind != "no" and not (kind == "some" and RANK == 1)
        try:
            restored = m.restore(state, share_reads=shares)
            assert restored is not None
            answer = {"step": int(state["step"]), "right": is_right(state, half), "fallbacks": restored.fallbacks}
        except pawl.PawlError as error:
            answer = {"error": str(error), "kind": type(error).__name__}
    return answer


# ---- what goes wrong


@case
def one_cannot(root: str) -> dict[str, Any]:
    """Rank 1 gives something that no state can hold; the save fails everywhere, the next one works."""
    errors = []
    with manager(root) as m:
        for step in (1, 2, 3):
            bad = step == 2 and RANK == 1
            try:
                m.save(step, {"x": np.ones(3), "y": ... if bad else 0}, wait=True)
            except pawl.PawlError as error:
                errors.append([step, str(error)])
        m.reload()
        return {"errors": errors, "steps": m.all_steps()}


@case
def wrong_metrics(root: str) -> dict[str, Any]:
    """Rank 1 gives metrics that cannot be read; these saves fail everywhere, the last one works."""
    errors = []
    wrong: list[Any] = [3.0, {1: 2.0}, {f"m{i}": 0.0 for i in range(1025)}, {"loss": 1.0}]
    with manager(root) as m:
        for step, metrics in enumerate(wrong):
            try:
                m.save(step, {"x": np.ones(3)}, metrics=metrics if RANK == 1 else {"loss": 1.0}, wait=True)
            except pawl.PawlError as error:
                errors.append([step, str(error)])
        m.reload()
        return {"errors": errors, "steps": m.all_steps()}


@case
def wrong_metrics_and_an_interval(root: str) -> dict[str, Any]:
    """Rank 1 gives wrong metrics for a save that is due; after that all ranks still save at the same steps."""
    due, errors = [], []
    with manager(root, save_interval="3ba") as m:
        for step in range(1, 8):
            try:
                with follow(root, str(step)) if step == 3 else contextlib.nullcontext():
                    ticket = m.save(step, {"x": np.ones(3)}, metrics=3.0 if RANK == 1 and step == 3 else None)
            except pawl.PawlError:
                errors.append(step)
                continue
            if ticket is not None:
                due.append(step)
                wait_until(ticket.done)
        m.wait_until_finished()
        m.reload()
        return {"due": due, "errors": errors, "steps": m.all_steps()}


@case
def hook_that_raises(root: str) -> dict[str, Any]:
    """A hook of rank 0 raises in the call of the second save, in which all ranks take part."""

    def refuse(event: pawl.Event) -> None:
        raise ZeroDivisionError(event.step)

    raised = []
    with manager(root, on_durable=refuse if RANK == 0 else None) as m:
        for step in (1, 2):
            try:
                with follow(root, str(step)) if step == 1 else contextlib.nullcontext():
                    ticket = m.save(step, {"x": np.ones(3)})
                wait_until(ticket.done)
            except ZeroDivisionError:
                raised.append(step)
        m._run.wait()  # calls no hook
        m.reload()
        steps = m.all_steps()
        try:
            m.poll()
        except ZeroDivisionError:
            raised.append(3)
        return {"raised": raised, "steps": steps}


@case
def signal_to_one(root: str) -> dict[str, Any]:
    """Rank 1 receives a signal; that makes a save due on no rank, and all still save at the same steps."""
    due = []
    limit = pawl.Timeouts(commit=HANG_SECONDS)
    with pawl.CheckpointManager(root, timeouts=limit, signals=True, save_interval="3ba") as m:
        for step in range(1, 7):
            if RANK == 1 and step == 2:
                signal.raise_signal(signal.SIGUSR1)
                wait_until(lambda: m.preempted)
            if m.should_save(step) and m.save(step, {"x": np.ones(3)}) is not None:
                due.append(step)
        m.wait_until_finished()
        m.reload()
        return {"due": due, "steps": m.all_steps(), "preempted": m.preempted}


def unlike(which: str, odd: bool) -> list[Any]:
    """Values that are not the same on all ranks. Only the last ones can be kept for each."""
    if which == "long":
        text = ("b" if odd else "a") * 5000
        return [text, text.encode(), text[odd:], {"is": text}, pawl.PerRank(text)]
    queues = [collections.deque([1, 2], maxlen=8 + odd), collections.deque([1, 2 + odd], maxlen=8)]
    counts = collections.Counter(a=1)
    bits = bytearray(5000)
    return [queues[0], counts if odd else dict(counts), bytes(bits) if odd else bits, {1} if odd else [1], queues[1]]


@case
def unlike_values(root: str, which: str) -> dict[str, Any]:
    errors = []
    with manager(root) as m:
        values = unlike(which, RANK == 1)
        for step, value in enumerate(values):
            try:
                m.save(step, {"x": np.ones(3), "value": value}, wait=True)
            except pawl.PawlError as error:
                errors.append([step, type(error).__name__, str(error)])
        last = values[-1].value if isinstance(values[-1], pawl.PerRank) else values[-1]
        restored = m.restore()
        same = restored is not None and restored.state["value"] == last
        return {"errors": errors, "steps": m.all_steps(), "same": same}


@case
def strict_values(root: str) -> dict[str, Any]:
    dist.init_process_group("gloo")
    with manager(root) as m:
        dist.barrier()  # no rank leaves before all are here
        try:
            m.restore(numpy_state(False))
        except pawl.MismatchError as error:
            return {"error": str(error)}
    return {"error": ""}


@case
def by_broadcast(root: str) -> dict[str, Any]:
    """No files to meet by, and an interval by the clock, which rank 0 decides."""
    dist.init_process_group("gloo")

    def broadcast(mine: bytes) -> bytes:
        box = [mine]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    due = []
    with manager(root, ranks=pawl.Ranks(broadcast=broadcast), save_interval="3600sec") as m:
        m.save(0, {"x": np.arange(4)}, force=True)
        for step in range(1, 4):
            due.append(m.should_save(step, {"total_wct": 4000.0 * step if RANK == 0 else 0.0}))
        m.wait_until_finished()
        joins = [name for name in os.listdir(os.path.join(root, ".pawl", "meet")) if name.startswith("join")]
    dist.destroy_process_group()
    return {"due": due, "joins": joins}


if __name__ == "__main__":
    answer = CASES[sys.argv[1]](*sys.argv[2:])
    with open(f"{os.environ['ANSWERS']}/{RANK}.json", "w") as file:
        json.dump(answer, file)
    # not by way of the interpreter's end: there a thread of torch that still frees a tensor aborts the process now and
    # then (known to PyTorch: "terminate called without an active exception")
    sys.stdout.flush()
    os._exit(0)
