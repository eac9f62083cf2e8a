# SPDX-License-Identifier: Apache-2.0
"""Measures pawl against torch.save, safetensors, DCP, Orbax and torchsnapshot, and against what disk and memory can do.

Writes bench/results.json and the table of docs/explanation/benchmarks.md. Needs about 16 GB of memory and 25 GB of disk
at scale 1; on a smaller machine the large state is made smaller (--scale), which the report says.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

import measure
import phases
import table

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
STATE_BYTES = 2.5e9
PACKAGES = ("torch", "safetensors", "numpy", "orbax-checkpoint", "torchsnapshot")


def fitting_scale(folder: pathlib.Path) -> float:
    """1 where memory and disk hold everything, else less."""
    free = os.statvfs(folder)
    memory = measure_available()
    return min(1.0, round(memory / (6.5 * STATE_BYTES), 2), round(free.f_bavail * free.f_frsize / 25e9, 2))


def measure_available() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs" / "bench", help="where files are written")
    parser.add_argument("--scale", type=float, help="size of the large state, 1 = 2.5 GB (default: what fits)")
    parser.add_argument("--rounds", "-n", type=int, default=9, help="rounds that count (default 9)")
    parser.add_argument("--ls", type=int, default=10_000, help="checkpoints for pawl ls (default 10,000)")
    parser.add_argument("--quick", action="store_true", help="scale 0.05, 3 rounds, 500 checkpoints: does it run?")
    parser.add_argument("--only", action="append", choices=list(phases.PHASES), help="this phase only; may be repeated")
    parser.add_argument("--output", default=str(HERE / "results.json"), help="JSON file (default bench/results.json)")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/explanation/benchmarks.md")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.scale, args.rounds, args.ls = args.scale or 0.05, 3, 500
    return args


def run_phase(args: argparse.Namespace) -> None:
    """Inside the process of one phase."""
    setting = phases.Setting(args.folder, args.scale, args.rounds, args.ls)
    result = phases.Result()
    status = 0
    try:
        if args.phase.startswith("memory:"):
            phases.memory_case(setting, result, args.phase.split(":", 1)[1])
        else:
            phases.PHASES[args.phase](setting, result)
    except Exception:
        traceback.print_exc()  # what was measured before is kept
        status = 1
    text = json.dumps({"samples": result.samples, "missing": result.missing, "facts": result.facts})
    if args.output == "-":
        print(text)
    else:
        pathlib.Path(args.output).write_text(text)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # no peer's threads are waited for


def merge(args: argparse.Namespace, results: dict[str, Any], phase: str) -> bool:
    folder = args.folder / phase
    measure.remove(folder)
    folder.mkdir(parents=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, str(HERE / "bench.py"), "--phase", phase, "--folder", str(folder)]
        command += ["--scale", str(args.scale), "-n", str(args.rounds), "--ls", str(args.ls), "--output", file.name]
        status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        measure.remove(folder)
        if status != 0:
            print(f"bench: the phase {phase} failed with status {status}", file=sys.stderr)
        part = json.loads(pathlib.Path(file.name).read_text() or "null")
    if part:
        results["samples"] |= part["samples"]
        results["runs"] |= dict.fromkeys(part["samples"], results["run"])
        results["missing"][phase] = part["missing"]
        results["facts"] |= {f"{phase} {key}": value for key, value in part["facts"].items()}
    return status == 0


def main() -> int:
    args = arguments()
    # The command that is measured is that of this environment, not one that PATH happens to have.
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    args.folder.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.resolve()
    args.scale = args.scale or fitting_scale(args.folder)
    if args.phase:
        run_phase(args)
    output = pathlib.Path(args.output)
    begin = time.monotonic()
    results: dict[str, Any] = {"samples": {}, "missing": {}, "facts": {}, "runs": {}}
    if args.only and output.exists():
        results = json.loads(output.read_text())
    results["run"] = ", ".join(f"{key} {value}" for key, value in measure.machine(args.folder).items())
    results["versions"] = versions()
    results |= {"scale": args.scale, "rounds": args.rounds}
    failed = []
    for phase in args.only or phases.PHASES:
        if not merge(args, results, phase):
            failed.append(phase)
        output.write_text(json.dumps(results, indent=1) + "\n")
    print(table.text_table(results))
    if not args.quick:
        table.write_page(results, args.page)
    print(f"measured in {time.monotonic() - begin:.0f} s; samples are in {output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
