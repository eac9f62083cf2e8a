# SPDX-License-Identifier: Apache-2.0
"""The demo: trains two real models on real data, each once without interruption and once killed (SIGKILL) in the middle
of a save and resumed, and compares what both end with, bit for bit.

The trainings are ordinary programs: lm.py and digits.py. Everything stays in runs/demo for a look afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

import pawl

HERE = pathlib.Path(__file__).resolve().parent
DEMOS = {
    "lm": ("a transformer language model on English text", 5),
    "digits": ("a classifier of scikit-learn's handwritten digits", 9),
}


def start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / script), *arguments])


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        sys.exit(f"the training ended with exit status {process.returncode}")


def unfinished(run: pathlib.Path) -> list[pathlib.Path]:
    """Folders of saves that have begun to write and are not committed."""
    try:
        with os.scandir(run / "checkpoints") as entries:
            folders = [entry.path for entry in entries if entry.name.endswith(".partial")]
        return [pathlib.Path(folder) for folder in folders if os.listdir(folder)]
    except FileNotFoundError:
        return []


def kill_while_saving(script: str, run: pathlib.Path, nth: int) -> bool:
    """Runs the training and kills it once the nth checkpoint, or a later one, is half written; False if none was."""
    process = start(script, str(run))
    while process.poll() is None:
        time.sleep(0.0005)
        for folder in unfinished(run):
            if int(folder.name.split(".")[1].removeprefix("checkpoint_")) >= nth:
                process.send_signal(signal.SIGKILL)
                process.wait()
                break
    left = unfinished(run)
    if process.returncode != -signal.SIGKILL:
        finish(process)
        return False
    if left:
        written = sum(path.stat().st_blocks * 512 for path in left[0].iterdir())
        print(f"killed by SIGKILL while saving: {written / 1e6:.1f} MB lie in {left[0].name}", flush=True)
    return bool(left)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two restored states are not the same bits."""
    if type(a) is not type(b):
        return [f"{path}: {type(a).__name__} and {type(b).__name__}"]
    if isinstance(a, dict):
        if list(a) != list(b):
            return [f"{path}: keys differ"]
        return [line for key in a for line in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{path}: lengths differ"]
        return [line for i, (x, y) in enumerate(zip(a, b, strict=True)) for line in differences(x, y, f"{path}/{i}")]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b)) else [path]
    return [] if repr(a) == repr(b) else [f"{path}: {a!r} and {b!r}"]


def final_state(run: pathlib.Path) -> Any:
    with pawl.CheckpointManager(run, read_only=True) as manager:
        return manager.restore().state


def count_tensors(state: Any) -> tuple[int, int]:
    """Number of tensors and their bytes."""
    if isinstance(state, torch.Tensor):
        return 1, state.nbytes
    children = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    counts = [count_tensors(child) for child in children]
    return sum(n for n, _ in counts), sum(size for _, size in counts)


def print_timings(rows: list[dict[str, float]]) -> None:
    medians = {key: statistics.median(row[key] for row in rows) * 1e3 for key in rows[0]}
    print(f"--- the training waits per save, median of {len(rows)} on the same state in the same run")
    for label, key in (("pawl", "pawl"), ("torch.save", "torch"), ("torch.save, fsync", "torch_durable")):
        print(f"  {label:18} {medians[key]:8.1f} ms   {medians[key] / medians['pawl']:6.1f} times pawl's")


def run_demo(name: str, folder: pathlib.Path) -> bool:
    title, nth = DEMOS[name]
    straight, killed, report = folder / name / "straight", folder / name / "killed", folder / name / "timings.json"
    (folder / name).mkdir(parents=True)
    print(f"\n=== {name}: {title}\n--- without interruption", flush=True)
    finish(start(f"{name}.py", str(straight), "--report", str(report)))

    print("--- killed in the middle of a save, and resumed", flush=True)
    for attempt in range(5):
        if kill_while_saving(f"{name}.py", killed, nth):
            break
        print(f"the save was faster than the kill; once more ({attempt + 1})", flush=True)
        shutil.rmtree(killed)
    else:
        print("no save could be hit")
        return False
    finish(start(f"{name}.py", str(killed)))

    print("--- the two ends compared", flush=True)
    a, b = final_state(straight), final_state(killed)
    wrong = {part: differences(a[part], b[part], part) for part in a}
    same_parts = list(a) == list(b)
    tensors, size = count_tensors(a)
    for part, lines in wrong.items():
        print(f"  {part:10} {'equal bit for bit' if not lines else 'DIFFERS: ' + '; '.join(lines[:3])}")
    equal = same_parts and not any(wrong.values())
    print(f"  {tensors} tensors, {size / 1e6:.1f} MB: {'IDENTICAL' if equal else 'NOT IDENTICAL'}")

    print_timings(json.loads(report.read_text())[1:])  # the first save sets its memory up
    print("--- checkpoints kept by the killed run (pawl ls)", flush=True)
    subprocess.run(["pawl", "ls", str(killed)], check=True)
    print(f"    they lie in {killed / 'checkpoints'}", flush=True)
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    parser.add_argument("--only", choices=list(DEMOS))
    args = parser.parse_args()
    folder = args.folder.resolve()
    if folder.exists():
        shutil.rmtree(folder)
    begin = time.monotonic()
    names = [args.only] if args.only else list(DEMOS)
    equal = {name: run_demo(name, folder) for name in names}
    print(f"\n=== after {time.monotonic() - begin:.0f} s")
    for name, same in equal.items():
        print(f"  {name:8} killed and resumed = never killed: {'yes, bit for bit' if same else 'NO'}")
    command = pathlib.Path(sys.executable).with_name("pawl")  # of the environment that this runs in
    command = command if command.exists() else pathlib.Path("pawl")
    killed = folder / names[0] / "killed"
    print(f"look further: {command} show {killed};  {command} verify {killed}")
    return 0 if all(equal.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
