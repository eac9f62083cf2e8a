#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the whole test suite and ends with a plain line "N passed, N failed".

Four kinds, in this order: the lint scripts (tools/lint/*.py, ruff, mypy; each counts as one test), the unit tests in C
(tests/unit; each cmocka case counts), a thinned-out run of the proof (tests/proof; each figure and each negative
control counts), and pytest (tests/py). Everything is built before, by make. A program that
crashes, hangs or runs fewer cases than it announced is a failure. Failures are shown in full at the end.

Python tests drive real servers, clusters and frameworks, several at a time, and on a busy machine one of those can be
later than it ever is otherwise. Up to MOST_AGAIN that failed therefore run once more, alone; one that passes then is
counted as passed, but named, with what it said the first time. More than that are no accident. Tests in C get one run.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "py"
PROGRAM_SECONDS = 600
PYTEST_SECONDS = 3900
MOST_AGAIN = 5
PROOF_EVERY = 25  # make proof takes every point
# What pawl leaves behind wherever it works, and what the secrets of the tests have in them: words of tests/py/*.py.
ARTEFACT = re.compile(r"(^|/)\.pawl/|/(events\.jsonl|[^/]*(run|manifest|attempt|lease)[^/]*|latest|best|[^/]*\.log)$")
SECRET = re.compile(
    rb"S?K?CANARY-|(SK|TOKEN|CLIENT|GOOG)CANARY(SECRET)?\b|CANARY(TOKEN|CLIENT|REFRESH|CANARY)|Y2FuYXJ5IGtleSBv"
)
ARTEFACT_BYTES = 4 << 20
KINDS = ("lint", "unit", "proof", "py")
# Files of few tests that take long begin first, so that none of them is left alone at the end.
LONG_FIRST = (
    "test_ray.py",
    "test_loggers.py",
    "test_huggingface.py",
    "test_lightning.py",
    "test_ray_engine.py",
    "test_ranks.py",
    "test_train_launched.py",
    "test_bucket_writers.py",
    "test_train_failures.py",
    "test_s3.py",
    "test_model.py",
    "test_direct.py",
)


@dataclasses.dataclass
class Outcome:
    """What one program, script or pytest run came to."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    again: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # passed, but only when they ran alone
    files: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # seconds of each file

    def fail(self, name: str, text: str) -> None:
        self.failed += 1
        self.failures.append((name, text))


class Progress:
    """One line that is rewritten on a terminal; elsewhere one line per finished kind."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.shown = ""

    def show(self, text: str) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            text = text[:width]
            sys.stdout.write("\r" + text.ljust(len(self.shown)))
            sys.stdout.flush()
            self.shown = text

    def line(self, text: str) -> None:
        if self.live and self.shown:
            sys.stdout.write("\r" + " " * len(self.shown) + "\r")
            self.shown = ""
        print(text, flush=True)


def run_program(command: list[str], env: dict[str, str], seconds: float) -> tuple[int | None, str, str]:
    """Status (None after a time-out), stdout, stderr; the whole process group ends with the program."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err


def describe(status: int | None, seconds: float) -> str:
    if status is None:
        return f"still running after {seconds:.0f} s, killed"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def read_tap(out: str) -> tuple[int | None, list[tuple[bool, str, str]]]:
    """Number of cases announced, and (passed, name, text) of each one that ended."""
    plan, cases, text = None, [], []
    for line in out.splitlines():
        if match := re.match(r"1\.\.(\d+)", line):
            plan = (plan or 0) + int(match[1])
        elif match := re.match(r"(not )?ok \d+ - (.*)", line):
            cases.append([match[1] is None, match[2].strip(), "\n".join(text)])
            text = []
        elif cases and not cases[-1][0] and line.startswith("#"):
            cases[-1][2] += "\n" + line[1:].strip()  # cmocka tells why after the "not ok"
        else:
            text.append(line)
    return plan, [(bool(ok), name, why) for ok, name, why in cases]


def unit_programs(build: pathlib.Path) -> list[str]:
    """The unit tests that this build has; tools/lint/sources.py checks that meson knows them all."""
    targets = json.loads((build / "meson-info" / "intro-targets.json").read_text())
    return sorted(target["name"] for target in targets if target["name"].startswith("test_"))


def run_unit(name: str, build: pathlib.Path, env: dict[str, str]) -> Outcome:
    outcome = Outcome(name)
    program = build / "tests" / name
    if not program.exists():
        outcome.fail(name, f"{program} was not built: is it in tests/meson.build?")
        return outcome
    begin = time.monotonic()
    status, out, err = run_program([str(program)], env | {"CMOCKA_MESSAGE_OUTPUT": "TAP"}, PROGRAM_SECONDS)
    outcome.seconds = time.monotonic() - begin
    plan, cases = read_tap(out)
    for ok, case, text in cases:
        if ok:
            outcome.passed += 1
        else:
            outcome.fail(f"{name}: {case}", f"{text}\n{err}")
    if plan is None or not cases:
        outcome.fail(name, f"ran no case ({describe(status, PROGRAM_SECONDS)})\n{out}\n{err}")
    elif len(cases) < plan or (status != 0 and not outcome.failed):
        missing = f"{plan - len(cases)} of {plan} cases did not end, after {cases[-1][1]}"
        outcome.fail(name, f"{missing} ({describe(status, PROGRAM_SECONDS)})\n{out}\n{err}")
    return outcome


def run_proof(name: str, build: pathlib.Path, env: dict[str, str]) -> Outcome:
    outcome = Outcome(name)
    command = [str(build / "tests" / "proof"), "--every", str(PROOF_EVERY)]
    begin = time.monotonic()
    status, out, err = run_program(command, env, PROGRAM_SECONDS)
    outcome.seconds = time.monotonic() - begin
    text: list[str] = []
    for line in out.splitlines():
        text.append(line)
        # "figure  cases  required  bad  seconds", "  control: what  caught ..." or "figure  not run: why"
        if match := re.match(
            r"\s*(.*?)\s+(?:(\d+)\s+(?:-|all|\d+)\s+(\d+)\s+[\d.]+$|(caught|NOT CAUGHT|not run)\b)", line
        ):
            if match[4] == "not run":
                outcome.skipped += 1
            elif match[4] == "caught" or (match[3] == "0" and match[2] != "0"):
                outcome.passed += 1
            else:
                outcome.fail(f"proof: {match[1]}", "\n".join([*text, err]))
            text = []
    if not outcome.passed or (status != 0 and not outcome.failed):
        outcome.fail(name, f"{describe(status, PROGRAM_SECONDS)}\n{out}\n{err}")
    return outcome


def run_script(name: str, command: list[str], env: dict[str, str]) -> Outcome:
    outcome = Outcome(name)
    begin = time.monotonic()
    status, out, err = run_program(command, env, PROGRAM_SECONDS)
    outcome.seconds = time.monotonic() - begin
    if status == 0:
        outcome.passed = 1
    else:
        outcome.fail(name, f"{describe(status, PROGRAM_SECONDS)}\n{out}\n{err}")
    return outcome


def pytest_command(report: pathlib.Path, *extra: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "--tb=short", f"--junitxml={report}"]
    return [*command, "-o", "addopts=", "-p", "no:cacheprovider", *extra]


def run_pytest(env: dict[str, str], progress: Progress, jobs: int, word: str) -> Outcome:
    outcome = Outcome("pytest")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        files = sorted(TESTS.glob("test_*.py"), key=lambda path: (path.name not in LONG_FIRST, path.name))
        # Whole files at a time, since servers and trained models are made once per file. One more than there are
        # processors, because many tests wait for servers, timers and children.
        command = pytest_command(report, "-n", str(jobs + 1), "--dist", "loadfile", "--no-loadscope-reorder")
        command += [*(["-k", word] if word else []), *(str(path.relative_to(ROOT)) for path in files)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        tail: list[str] = []
        done = failed = 0
        assert process.stdout is not None
        deadline = threading.Timer(PYTEST_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        deadline.start()
        for line in process.stdout:
            tail = [*tail[-60:], line.rstrip()]
            if match := re.match(r"\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+)", line):
                done += 1
                failed += match[1] in ("FAILED", "ERROR")
                progress.show(f"python  {done} done, {failed} failed  {match[2].removeprefix('tests/py/')}")
        status = process.wait()
        deadline.cancel()
        read_junit(report, outcome)
    if not outcome.passed and not outcome.failed:
        outcome.passed = done - failed  # it died before it could write its report
        outcome.fail("pytest", f"{describe(status, PYTEST_SECONDS)} after {done} tests\n" + "\n".join(tail))
    elif status != 0 and not outcome.failed:
        outcome.fail("pytest", f"{describe(status, PYTEST_SECONDS)}\n" + "\n".join(tail))
    elif status == 1:
        run_again(outcome, env, TESTS)
    outcome.seconds = time.monotonic() - begin
    return outcome


def run_again(outcome: Outcome, env: dict[str, str], tests: pathlib.Path) -> None:
    """Gives the few Python tests that failed beside others one more run, alone; see above."""
    if outcome.failed > MOST_AGAIN:
        return
    first, outcome.failures, outcome.failed = outcome.failures, [], 0
    for name, text in first:
        file, _, test = name.partition(".")  # pytest's name for it, but for a class: test_x.test_y[value]
        alone = Outcome(name)
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.xml"
            status, *_ = run_program(pytest_command(report, f"{tests / file}.py::{test}"), env, PROGRAM_SECONDS)
            read_junit(report, alone)
        if status == 0 and alone.passed:  # a test that is skipped now has passed nothing
            outcome.passed += 1
            outcome.again.append((name, text))
        else:
            second = "".join(again for _, again in alone.failures) or describe(status, PROGRAM_SECONDS)
            outcome.fail(name, f"{text}\n-------- and when it ran again, alone:\n{second}")


def search_secrets(folder: pathlib.Path) -> tuple[int, list[str]]:
    """How many files of pawl's own there are below a folder, and which of them have a secret in them."""
    seen, bad = 0, []
    files = (
        pathlib.Path(at) / name for at, _, names in os.walk(folder) for name in names
    )  # passes over what goes away
    for path in files:
        with contextlib.suppress(OSError):
            if path.is_symlink() or not ARTEFACT.search(path.as_posix()) or not path.is_file():
                continue
            with path.open("rb") as file:
                text = file.read(ARTEFACT_BYTES)
            seen += 1
            if found := SECRET.search(text):
                bad.append(f"{path}: {found[0].decode()}..")
    return seen, bad


def run_search(scratch: str) -> Outcome:
    """P18 over all that the tests have left, with the control that a secret there would be found."""
    outcome = Outcome("secrets in what the tests have left")
    seen, bad = search_secrets(pathlib.Path(scratch))
    if bad:
        outcome.fail(outcome.name, "\n".join(bad))
    else:
        outcome.passed += 1
    control = pathlib.Path(scratch) / "control"
    control.mkdir()
    (control / "events.jsonl").write_text('{"error":"SKCANARY"}\n')
    if search_secrets(control) == (1, [f"{control / 'events.jsonl'}: SKCANARY.."]) and seen:
        outcome.passed += 1
    else:
        outcome.fail(outcome.name, f"the control was not found, or nothing was there to search ({seen} files)")
    return outcome


def read_junit(report: pathlib.Path, outcome: Outcome) -> None:
    if not report.exists():
        return
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace("tests.py.", "")
        name = f"{file}.{case.get('name', '')}"
        outcome.files[file] += float(case.get("time", 0))
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            outcome.fail(name, "\n".join((child.text or child.get("message") or "") for child in bad))
        elif any(child.tag == "skipped" for child in case):
            outcome.skipped += 1
        else:
            outcome.passed += 1


def lint_commands(build: pathlib.Path) -> list[tuple[str, list[str]]]:
    scripts = sorted((ROOT / "tools" / "lint").glob("*.py"))
    scripts = [path for path in scripts if path.stem != "common"]
    commands = [(f"lint {path.stem}", [sys.executable, str(path), "--build", str(build)]) for path in scripts]
    beside = pathlib.Path(sys.executable).parent
    commands.append(("lint ruff", [str(beside / "ruff"), "check", "--quiet", "--no-cache", "."]))
    commands.append(("lint mypy", [str(beside / "mypy"), "--cache-dir=/dev/null", "python/pawl"]))
    return commands


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="folder that meson built")
    parser.add_argument("--only", action="append", choices=KINDS, help="run this kind only; may be repeated")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="programs, scripts and files of Python tests at a time"
    )
    parser.add_argument("-k", dest="match", default="", help="only names that contain this")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    kinds = args.only or KINDS
    build = args.build.resolve()
    progress = Progress()
    outcomes: list[Outcome] = []

    scratch = tempfile.mkdtemp(prefix="test-", dir=build if build.is_dir() else None)
    env = dict(os.environ, TMPDIR=scratch, PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8", PAWL_BUILD=str(build))
    command = build / "cli" / "pawl"
    env["PAWL_BIN"] = str(command if command.exists() else pathlib.Path(sys.executable).parent / "pawl")

    try:
        tasks = {
            "lint": [(run_script, name, command) for name, command in lint_commands(build)],
            "unit": [(run_unit, name, build) for name in unit_programs(build)] if "unit" in kinds else [],
            "proof": [(run_proof, "proof", build)],
        }
        for kind in ("lint", "unit", "proof"):
            chosen = [task for task in tasks[kind] if kind in kinds and args.match in task[1]]
            with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                futures = [pool.submit(call, name, what, env) for call, name, what in chosen]
                done: list[Outcome] = []
                for future in concurrent.futures.as_completed(futures):
                    done.append(future.result())
                    failed = sum(o.failed for o in done)
                    progress.show(f"{kind}  {len(done)} of {len(chosen)}, {failed} failed  {done[-1].name}")
            if chosen:
                summary(progress, kind, done)
            outcomes += done
        if "py" in kinds:
            done = [run_pytest(env, progress, args.jobs, args.match)]
            if not args.match:
                done.append(run_search(scratch))
            summary(progress, "py", done)
            outcomes += done
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

    return report(outcomes)


def summary(progress: Progress, kind: str, done: list[Outcome]) -> None:
    label = {"lint": "lint", "unit": "C unit tests", "proof": "proof, thinned out", "py": "Python and command"}[kind]
    passed, failed, seconds = sum(o.passed for o in done), sum(o.failed for o in done), sum(o.seconds for o in done)
    skipped = sum(o.skipped for o in done)
    also = f", {skipped} skipped" if skipped else ""
    progress.line(f"{label}: {passed} passed, {failed} failed{also} in {seconds:.0f} s")


def report(outcomes: list[Outcome]) -> int:
    passed = sum(o.passed for o in outcomes)
    failed = sum(o.failed for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    for outcome in sorted(outcomes, key=lambda o: o.name):
        for what, cases in (("ONLY ALONE", outcome.again), ("FAILED", outcome.failures)):
            for name, text in cases:
                print(f"\n======== {what} {name}\n{text.strip()}")
    seconds = collections.Counter({o.name: o.seconds for o in outcomes if not o.files})
    print()
    for what, slow in (
        ("programs", seconds),
        ("files of Python tests", sum((o.files for o in outcomes), collections.Counter())),
    ):
        if slow:
            print(f"slowest {what}: " + ", ".join(f"{name} {s:.0f} s" for name, s in slow.most_common(10)))
    for what, names in (
        ("passed only when run again, alone", [name for o in outcomes for name, _ in o.again]),
        ("failed", [name for o in outcomes for name, _ in o.failures]),
    ):
        if names:
            print(f"{what}: {', '.join(names)}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
