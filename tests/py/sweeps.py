# SPDX-License-Identifier: Apache-2.0
"""What the tests of `pawl tune` share: documents, trials as shell scripts and C programs, searches in processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from waiting import HANG_SECONDS

from cli import PAWL, environment

# A trial that counts: its state is one number, its loss is base - lr * number. A file named gate in its folder's parent lets it
# continue beyond that many iterations.
COUNT = r"""#!/bin/sh
set -e
lr=$1 last=$2 n=0
echo "$$ ${PAWL_TUNE_CHECKPOINT:-new}" >>"$PAWL_TUNE_FOLDER/starts"
[ -z "$PAWL_TUNE_CHECKPOINT" ] || n=$(cat "$PAWL_TUNE_CHECKPOINT/n")
while [ "$n" -lt "$last" ]; do
	n=$((n + 1))
	mkdir -p "$PAWL_TUNE_FOLDER/.out"
	echo "$n" >"$PAWL_TUNE_FOLDER/.out/n"
	"$PAWL" report loss=$((1000 - lr * n)) --checkpoint "$PAWL_TUNE_FOLDER/.out" >/dev/null
done
"""


class Sweep:
    """A document in a folder of its own, and what became of it."""

    def __init__(self, folder: pathlib.Path, script: str, **document: Any) -> None:
        self.where = folder
        self.script = folder / "trial.sh"
        self.script.write_text(script)
        self.script.chmod(0o755)
        self.file = folder / "sweep.json"
        self.document: dict[str, Any] = {
            "name": "s",
            "local_dir": str(folder / "out"),
            "run": [str(self.script), *([] if document.get("space") == {} else ["{lr}", "6"])],
            "metric": "loss",
            "mode": "min",
            "space": {"lr": {"$grid": [1, 2, 3]}},
            "grace_s": 600,
        }
        self.folder = folder / "out" / "s"
        self.change(**document)

    def change(self, **document: Any) -> None:
        self.document |= document
        self.file.write_text(json.dumps(self.document))

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        command = [PAWL, "tune", str(self.file), "--cpus", "2", *map(str, args)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PAWL=PAWL, **env),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *args: object, status: int = 0, **env: str) -> str:
        """What it said to standard error."""
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == status, f"exit status {process.returncode}, expected {status}\n{out}\n{err}"
        return err

    @contextlib.contextmanager
    def running(self, *args: object, **env: str) -> Iterator[subprocess.Popen[str]]:
        process = self.start(*args, **env)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=HANG_SECONDS)

    def trials(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            [PAWL, "tune", "ls", str(self.folder), "--json"],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)["trials"]
        return rows

    def results(self, trial: dict[str, Any]) -> list[dict[str, Any]]:
        text = (self.folder / trial["name"] / "result.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def starts(self, trial: dict[str, Any]) -> list[str]:
        """Of each start, the checkpoint that it began with, or new."""
        lines = (self.folder / trial["name"] / "starts").read_text().splitlines()
        return [line.split(" ", 1)[1].rsplit("/", 1)[-1] for line in lines]

    def count_lines(self, name: str) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob(f"*/{name}"))


def is_alive(pid: int) -> bool:
    """And no zombie that was not reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def compile_c(folder: pathlib.Path, text: str) -> pathlib.Path:
    source, program = folder / "trial.c", folder / "trial"
    source.write_text(text)
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-D_GNU_SOURCE", "-o", str(program), str(source)], check=True, timeout=HANG_SECONDS)
    return program
