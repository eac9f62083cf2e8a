# SPDX-License-Identifier: Apache-2.0
"""The ways to save and restore that are compared. Each peer saves a state into a path, and restores it into live
tensors. Times: "blocked" until the training may continue, "durable" until power may fail."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import measure
import torch
import workloads

import pawl

# Long enough that a save is over when the next one begins, short enough for patience.
WAIT_SECONDS = 600


class Peer:
    name = ""

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        raise NotImplementedError

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Gives back what the peer keeps between saves."""


class TorchSave(Peer):
    name = "torch.save"

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        call = measure.Call()
        torch.save(state, path)
        call.mark("blocked")
        measure.sync_path(path)
        call.end("durable")
        return call.figures

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        workloads.copy_into(live, torch.load(path))


class TorchRename(TorchSave):
    """The careful way by hand: a temporary file, fsync, rename, fsync of the folder."""

    name = "torch.save+fsync+rename"

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        call = measure.Call()
        torch.save(state, f"{path}.tmp")
        descriptor = os.open(f"{path}.tmp", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(f"{path}.tmp", path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        call.mark("blocked")
        call.end("durable")
        return call.figures


class TorchMmap(TorchSave):
    name = "torch.load(mmap=True)"

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        workloads.copy_into(live, torch.load(path, mmap=True))


class Safetensors(Peer):
    name = "safetensors"

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        import safetensors.torch

        tensors = workloads.flat(state)
        call = measure.Call()
        safetensors.torch.save_file(tensors, path)
        call.mark("blocked")
        measure.sync_path(path)
        call.end("durable")
        return call.figures

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        import safetensors.torch

        loaded = safetensors.torch.load_file(path)
        for name, tensor in workloads.flat(live).items():
            tensor.copy_(loaded[name])


class Buffered(Peer):
    """Plain writes of the tensors' bytes through the page cache, and fsync: the least that every peer must do."""

    name = "buffered write+fsync"

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        views = [memoryview(t.view(torch.uint8).flatten().numpy()) for t in workloads.tensors(state)]
        call = measure.Call()
        with open(path, "wb", buffering=0) as file:
            for view in views:
                done = 0
                while done < len(view):
                    done += file.write(view[done : done + (8 << 20)])
            call.mark("blocked")
            os.fsync(file.fileno())
        call.end("durable")
        return call.figures


class Dcp(Peer):
    name = "DCP"

    def __init__(self) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            handle, self.store = tempfile.mkstemp(prefix="bench-")
            os.close(handle)
            os.unlink(self.store)
            dist.init_process_group("gloo", init_method=f"file://{self.store}", rank=0, world_size=1)

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        import torch.distributed.checkpoint as dcp

        call = measure.Call()
        dcp.save(state, checkpoint_id=path)
        call.mark("blocked")
        measure.sync_path(path)
        call.end("durable")
        return call.figures

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(live, checkpoint_id=path)


class DcpAsync(Dcp):
    name = "DCP async_save"

    def stager(self, state: workloads.State) -> Any:
        return None

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        import torch.distributed.checkpoint as dcp

        stager = self.stager(state)
        call = measure.Call()
        future: Any = dcp.async_save(state, checkpoint_id=path, async_stager=stager)
        call.mark("blocked")
        future.result()
        measure.sync_path(path)
        call.end("durable")
        return call.figures


class DcpCached(DcpAsync):
    """With a kept staging buffer. Its own option pins memory and needs CUDA, so the buffer is made here."""

    name = "DCP async_save, cached stager"

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    def stager(self, state: workloads.State) -> Any:
        if self.kept is None:
            from torch.distributed._state_dict_utils import _create_cpu_state_dict
            from torch.distributed.checkpoint.staging import BlockingAsyncStager

            self.kept = BlockingAsyncStager(cache_staged_state_dict=True)
            self.kept.state_dict_cache = _create_cpu_state_dict(state, pin_memory=False)
            self.kept.stage(state)
        return self.kept

    def close(self) -> None:
        self.kept = None


class Torchsnapshot(Peer):
    name = "torchsnapshot"

    def __init__(self) -> None:
        import torchsnapshot

        self.module = torchsnapshot

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        app = {"state": self.module.StateDict(**state)}
        call = measure.Call()
        pending = self.module.Snapshot.async_take(str(path), app)
        call.mark("blocked")
        pending.wait()
        measure.sync_path(path)
        call.end("durable")
        return call.figures

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        self.module.Snapshot(str(path)).restore({"state": self.module.StateDict(**live)})


class Orbax(Peer):
    """NumPy views of the tensors; default options, asynchronous."""

    name = "Orbax"

    def __init__(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import orbax.checkpoint

        self.module = orbax.checkpoint
        self.checkpointer = self.module.AsyncCheckpointer(self.module.PyTreeCheckpointHandler())

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        arrays = {part: {name: t.numpy() for name, t in group.items()} for part, group in state.items()}
        call = measure.Call()
        self.checkpointer.save(path, args=self.module.args.PyTreeSave(arrays))
        call.mark("blocked")
        self.checkpointer.wait_until_finished()
        measure.sync_path(path)
        call.end("durable")
        return call.figures

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        loaded = self.module.PyTreeCheckpointer().restore(path)
        tree = {part: {n: torch.from_numpy(a.copy()) for n, a in group.items()} for part, group in loaded.items()}
        workloads.copy_into(live, tree)

    def close(self) -> None:
        self.checkpointer.close()


class Pawl(Peer):
    """One manager for all saves, as in a training run; the folder is its own, not the path."""

    name = "pawl"

    def __init__(self, folder: pathlib.Path, name: str = "pawl", **options: Any) -> None:
        self.name = name
        self.root = folder / f"run-{name.replace(' ', '-')}"
        measure.remove(self.root)
        self.manager = pawl.CheckpointManager(self.root, **options)
        self.step = 0

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        self.step += 1
        call = measure.Call()
        ticket = self.manager.save(self.step, state)
        call.mark("blocked")
        ticket.wait(WAIT_SECONDS)
        call.end("durable")
        self.forget()
        return call.figures | {"copy_faults": float(ticket.stats["minor_faults"])}

    def forget(self) -> None:
        """Deletes the save before this one; as with the other peers, that is not measured."""
        if self.step > 1:
            self.manager.delete(self.step - 1)

    def restore(self, path: pathlib.Path, live: workloads.State) -> None:
        self.manager.restore(live)

    def close(self) -> None:
        self.manager.close()


class PawlLazy(Pawl):
    """save(lazy=True), then a step of half a second that reads the tensors, then before_step()."""

    STEP_SECONDS = 0.5

    def save(self, path: pathlib.Path, state: workloads.State) -> dict[str, float]:
        self.step += 1
        a = torch.ones(512, 512)
        call = measure.Call()
        ticket = self.manager.save(self.step, workloads.Optimizer(state), lazy=True)
        call.mark("blocked")
        step = measure.Call()
        while step.figures.get("step", 0.0) < self.STEP_SECONDS:
            a @ a
            step.mark("step")
        fence = measure.Call()
        self.manager.before_step()
        fence.mark("fence")
        blocked = call.figures["blocked"] + fence.figures["fence"]
        ticket.wait(WAIT_SECONDS)
        call.end("durable")
        self.forget()
        return call.figures | {"blocked": blocked}


def available(kinds: list[type[Peer]]) -> tuple[list[Peer], dict[str, str]]:
    """Peers that work here, and why the others do not."""
    peers: list[Peer] = []
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            probe(kind())
            peers.append(kind())
        except Exception as error:  # an old package may fail in any way
            missing[kind.name] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return peers, missing


def probe(peer: Peer) -> None:
    """One small save and restore, so that a peer which does not work here is known before the run."""
    state = {"model": {"w": torch.arange(8.0)}}
    live = workloads.empty_like(state)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "probe"
        peer.save(path, state)
        if type(peer).restore is not Peer.restore:
            peer.restore(path, live)
            if not workloads.equal(state, live):
                raise RuntimeError("it restored something else")
    peer.close()
