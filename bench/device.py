# SPDX-License-Identifier: Apache-2.0
"""Saves and restores of a state on a GPU, side by side with torch.save, safetensors and DCP.

First it checks that checkpoints of a training run on the device are right, bit for bit. Then it measures: how long a
save blocks the host, how long the device has nothing to do, what the next 20 steps lose, how fast the bus is used, and
restores into the device. Needs torch with CUDA or ROCm. Writes runs/bench-device.json and a table of
docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import device_check
import device_table
import device_ways
import measure
import phases
import torch
import workloads
from device_ways import Device, Way

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES_GB = (2.0, 10.0, 40.0)
STEPS = 20
STEP_SECONDS = 0.1
COPY_BYTES = 1 << 30
HOST_COPIES = 5  # of the state in host memory: of three managers and of DCP's stager, and one of a running save
DISK_COPIES = 4  # the checkpoints of three managers, and one that is written


class Training:
    """Steps of a training run: matrices are multiplied, then every tensor of the state is changed in place."""

    def __init__(self, device: Device, state: workloads.State, width: int, seconds: float) -> None:
        self.device, self.tensors = device, list(workloads.tensors(state))
        self.matrix = torch.randn(width, width, device=device.device)
        self.count = 1
        self.forward()
        device.sync()
        self.count = max(1, round(seconds / self.seconds_of(self.forward)))

    def seconds_of(self, work: Callable[[], None]) -> float:
        begin = time.perf_counter()
        work()
        self.device.sync()
        return time.perf_counter() - begin

    def forward(self) -> None:
        for _ in range(self.count):
            torch.mm(self.matrix, self.matrix)

    def step(self) -> None:
        self.forward()
        torch._foreach_add_(self.tensors, 1e-3)


def without_save(training: Training) -> dict[str, float]:
    def work() -> None:
        for _ in range(STEPS):
            training.step()

    return {"steps": training.seconds_of(work)}


def with_saves(
    training: Training, way: Way, path: pathlib.Path, state: workloads.State, often: bool
) -> dict[str, float]:
    """20 steps after a save, or with a save before each of them (often)."""
    device = training.device
    blocked = 0.0
    done, marks = [], []
    device.sync()
    begin = time.perf_counter()
    for number in range(STEPS):
        saves = number == 0 or often
        if saves:
            call = time.perf_counter()
            marks.append(device.mark())
            done.append(way.save(path, state))
            marks.append(device.mark())
            blocked += time.perf_counter() - call
        training.forward()
        if saves:
            call = time.perf_counter()
            marks.append(device.mark())
            way.fence()
            marks.append(device.mark())
            blocked += time.perf_counter() - call
        torch._foreach_add_(training.tensors, 1e-3)
    device.sync()
    steps = time.perf_counter() - begin
    idle = sum(device.between(a, b) for a, b in zip(marks[::2], marks[1::2], strict=True))
    for wait in done:
        wait()
    return {"blocked": blocked, "idle": idle, "steps": steps, "durable": time.perf_counter() - begin} | way.rates()


def copy_rates(device: Device, nbytes: int) -> dict[str, float]:
    """Plain copies of a pinned buffer, and within the device: bytes per second."""
    near = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.is_gpu)
    far = [torch.ones(nbytes, dtype=torch.uint8, device=device.device) for _ in range(2)]
    figures = {}
    for name, to, of in (("to host", near, far[0]), ("to device", far[0], near), ("within", far[1], far[0])):
        device.sync()
        begin = time.perf_counter()
        for _ in range(4):
            to.copy_(of, non_blocking=True)
        device.sync()
        figures[name] = 4 * nbytes / (time.perf_counter() - begin)
    del far, to, of
    device.empty_cache()
    return figures


def digest(state: workloads.State) -> list[int]:
    return [int(t.view(torch.int32).sum(dtype=torch.int64)) for t in workloads.tensors(state)]


def restores(device: Device, way: Way, path: pathlib.Path, state: workloads.State, cold: bool) -> dict[str, float]:
    """Into the state itself, which is cleared before."""
    way.save(path, state)()
    expected = digest(state)
    for tensor in workloads.tensors(state):
        tensor.zero_()
    device.sync()
    (measure.drop_cache if cold else measure.fill_cache)(way.place(path))
    begin = time.perf_counter()
    way.restore(path, state)
    device.sync()
    seconds = time.perf_counter() - begin
    if digest(state) != expected:
        raise SystemExit(f"{way.name}: the state is another one after the restore")
    return {"seconds": seconds}


def measure_size(args: argparse.Namespace, device: Device, gigabytes: float, result: phases.Result) -> None:
    state = workloads.adamw_state(gigabytes / 2.5, device.device)
    ways, missing = device_ways.available(args.folder, device)
    result.missing |= missing
    group = f"{workloads.nbytes(state) / 1e9:.2g} GB"
    result.facts[group] = workloads.nbytes(state)
    training = Training(device, state, 256 if args.quick else 4096, 0.01 if args.quick else STEP_SECONDS)

    for way in [w for w in ways if w.device_share * workloads.nbytes(state) > device.free_bytes()]:
        result.missing[f"{way.name}, {group}"] = "no room on the device"
        way.close()
        ways.remove(way)

    def turn(way: Way, work: Callable[[pathlib.Path], dict[str, float]]) -> Callable[[], dict[str, float]]:
        def call() -> dict[str, float]:
            try:
                with measure.scratch(args.folder, "save") as path:
                    return work(path)
            except Exception as error:  # a peer may lack memory of the device, or shared memory
                if isinstance(way, device_ways.Pawl) and not isinstance(error, torch.OutOfMemoryError):
                    raise
                result.missing[f"{way.name}, {group}"] = device_ways.reason(error)
                return {}

        return call

    copies = min(COPY_BYTES, workloads.nbytes(state))
    turns = {"plain copies": lambda: copy_rates(device, copies), "no save": lambda: without_save(training)}
    turns |= {w.name: turn(w, lambda p, w=w: with_saves(training, w, p, state, False)) for w in ways}
    turns |= {
        f"{w.name}, every step": turn(w, lambda p, w=w: with_saves(training, w, p, state, True))
        for w in ways
        if w.is_often
    }
    phases.rounds(result, group, args.rounds, turns)
    for cold in (False, True):
        kind = f"{group}, restored {'from disk' if cold else 'from cache'}"
        turns = {"plain copies": lambda: copy_rates(device, copies)}
        turns |= {
            w.name: turn(w, lambda p, w=w, cold=cold: restores(device, w, p, state, cold)) for w in ways if w.restores
        }
        phases.rounds(result, kind, args.rounds, turns)
    for way in ways:
        way.close()


def fitting(args: argparse.Namespace, device: Device) -> list[float]:
    """The sizes that device, memory and disk have room for."""
    disk = os.statvfs(args.folder)
    with open("/proc/meminfo") as file:
        memory = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    room = min(device.free_bytes() / 1.15, memory / HOST_COPIES, disk.f_bavail * disk.f_frsize / DISK_COPIES) / 1e9
    sizes = args.gb or ([0.02] if args.quick else [size for size in SIZES_GB if size + 1 < room])
    left_out = [size for size in SIZES_GB if size not in sizes]
    if left_out and not args.quick and not args.gb:
        phases.say(f"no room for states of {', '.join(f'{size:g}' for size in left_out)} GB")
    return sizes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="of torch; with cpu only this program is tried")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs" / "bench", help="where files are written")
    parser.add_argument("--gb", type=float, action="append", help="size of the state (default: 2, 10 and 40, as fit)")
    parser.add_argument("--rounds", "-n", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--quick", action="store_true", help="20 MB, 1 round, short steps: does it run?")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "runs" / "bench-device.json", help="JSON file")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/explanation/benchmarks.md")
    args = parser.parse_args()
    args.rounds = 1 if args.quick else args.rounds
    return args


def main() -> int:
    args = arguments()
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        print(f"bench: torch {torch.__version__} finds no GPU; nothing was measured", file=sys.stderr)
        return 1
    device = Device(args.device)
    args.folder.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.resolve()
    device_check.check_all(args.folder, device)
    result = phases.Result()
    for gigabytes in fitting(args, device):
        measure_size(args, device, gigabytes, result)
    machine = measure.machine(args.folder) | {"device": device.describe(), "torch": torch.__version__}
    found = {"samples": result.samples, "facts": result.facts, "missing": result.missing, "machine": machine}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(found | {"rounds": args.rounds}, indent=1) + "\n")
    print(device_table.markdown(found, args.rounds))
    if device.is_gpu and not args.quick:
        device_table.write_page(found, args.rounds, args.page)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # no peer's threads are waited for
