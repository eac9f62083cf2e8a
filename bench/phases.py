# SPDX-License-Identifier: Apache-2.0
"""The measurements, each run in a process of its own. Within a phase the peers take turns (A B C A B C ...), so that
a machine that gets slower or faster is so for all of them; the first round only warms up and is thrown away."""

from __future__ import annotations

import dataclasses
import gc
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import first
import frozen
import limits
import measure
import peers
import torch
import workloads

Series = dict[str, dict[str, list[float]]]
SMALL_ROUNDS = 50


@dataclasses.dataclass
class Setting:
    folder: pathlib.Path
    scale: float
    rounds: int
    ls: int


@dataclasses.dataclass
class Result:
    samples: dict[str, Series] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, group: str, name: str, figures: dict[str, float]) -> None:
        for key, value in figures.items():
            self.samples.setdefault(group, {}).setdefault(name, {}).setdefault(key, []).append(value)


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def pawl_peers(setting: Setting, prefix: str) -> list[peers.Peer]:
    return [
        peers.Pawl(setting.folder, f"pawl {prefix}".strip()),
        peers.Pawl(setting.folder, f"pawl {prefix} recycle".replace("  ", " "), packs=peers.pawl.Packs(recycle=2)),
    ]


def rounds(result: Result, group: str, n: int, turns: dict[str, Callable[[], dict[str, float]]]) -> None:
    """Every turn once per round, beginning with another one each time."""
    names = list(turns)
    for number in range(n + 1):
        begin = time.monotonic()
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            figures = turns[name]()
            if number:
                result.add(group, name, figures)
        gc.collect()
        say(f"{group}: round {number} of {n}, {time.monotonic() - begin:.1f} s{'' if number else ' (warm-up)'}")


def save_turn(peer: peers.Peer, setting: Setting, state: workloads.State) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        workloads.change(state)
        with measure.scratch(setting.folder, "save") as path:
            return peer.save(path, state)

    return turn


def phase_saves(setting: Setting, result: Result) -> None:
    """W1: blocked and durable time of every peer, next to the limits of disk and memory."""
    state = workloads.adamw_state(setting.scale)
    size = workloads.nbytes(state)
    kinds = [peers.TorchSave, peers.Safetensors, peers.Buffered, peers.Dcp, peers.DcpAsync, peers.DcpCached]
    found, result.missing = peers.available([*kinds, peers.Orbax, peers.Torchsnapshot])
    found += [peers.Pawl(setting.folder), peers.PawlLazy(setting.folder, "pawl lazy")]
    found += [peers.Pawl(setting.folder, "pawl direct", staging=peers.pawl.Staging(mode="direct"))]
    found += [peers.Pawl(setting.folder, "pawl ring", staging=peers.pawl.Staging(mode="ring"))]
    found += [peers.Pawl(setting.folder, "pawl recycle", packs=peers.pawl.Packs(recycle=2))]
    memcpy = limits.Memcpy(size)
    turns = {peer.name: save_turn(peer, setting, state) for peer in found}
    turns["memcpy"] = memcpy.run
    for what in ("new", "overwrite"):
        turns[f"disk {what}"] = disk_turn(setting, size, what)
    result.facts |= {"bytes": size, "tensors": sum(1 for _ in workloads.tensors(state))}
    rounds(result, "W1 save", setting.rounds, turns)
    for peer in found:
        peer.close()


def disk_turn(setting: Setting, size: int, what: str) -> Callable[[], dict[str, float]]:
    path = setting.folder / f"limit-{what}.bin"
    if what != "new":
        limits.disk(path, size, "new")

    def turn() -> dict[str, float]:
        return limits.disk(path, size, what)

    return turn


def restore_turn(
    peer: peers.Peer, path: pathlib.Path, live: workloads.State, warm: bool, result: Result
) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        (measure.fill_cache if warm else measure.drop_cache)(path)
        share = measure.cached_share(path)
        gc.collect()
        call = measure.Call()
        peer.restore(path, live)
        call.end("seconds")
        return call.figures | {"cached": share}

    return turn


