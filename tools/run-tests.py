#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests and ends with a plain line "N passed, N failed".

`meson test` runs the tests in C: each case counts, and each figure of the thinned-out proof. pytest
runs those in Python. This adds up what both report, searches what pawl has left behind for the secrets
of the tests, and fails if a test was skipped that should not be. `make test` is --set core: tests that
need no server, other framework, launcher or root.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
MORE = "server or framework or launcher or root or long"
MARKS = {"core": f"not ({MORE})", "rest": MORE, "all": ""}
# Why a test may be skipped: what this build leaves out, and a version that differs.
SKIPS = ["this torch has no such dtype"]
SKIPS_WITHOUT_ROOT = ["root"]
# What pawl leaves behind wherever it works, and what the secrets of the tests have in them: words of tests/py/*.py.
ARTEFACT = re.compile(r"(^|/)\.pawl/|/(events\.jsonl|[^/]*(run|manifest|attempt|lease)[^/]*|latest|best|[^/]*\.log)$")
SECRET = re.compile(
    rb"S?K?CANARY-|(SK|TOKEN|CLIENT|GOOG)CANARY(SECRET)?\b|CANARY(TOKEN|CLIENT|REFRESH|CANARY)|Y2FuYXJ5IGtleSBv"
)
ARTEFACT_BYTES = 4 << 20


class Tally:
    """What all runners report together."""

    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failures: list[str] = []
        self.seconds: collections.Counter[str] = collections.Counter()

    def check(self, good: bool, name: str, why: str = "") -> None:
        if good:
            self.passed += 1
        else:
            self.failures.append(name)
            print(f"FAILED {name}\n{why}")

    def read_junit(self, report: pathlib.Path, what: str, status: int) -> None:
        """A runner that ends badly without a failed case has died."""
        before, seen = len(self.failures), 0
        for suite in xml.etree.ElementTree.parse(report).iter("testsuite") if report.exists() else ():
            if what == "C":
                self.seconds[suite.get("name", "")] += float(suite.get("time") or 0)
            for case in suite.iter("testcase"):
                group = case.get("classname", "").replace("tests.py.", "")
                name = f"{group}: {case.get('name')}"
                seen += 1
                self.seconds[group] += float(case.get("time") or 0)
                kinds = {child.tag: child for child in case}
                if kinds.keys() & {"failure", "error"}:
                    self.failures.append(name)
                elif "skipped" in kinds:
                    self.skip(name, kinds["skipped"].get("message") or kinds["skipped"].text or "", what)
                else:
                    self.passed += 1
        if (status != 0 and len(self.failures) == before) or not seen:
            self.failures.append(f"{what}: exit status {status} after {seen} cases")

    def read_programs(self, log: pathlib.Path) -> None:
        """Programs of meson that crashed, hung or said less than they announced, without a case that failed."""
        for line in log.read_text().splitlines() if log.exists() else ():
            ended = json.loads(line)
            if ended["result"] not in ("OK", "SKIP", "FAIL"):
                self.failures.append(f"{ended['name']}: {ended['result']}, status {ended['returncode']}")

    def skip(self, name: str, why: str, what: str) -> None:
        self.skipped += 1
        allowed = SKIPS + (SKIPS_WITHOUT_ROOT if os.geteuid() != 0 else [])
        # the programs in C skip what their build does not have, by the options that were given to it
        if what != "C" and not any(words in why for words in allowed):
            self.failures.append(f"{name} was skipped: {why}")


def run_c(build: pathlib.Path, jobs: int, chosen: list[str], env: dict[str, str], tally: Tally) -> None:
    meson = [str(pathlib.Path(sys.executable).parent / "meson"), "test", "-C", str(build), "--no-rebuild"]
    report, log = (build / "meson-logs" / f"testlog.{kind}" for kind in ("junit.xml", "json"))
    for path in (report, log):
        path.unlink(missing_ok=True)
    done = subprocess.run([*meson, "--print-errorlogs", f"--num-processes={jobs}", *chosen], env=env, check=False)
    tally.read_programs(log)
    tally.read_junit(report, "C", 0 if tally.failures else done.returncode)


def run_python(marks: str, word: str, jobs: int, env: dict[str, str], scratch: pathlib.Path, tally: Tally) -> None:
    report = scratch / "report.xml"
    # Complete files at a time, since servers and trained models are made once per file.
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--junitxml={report}",
        "--tb=short",
        "--color=no",
        "-p",
        "no:cacheprovider",
    ]
    command += [f"--numprocesses={jobs}", "--dist=loadfile", "--no-loadscope-reorder", "-m", marks, "-k", word]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    tally.read_junit(report, "pytest", done.returncode)


def search_secrets(folder: pathlib.Path) -> tuple[int, list[str]]:
    """How many files of pawl's own there are below a folder, and which of them have a secret in them."""
    seen, bad = 0, []
    files = (
        pathlib.Path(at) / name for at, _, names in os.walk(folder) for name in names
    )  # passes over what goes away
    for path in files:
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.suffix == ".py" or not ARTEFACT.search(path.as_posix()) or not path.is_file():
                continue
            with path.open("rb") as file:
                text = file.read(ARTEFACT_BYTES)
            seen += 1
            if found := SECRET.search(text):
                bad.append(f"{path}: {found[0].decode()}..")
    return seen, bad


def check_secrets(scratch: pathlib.Path, tally: Tally) -> None:
    """P18 over all that the tests have left, with the control that a secret there would be found."""
    seen, bad = search_secrets(scratch)
    tally.check(not bad and seen > 0, "secrets in what the tests have left", "\n".join([f"{seen} files", *bad]))
    control = scratch / "control"
    control.mkdir()
    (control / "events.jsonl").write_text('{"error":"SKCANARY"}\n')
    found = search_secrets(control)
    shutil.rmtree(control)
    tally.check(found == (1, [f"{control / 'events.jsonl'}: SKCANARY.."]), "control: a secret is found", str(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="folder that meson built")
    parser.add_argument("--set", choices=MARKS, default="all", help="which tests (default: all)")
    parser.add_argument("--only", choices=["unit", "proof", "py"], help="this kind only")
    # one more than processors, since many tests wait for timers and children
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="programs and files at a time")
    parser.add_argument("-k", dest="word", default="", help="Python tests whose names match this only")
    args = parser.parse_args()
    build = args.build.resolve()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="test-", dir=build, ignore_cleanup_errors=True) as folder:
        command = build / "cli" / "pawl"
        env = dict(os.environ, TMPDIR=folder, PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8", PAWL_BUILD=str(build))
        env["PAWL_BIN"] = str(command if command.exists() else pathlib.Path(sys.executable).parent / "pawl")
        if args.only != "py" and args.set != "rest":
            run_c(
                build,
                args.jobs,
                {"unit": ["--no-suite=proof"], "proof": ["--suite=proof"]}.get(args.only, []),
                env,
                tally,
            )
        if args.only in (None, "py"):
            run_python(MARKS[args.set], args.word, args.jobs, env, pathlib.Path(folder), tally)
            if not args.word:
                check_secrets(pathlib.Path(folder), tally)
    print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in tally.seconds.most_common(12)))
    for name in tally.failures:
        print(f"failed: {name}")
    print(
        f"{tally.passed} passed, {len(tally.failures)} failed" + (f", {tally.skipped} skipped" if tally.skipped else "")
    )
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
