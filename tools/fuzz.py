#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every fuzz target for a while, from its committed corpus; what it finds new is kept in the build folder. A
crash, a leak, an input that takes longer than a second or needs more than 1 GiB is a failure; the input is kept and
named."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS, MEMORY_MB = 1, 1024
# Without this, undefined behaviour is only printed.
ENVIRONMENT = os.environ | {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}


def fuzz(program: pathlib.Path, kept: pathlib.Path, seconds: int) -> bool:
    """True if nothing was found."""
    name = program.name
    folder = kept / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(program), f"-max_total_time={seconds}", f"-timeout={TIMEOUT_SECONDS}", f"-rss_limit_mb={MEMORY_MB}"]
    command += [f"-artifact_prefix={kept}/{name}-", "-print_final_stats=1", "-max_len=65536"]
    words = ROOT / "tests" / "fuzz" / f"{name}.dict"
    if words.exists():
        command.append(f"-dict={words}")
    command.append(str(folder))
    corpus = ROOT / "tests" / "fuzz" / "corpus" / name
    if corpus.exists():
        command.append(str(corpus))
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, env=ENVIRONMENT
    )
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    edges = re.findall(r"cov: (\d+)", done.stderr)
    result = "nothing found" if done.returncode == 0 else "FAILED"
    n, covered = int(runs[1]) if runs else 0, edges[-1] if edges else 0
    print(f"{name:20} {n:>10,} runs  {covered:>6} edges  {result}", flush=True)
    if done.returncode != 0:
        print("\n".join(done.stderr.splitlines()[-40:]))
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--only", help="targets with this in their name")
    args = parser.parse_args()
    build = args.build.resolve()
    names = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("fuzz_*.c"))
    names = [name for name in names if not args.only or args.only in name]
    kept = build / "corpus"
    clean = [fuzz(build / "tests" / "fuzz" / name, kept, args.seconds) for name in names]
    if not clean:
        print("no fuzz target")
        return 1
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