def phase_restores(setting: Setting, result: Result) -> None:
    """W1: from a file that is not in the page cache, and from one that is, into live tensors."""
    state = workloads.adamw_state(setting.scale)
    size = workloads.nbytes(state)
    kinds: list[type[peers.Peer]] = [peers.TorchSave, peers.TorchMmap, peers.Safetensors, peers.Dcp]
    found, result.missing = peers.available([*kinds, peers.Orbax, peers.Torchsnapshot])
    paths: dict[str, pathlib.Path] = {}
    for peer in [*found, peers.Pawl(setting.folder, "pawl restored")]:
        paths[peer.name] = setting.folder / f"restore-{len(paths)}"
        peer.save(paths[peer.name], state)
        if isinstance(peer, peers.Pawl):
            paths[peer.name] = peer.root / "checkpoints"
            found.append(peer)
    live = workloads.empty_like(state)
    for peer in found:
        peer.restore(paths[peer.name], live)
        if not workloads.equal(state, live):
            raise RuntimeError(f"{peer.name} restored something else")
    del state
    gc.collect()
    for group, warm in (("W1 restore cold", False), ("W1 restore warm", True)):
        turns = {peer.name: restore_turn(peer, paths[peer.name], live, warm, result) for peer in found}
        if not warm:
            turns["disk read"] = disk_turn(setting, size, "read")
        rounds(result, group, setting.rounds, turns)
    result.facts |= {"bytes": size}


def small_phase(
    setting: Setting, result: Result, state: workloads.State, label: str, n: int, more: list[type[peers.Peer]]
) -> None:
    kinds = [peers.TorchRename, peers.Safetensors, peers.Dcp, peers.DcpAsync, *more]
    found, result.missing = peers.available(kinds)
    found += pawl_peers(setting, "")
    rounds(result, f"{label} save", n, {peer.name: save_turn(peer, setting, state) for peer in found})
    live = workloads.empty_like(state)
    turns = {}
    for number, peer in enumerate(found):
        if isinstance(peer, peers.DcpAsync):  # reads what DCP reads, in the same way
            continue
        path = setting.folder / f"restore-{number}"
        peer.save(path, state)
        place = peer.root / "checkpoints" if isinstance(peer, peers.Pawl) else path
        peer.restore(path, live)
        if not workloads.equal(state, live):
            raise RuntimeError(f"{peer.name} restored something else")
        turns[peer.name] = restore_turn(peer, place, live, True, result)
    # A pawl peer finds its own newest checkpoint; the path only says what to put into the cache.
    rounds(result, f"{label} restore warm", n, turns)


def phase_small(setting: Setting, result: Result) -> None:
    """W3: 10 MB in 640 tensors."""
    n = min(SMALL_ROUNDS, 5 * setting.rounds)
    small_phase(setting, result, workloads.small_state(), "W3", n, [peers.Orbax, peers.Torchsnapshot])


def phase_many(setting: Setting, result: Result) -> None:
    """W5: 20,000 tensors of 1 KB. Peers that make a file per tensor need minutes for one save and are left out."""
    small_phase(setting, result, workloads.many_state(), "W5", setting.rounds, [])


MEMORY_CASES: dict[str, tuple[str, Callable[[Setting], peers.Peer]]] = {
    "pawl snapshot": ("save", lambda s: peers.Pawl(s.folder, "pawl memory")),
    "pawl ring": ("save", lambda s: peers.Pawl(s.folder, "pawl memory", staging=peers.pawl.Staging(mode="ring"))),
    "pawl direct": ("save", lambda s: peers.Pawl(s.folder, "pawl memory", staging=peers.pawl.Staging(mode="direct"))),
    "torch.save": ("save", lambda s: peers.TorchSave()),
    "DCP async_save": ("save", lambda s: peers.DcpAsync()),
    "pawl restore": ("restore", lambda s: peers.Pawl(s.folder, "pawl memory")),
    "torch.load": ("restore", lambda s: peers.TorchSave()),
    "safetensors load_file": ("restore", lambda s: peers.Safetensors()),
    "DCP load": ("restore", lambda s: peers.Dcp()),
}


