# SPDX-License-Identifier: Apache-2.0
"""The phase of files of other programs: .pt files written and read as torch does it, converted as a script does
it with torch and safetensors, and compressed as the zstd command does it."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import limits
import measure
import torch
import workloads

import pawl

# Both in one process, as a user's script would have it; the kernel reports its peak of memory.
SCRIPT = """
import json, os, resource, sys, time
begin = time.perf_counter()
import torch, safetensors.torch
state = torch.load(sys.argv[1], weights_only=True)
flat = {f"{part}/{name}": tensor for part, group in state.items() for name, tensor in group.items()}
safetensors.torch.save_file(flat, sys.argv[2])
with open(sys.argv[2], "rb") as file:
    os.fsync(file.fileno())
"""
COMPRESSED_BYTES = 400e6  # at scale 1


def pt_save(path: pathlib.Path, state: workloads.State, saver: pawl.FileSaver | None) -> dict[str, float]:
    """Blocked until the call returns; durable when the file is."""
    workloads.change(state)
    call = measure.Call()
    if saver is None:
        torch.save(state, path)
        call.mark("blocked")
        measure.sync_path(path)
    else:
        ticket = saver.save(path, state)
        call.mark("blocked")
        ticket.wait()
    call.end("durable")
    return call.figures


def save_turn(setting: Any, state: workloads.State, saver: pawl.FileSaver | None) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        with measure.scratch(setting.folder, "save.pt") as path:
            return pt_save(path, state, saver)

    return turn


def load_turn(path: pathlib.Path, load: Callable[[], Any]) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        measure.drop_cache(path)
        share = measure.cached_share(path)
        call = measure.Call()
        load()
        call.end("seconds")
        return call.figures | {"cached": share}

    return turn


# A program inherits the largest size of the process that it was started from, so a small one starts it.
STARTER = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(json.dumps({"seconds": time.perf_counter() - begin, "bytes": usage.ru_maxrss * 1024.0}))
sys.exit(status != 0)
"""


def restore_turns(path: pathlib.Path, state: workloads.State) -> dict[str, Callable[[], dict[str, float]]]:
    """Into the same live tensors; what comes back is compared once."""
    live = workloads.empty_like(state)

    def by_pawl() -> None:
        pawl.load(path, state=live)

    def by_torch() -> None:
        workloads.copy_into(live, torch.load(path, weights_only=True))

    by_pawl()
    if not workloads.equal(state, live):
        raise RuntimeError("pawl restored something else")
    return {"pawl": load_turn(path, by_pawl), "torch.load": load_turn(path, by_torch)}


def process(words: list[str]) -> dict[str, float]:
    """Seconds and the largest resident memory of a process of its own."""
    command = [sys.executable, "-S", "-E", "-c", STARTER, *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def convert_turn(setting: Any, source: pathlib.Path, words: list[str]) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        measure.drop_cache(source)
        with measure.scratch(setting.folder, "converted.safetensors") as path:
            return process([*words, str(source), str(path)])

    return turn


def bf16_state(scale: float) -> workloads.State:
    generator = torch.Generator().manual_seed(7)
    n = max(1, round(COMPRESSED_BYTES * scale / 2 / 4e6))
    return {"model": {f"w{i}": (torch.randn(4_000_000, generator=generator) * 0.02).bfloat16() for i in range(n)}}


def phase_files(setting: Any, result: Any, rounds: Callable[..., None]) -> None:
    state = workloads.adamw_state(setting.scale)
    size = workloads.nbytes(state)
    result.facts |= {"bytes": size}
    with pawl.FileSaver() as saver:
        turns = {"pawl": save_turn(setting, state, saver), "torch.save": save_turn(setting, state, None)}
        turns["memcpy"] = limits.Memcpy(size).run
        turns["disk new"] = lambda: limits.disk(setting.folder / "limit-new.bin", size, "new")
        rounds(result, "pt save", setting.rounds, turns)
    path = setting.folder / "state.pt"
    torch.save(state, path)
    turns = restore_turns(path, state)
    limit = setting.folder / "limit-read.bin"
    limits.disk(limit, size, "new")
    turns["disk read"] = lambda: limits.disk(limit, size, "read")
    rounds(result, "pt restore cold", setting.rounds, turns)
    command = os.environ.get("PAWL_BIN", "pawl")
    turns = {"pawl": convert_turn(setting, path, [command, "convert"])}
    turns["torch and safetensors"] = convert_turn(setting, path, [sys.executable, "-c", SCRIPT])
    rounds(result, "pt convert", setting.rounds, turns)
    path.unlink()


def zstd_turn(setting: Any, plain: pathlib.Path, state: workloads.State, saver: Any) -> Callable[[], dict[str, float]]:
    def turn() -> dict[str, float]:
        with measure.scratch(setting.folder, "state.pt.zst") as path:
            measure.fill_cache(plain)
            begin = time.perf_counter()
            if saver is None:
                words = ["zstd", "-q", "-3", "--single-thread", str(plain), "-o", str(path)]
                subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
                measure.sync_path(path)
                return {"durable": time.perf_counter() - begin, "bytes": float(path.stat().st_size)}
            ticket = saver.save(path, state)
            blocked = time.perf_counter() - begin
            ticket.wait()
            figures = {"blocked": blocked, "durable": time.perf_counter() - begin}
            return figures | {"bytes": float(path.stat().st_size)}

    return turn


def phase_compression(setting: Any, result: Any, rounds: Callable[..., None]) -> None:
    if not shutil.which("zstd"):
        result.missing["zstd command"] = "not installed"
        return
    state = bf16_state(setting.scale)
    plain = setting.folder / "plain.pt"
    torch.save(state, plain)
    with pawl.FileSaver(threads=2) as saver:
        turns = {"pawl, 2 threads": zstd_turn(setting, plain, state, saver)}
        turns["zstd command"] = zstd_turn(setting, plain, state, None)
        rounds(result, "zst save", setting.rounds, turns)
    result.facts |= {"compressed": workloads.nbytes(state)}


def planes_turn(setting: Any, state: workloads.State, saver: pawl.FileSaver) -> Callable[[], dict[str, float]]:
    """What one thread of the coder costs: processor time beyond that of the same file as it is."""

    def save(name: str) -> tuple[float, int]:
        with measure.scratch(setting.folder, name) as path:
            call = measure.Call()
            saver.save(path, state).wait()
            call.end("durable")
            return call.figures["cpu"], path.stat().st_size

    def turn() -> dict[str, float]:
        plain_seconds, plain_bytes = save("weights.safetensors")
        seconds, size = save("weights.safetensors.planes")
        return {"per_gb": (seconds - plain_seconds) / plain_bytes * 1e9, "share": size / plain_bytes}

    return turn


def phase_planes(setting: Any, result: Any, rounds: Callable[..., None]) -> None:
    state = bf16_state(setting.scale)
    with pawl.FileSaver(threads=1) as saver:
        turn = planes_turn(setting, state, saver)
        turn()  # the first one touches new memory
        rounds(result, "planes", setting.rounds, {"pawl": turn})


def phase(setting: Any, result: Any, rounds: Callable[..., None]) -> None:
    phase_files(setting, result, rounds)
    phase_compression(setting, result, rounds)
    phase_planes(setting, result, rounds)
