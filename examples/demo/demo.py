# SPDX-License-Identifier: Apache-2.0
"""The demo: trains a language model, kills the training in the middle of a save, resumes it, and compares the result
with that of a training run that was never killed. Then it damages a checkpoint, exports one, and measures how long
saves hold a training run. The training is an ordinary program, lm.py. Everything stays in runs/demo."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import safetensors.torch

import pawl

HERE = pathlib.Path(__file__).resolve().parent
KILLED_SAVE = 5  # the save that is interrupted


def title(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}== {text}{plain}", flush=True)


def tool(*words: str | pathlib.Path, lines: int = 12) -> int:
    """Runs a command of pawl's, as in a shell, and shows it and the first lines of its output."""
    shown = [os.path.relpath(word) if isinstance(word, pathlib.Path) else word for word in words]
    print(f"$ pawl {' '.join(shown)}", flush=True)
    done = subprocess.run(["pawl", *shown], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    output = done.stdout.splitlines()
    width = min(110, shutil.get_terminal_size().columns)
    print("\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in output[:lines]), flush=True)
    if len(output) > lines:
        print(f"and {len(output) - lines} more lines", flush=True)
    return done.returncode


def train(run: pathlib.Path, steps: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "lm.py"), str(run), "--steps", str(steps)])


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        sys.exit(f"the training ended with exit status {process.returncode}")


def unfinished(run: pathlib.Path) -> list[tuple[str, int]]:
    """Saves that are not committed: their names, and how many bytes they have written."""
    found = []
    for path in (run / "checkpoints").glob(".*.partial"):
        with contextlib.suppress(FileNotFoundError):  # committed meanwhile
            written = sum(file.stat().st_blocks * 512 for file in path.iterdir())
            found.append((path.name.split(".")[1], written))
    return found


def kill_while_saving(run: pathlib.Path, steps: int) -> bool:
    """Starts a training run and kills it (SIGKILL) when a checkpoint is partly written; False if none was."""
    process = train(run, steps)
    begun = f"checkpoint_{KILLED_SAVE:06}"
    while process.poll() is None:
        time.sleep(0.0005)
        if any(name >= begun and written for name, written in unfinished(run)):
            process.kill()
            process.wait()
    left = unfinished(run)
    if process.returncode != -signal.SIGKILL or not left:
        return False
    name, written = left[0]
    print(f"killed: {written / 1e6:.1f} MB of {name} were on disk in a folder that is not a checkpoint yet", flush=True)
    return True


def resume(straight: pathlib.Path, killed: pathlib.Path, steps: int) -> bool:
    title("A training that nothing interrupts")
    finish(train(straight, steps))
    title("The same training, killed in the middle of a save")
    while not kill_while_saving(killed, steps):
        print("the save was faster than the kill; once more", flush=True)
        shutil.rmtree(killed)
    title("Started again")
    finish(train(killed, steps))
    title("Are both results equal, bit for bit?")
    equal = tool("diff", straight, killed) == 0
    print("yes: model, optimizer, schedule, losses and random generators" if equal else "NO", flush=True)
    return equal


def damage(run: pathlib.Path) -> bool:
    title("One bit of the newest checkpoint is flipped")
    with pawl.CheckpointManager(run, read_only=True) as manager:
        before, newest = manager.checkpoints()[-2:]
    file = max(pathlib.Path(newest.path).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    found = tool("verify", run) != 0
    with pawl.CheckpointManager(run, read_only=True) as manager:
        logging.getLogger("pawl").setLevel(logging.ERROR)  # its warning says what verify has said
        restored: pawl.Restored[object] | None = manager.restore()
    assert restored is not None
    print(f"restore takes step {restored.step} instead of {newest.step}", flush=True)
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return found and restored.step == before.step


def export(run: pathlib.Path, folder: pathlib.Path) -> bool:
    title("What changed between the last two checkpoints?")
    with pawl.CheckpointManager(run, read_only=True) as manager:
        steps = manager.all_steps()[-2:]
    tool("diff", f"{os.path.relpath(run)}@{steps[0]}", f"@{steps[1]}", lines=7)
    title("Exported, and opened by safetensors")
    file = folder / "model.safetensors"
    tool("export", run, file, "--model")
    weights = safetensors.torch.load_file(file)
    print(f"safetensors.torch.load_file: {len(weights)} tensors, {sum(w.numel() for w in weights.values()):,} numbers")
    return len(weights) > 0


def chart(folder: pathlib.Path, megabytes: int) -> dict[str, float]:
    title(f"How long does a save of {megabytes} MB hold the training?  (measured now, median of 5)")
    command = [sys.executable, str(HERE / "waits.py"), str(folder / "waits"), str(megabytes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    waits: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    for name, seconds in waits.items():
        bar = "█" * max(1, round(40 * seconds / max(waits.values())))
        print(f"{name:>16} {bar} {seconds * 1e3:,.0f} ms", flush=True)
    return waits


def main() -> int:
    parser = argparse.ArgumentParser(description="trains, kills, resumes and compares")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state whose saves are timed")
    args = parser.parse_args()
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    good = resume(folder / "straight", folder / "killed", args.steps)
    good = damage(folder / "killed") and good
    good = export(folder / "killed", folder) and good
    waits = chart(folder, args.megabytes)
    title("Killed in the middle of a save, resumed, equal in every bit" if good else "NOT AS IT SHOULD BE")
    ours, theirs = (f"{waits[name] * 1e3:,.0f} ms" for name in ("pawl", "torch.save"))
    print(f"A save held the training for {ours}, torch.save for {theirs}.")
    print(f"{time.monotonic() - begin:.0f} s. Look further: pawl ls {os.path.relpath(folder / 'killed')}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