def phase_memory(setting: Setting, result: Result) -> None:
    """W1: by how much a process grows above its state, each case in a fresh process."""
    for name in MEMORY_CASES:
        command = [sys.executable, str(pathlib.Path(__file__).parent / "bench.py"), "--phase", f"memory:{name}"]
        command += ["--folder", str(setting.folder), "--scale", str(setting.scale), "--output", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            result.missing[name] = done.stderr.strip().split("\n")[-1][:200]
            continue
        figures = json.loads(done.stdout)["facts"]
        result.add("W1 memory", name, {"share": figures["grown"] / figures["bytes"], "bytes": figures["grown"]})
        say(f"W1 memory: {name}: {figures['grown'] / 1e6:.0f} MB above {figures['bytes'] / 1e6:.0f} MB")


def memory_case(setting: Setting, result: Result, name: str) -> None:
    kind, make = MEMORY_CASES[name]
    state = workloads.adamw_state(setting.scale)
    peer = make(setting)
    peers.probe(peers.TorchSave())  # what a package allocates once is not counted
    with measure.scratch(setting.folder, "memory") as path:
        if kind == "save":

            def call() -> None:
                for _ in range(2):
                    workloads.change(state)
                    measure.remove(path)
                    peer.save(path, state)
        else:
            peer.save(path, state)
            peer.close()
            live = state
            if isinstance(peer, peers.Pawl):
                measure.drop_cache(peer.root)
                peer.manager = peers.pawl.CheckpointManager(peer.root, read_only=True)
            else:
                measure.drop_cache(path)
            gc.collect()

            def call() -> None:
                peer.restore(path, live)

        result.facts |= {"grown": measure.peak_memory(call), "bytes": workloads.nbytes(state)}
    peer.close()


def phase_ls(setting: Setting, result: Result) -> None:
    """A run with many checkpoints: pawl ls, and opening the newest."""
    state = {"model": {"w": torch.zeros(4)}}
    root = setting.folder / "run-ls"
    manager = peers.pawl.CheckpointManager(root)
    step = 0
    for count in (setting.ls // 10, setting.ls):
        while step < count:
            step += 1
            state["model"]["w"].add_(1)
            manager.save(step, state)
            if step % 1000 == 0:
                say(f"ls: {step} checkpoints made")
        manager.wait_until_finished()
        for _ in range(setting.rounds + 1):
            begin = time.perf_counter()
            done = subprocess.run(["pawl", "ls", str(root)], capture_output=True, text=True)
            seconds = time.perf_counter() - begin
            if done.returncode != 0 or done.stdout.count("\n") < count:
                raise RuntimeError(f"pawl ls failed: {done.stderr}")
            begin = time.perf_counter()
            with peers.pawl.CheckpointManager(root, read_only=True) as reader:
                newest = reader.latest_step()
            result.add(f"ls {count}", "pawl", {"ls": seconds, "open": time.perf_counter() - begin})
            if newest != count:
                raise RuntimeError(f"the newest step is {newest}, not {count}")
    manager.close()
    result.facts["ls"] = setting.ls


def phase_ranks(setting: Setting, result: Result) -> None:
    """W1 split over 2 and 4 processes, against DCP; restored from the page cache, as it was cut and cut otherwise."""
    for world in (2, 4):
        output = setting.folder / f"ranks-{world}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command += [
            str(pathlib.Path(__file__).with_name("ranks.py")),
            str(setting.folder / f"{world}"),
            str(setting.scale),
        ]
        subprocess.run([*command, str(setting.rounds), str(output)], check=True, stdin=subprocess.DEVNULL)
        result.samples |= json.loads(output.read_text())
        measure.remove(setting.folder / f"{world}")


def phase_stores(setting: Setting, result: Result) -> None:
    """W1 and W3 into a bucket and out of it, against boto3, rclone, s5cmd and the server's own rate."""
    import stores

    stores.phase(setting, result, rounds)


def phase_train(setting: Setting, result: Result) -> None:
    """Reports of a model of 500 MB by two workers, and a killed worker, against Ray Train."""
    import trains

    trains.phase(setting, result, say)


def phase_formats(setting: Setting, result: Result) -> None:
    """W1 as a .pt file saved, restored and converted, bf16 weights compressed, against torch and the zstd command;
    saves of the real Composer by its own saver and by pawl's."""
    import composers
    import formats

    formats.phase(setting, result, rounds)
    composers.phase(setting, result, say)


def phase_tune(setting: Setting, result: Result) -> None:
    """Starts and reports of trials against Ray Tune, a clone of a checkpoint against a copy, many trials in memory."""
    import tunes

    tunes.phase(setting, result, say)


def phase_frozen(setting: Setting, result: Result) -> None:
    """What is written of a state of which only some changes."""
    import stores

    group = "frozen, in a bucket"

    def into_bucket(server: Any) -> None:
        stores.use(server)
        frozen.run_in_bucket(f"{server.url}/frozen", lambda name, figures: result.add(group, name, figures))

    frozen.run(setting.folder, lambda name, figures: result.add("frozen", name, figures))
    stores.with_server(result, into_bucket)


def phase_first(setting: Setting, result: Result) -> None:
    """The first save of a process against its later ones."""
    first.run(
        setting.folder, setting.rounds, setting.scale, lambda name, figures: result.add("first save", name, figures)
    )


PHASES: dict[str, Callable[[Setting, Result], None]] = {
    "saves": phase_saves,
    "restores": phase_restores,
    "small": phase_small,
    "many": phase_many,
    "frozen": phase_frozen,
    "first": phase_first,
    "memory": phase_memory,
    "ls": phase_ls,
    "ranks": phase_ranks,
    "stores": phase_stores,
    "train": phase_train,
    "formats": phase_formats,
    "tune": phase_tune,
}
