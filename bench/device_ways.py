# SPDX-License-Identifier: Apache-2.0
"""The device, and the ways to save a state on it and to restore it."""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import measure
import peers
import torch
import torch.distributed as dist
import workloads

import pawl


class Device:
    """A GPU of torch. A processor has the same calls, so that the benchmark can be tried without a GPU."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.is_gpu = self.device.type == "cuda"
        if self.is_gpu:
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)

    def sync(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """A moment in the work of the current stream."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b)) / 1e3 if self.is_gpu else b - a

    def empty_cache(self) -> None:
        """What torch keeps for itself, pawl cannot use for staging on the device."""
        if self.is_gpu:
            torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        self.empty_cache()
        return torch.cuda.mem_get_info()[0] if self.is_gpu else 1 << 60

    def describe(self) -> str:
        return torch.cuda.get_device_name() if self.is_gpu else "none"


def join_group(device: Device) -> None:
    """A process group of one, for DCP and FSDP."""
    if dist.is_initialized():
        return
    handle, store = tempfile.mkstemp(prefix="bench-")
    os.close(handle)
    os.unlink(store)
    backend = "cpu:gloo,cuda:nccl" if device.is_gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)


class Way:
    """save() returns a function that waits until the bytes are durable. fence() must return before tensors change."""

    name = ""
    is_often = False  # also measured with a save before every step
    device_share = 0.0  # what it needs on the device, of the state's size
    restores = True

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        raise NotImplementedError

    def fence(self) -> None:
        pass

    def restore(self, path: pathlib.Path, state: workloads.State) -> None:
        raise NotImplementedError

    def place(self, path: pathlib.Path) -> pathlib.Path:
        """What save() has written."""
        return path

    def rates(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class TorchSave(Way):
    name = "torch.save"

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        torch.save(state, path)
        return lambda: measure.sync_path(path)

    def restore(self, path: pathlib.Path, state: workloads.State) -> None:
        workloads.copy_into(state, torch.load(path))


class Safetensors(Way):
    name = "safetensors"

    def __init__(self, device: Device) -> None:
        self.device = device

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        import safetensors.torch

        safetensors.torch.save_file(workloads.flat(state), path)
        return lambda: measure.sync_path(path)

    def restore(self, path: pathlib.Path, state: workloads.State) -> None:
        import safetensors.torch

        loaded = safetensors.torch.load_file(path, device=str(self.device.device))
        for name, tensor in workloads.flat(state).items():
            tensor.copy_(loaded[name])


class Dcp(Way):
    name = "DCP"

    def __init__(self, device: Device) -> None:
        join_group(device)

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=path)
        return lambda: measure.sync_path(path)

    def restore(self, path: pathlib.Path, state: workloads.State) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(state, checkpoint_id=path)


class DcpAsync(Dcp):
    name = "DCP async_save"
    restores = False
    stager: Any = None
    staged: Any = None

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        import torch.distributed.checkpoint as dcp

        answer: Any = dcp.async_save(state, checkpoint_id=path, async_stager=self.stager)
        self.staged = getattr(answer, "staging_completion", None)
        written = getattr(answer, "upload_completion", answer)

        def wait() -> None:
            written.result()
            measure.sync_path(path)

        return wait

    def fence(self) -> None:
        if self.staged:
            self.staged.result()


class DcpPinned(DcpAsync):
    """The kept stager with its own defaults: pinned shared memory, copied in the background."""

    name = "DCP async_save, pinned stager"

    def __init__(self, device: Device) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(device)
        self.stager = DefaultStager() if device.is_gpu else DefaultStager(StagingOptions(False, False, False, False))

    def close(self) -> None:
        self.stager.close()


class Pawl(Way):
    """One manager for all saves, in a folder of its own."""

    name = "pawl"

    def __init__(self, folder: pathlib.Path, **options: Any) -> None:
        self.root = folder / f"run-{self.name.replace(' ', '-')}"
        measure.remove(self.root)
        self.manager = pawl.CheckpointManager(self.root, num_to_keep=1, **options)
        self.step = 0
        self.ticket: Any = None

    def begin(self, state: workloads.State) -> Any:
        return self.manager.save(self.step, state)

    def save(self, path: pathlib.Path, state: workloads.State) -> Callable[[], None]:
        self.step += 1
        self.ticket = ticket = self.begin(state)
        return lambda: ticket.wait(peers.WAIT_SECONDS)

    def restore(self, path: pathlib.Path, state: workloads.State) -> None:
        self.manager.restore(state)

    def place(self, path: pathlib.Path) -> pathlib.Path:
        return self.root

    def rates(self) -> dict[str, float]:
        stats = self.ticket.stats
        return {"staged": stats["stage_seconds"], "registered": min(1.0, stats["registered_bytes"] / stats["nbytes"])}

    def close(self) -> None:
        self.manager.close()
        measure.remove(self.root)


class PawlLazy(Pawl):
    name = "pawl lazy"
    is_often = True
    restores = False

    def begin(self, state: workloads.State) -> Any:
        return self.manager.save(self.step, workloads.Optimizer(state), lazy=True)

    def fence(self) -> None:
        self.manager.before_step()


class PawlStaged(Pawl):
    """Copies within the device first."""

    name = "pawl staged"
    restores = False
    device_share = 1.1

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder, staging=pawl.Staging(device="auto"))


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def available(folder: pathlib.Path, device: Device) -> tuple[list[Way], dict[str, str]]:
    """The ways that work here, and why the others do not."""
    makers: list[tuple[str, Callable[[], Way]]] = [
        ("torch.save", TorchSave),
        ("safetensors", lambda: Safetensors(device)),
        ("DCP", lambda: Dcp(device)),
        ("DCP async_save", lambda: DcpAsync(device)),
        ("DCP async_save, pinned stager", lambda: DcpPinned(device)),
        ("pawl", lambda: Pawl(folder)),
        ("pawl lazy", lambda: PawlLazy(folder)),
        ("pawl staged", lambda: PawlStaged(folder)),
    ]
    ways: list[Way] = []
    missing: dict[str, str] = {}
    for name, make in makers:
        try:
            way = make()
            probe(way, device)
        except Exception as error:  # an old package may fail in any way
            missing[name] = reason(error)
        else:
            ways.append(way)
    return ways, missing


def probe(way: Way, device: Device) -> None:
    state = {"model": {"w": torch.arange(8.0, device=device.device)}}
    with tempfile.TemporaryDirectory() as folder:
        wait = way.save(pathlib.Path(folder) / "probe", state)
        way.fence()
        wait()
