# SPDX-License-Identifier: Apache-2.0
"""P17: a corpus of hostile files. Each is opened with the package and with the commands that take it: refused with an
error that names it, or, where it is harmless, read right. No crash, not more than a second or 256 MiB, nothing written
anywhere else, nothing that was there changed."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import select
import shutil
import stat
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from attack import GOOD, Corpus, Shape, file_bytes
from attack_probe import described
from waiting import HANG_SECONDS

import pawl
from cli import PAWL, environment

pytestmark = pytest.mark.long

LEAST_SHAPES = 420
MAX_SECONDS, MAX_BYTES = 1.0, 256 << 20
CODES = {"exists", "not-found", "corrupt", "limit", "version", "unsupported", "io", "mismatch", "usage", "auth"}
STATUSES = {1, 2, 3, 4, 7}
STATE = {
    "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, -2, 3])},
    "text": "long " * 1000,
    "step": 3,
    "list": [1, (2.5, "x")],
}

Answers = dict[str, Any]


class Probe:
    """A process that answers one line of JSON with one."""

    def __init__(self, what: str, folder: pathlib.Path) -> None:
        here = pathlib.Path(__file__).parent
        self.command = [sys.executable, *(["-S"] if what == "command" else []), str(here / "attack_probe.py"), what]
        self.folder = folder
        self.env = environment(
            PYTHONPATH=str(pathlib.Path(pawl.__file__).parent.parent),
            TMPDIR=str(folder),
            HOME=str(folder),
            PYTHONDONTWRITEBYTECODE="1",
        )
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: object) -> Answers:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        ready = select.select([self.process.stdout], [], [], 2 * HANG_SECONDS)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line:  # it hangs or is dead; the next question gets a new one
            self.process.kill()
            status = self.process.wait()
            self.close()
            return {"died": status if ready else "hangs"}
        answer: Answers = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def lines_of(shape: Shape, out: pathlib.Path) -> dict[str, list[str]]:
    """The commands that take such a thing, and where they would write."""
    path, name = str(shape.path), shape.name.replace("/", ".")
    export = [PAWL, "export", path, str(out / f"{name}.safetensors")]
    restore = [PAWL, "restore", path, str(out / name)]
    looking = {"verify": [PAWL, "verify", path], "show": [PAWL, "show", path]}
    if shape.kind == "file":
        return looking | {"export": export}
    if shape.kind == "run":
        return {"ls": [PAWL, "ls", path], "verify": looking["verify"], "restore": restore}
    return looking | {"restore": restore, "export": export}


def try_shape(shape: Shape, load: Probe, command: Probe, out: pathlib.Path) -> dict[str, Answers]:
    out.mkdir(parents=True)
    kind, path = ("file", shape.path / "latest") if shape.kind == "run" and shape.harmless else (shape.kind, shape.path)
    answers = {"load": load.ask([kind, str(path)])}
    for what, line in lines_of(shape, out).items():
        answers[what] = command.ask(line)
        answers[what]["left"] = sorted(os.listdir(out))
        shutil.rmtree(out)
        out.mkdir()
    return answers


# ------------------------------------------------------------------- judging


def is_named(shape: Shape, text: str) -> bool:
    # A name that a terminal would act on is shown cleaned.
    return any(name in text for name in shape.says or (shape.path.name,))


def is_printable(text: str) -> bool:
    """Nothing that steers a terminal or reorders what is read."""
    return not any(
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        and c != "\n"
        or c in "\u200e\u200f\u061c\ufeff"
        or "\u202a" <= c <= "\u202e"
        or "\u2066" <= c <= "\u2069"
        for c in text
    )


def costs(answer: Answers) -> Iterator[str]:
    if "died" in answer or answer.get("status", 0) is None or answer.get("status", 0) < 0:
        yield f"crashed or hangs ({answer.get('died', answer.get('status'))})"
        return
    if answer["seconds"] > MAX_SECONDS:
        yield f"took {answer['seconds']:.2f} s"
    if answer["grown"] > MAX_BYTES:
        yield f"took {answer['grown'] >> 20} MiB"


def load_problems(shape: Shape, answer: Answers) -> Iterator[str]:
    if "error" not in answer:
        if not shape.harmless and "load" not in shape.passes:
            yield "was accepted"
        elif answer["value"] != described(shape.value):
            yield f"gave another value: {str(answer['value'])[:200]}"
    elif shape.harmless:
        yield f"was refused: {answer['message']}"
    elif answer["code"] not in CODES:
        yield f"{answer['error']}: {answer['message']}"
    elif not is_named(shape, answer["message"]) or not is_printable(answer["message"]):
        yield f"says {answer['message']!r}"


def command_problems(shape: Shape, what: str, answer: Answers) -> Iterator[str]:
    status, said = answer["status"], answer["out"] + answer["err"]
    writes = what in ("export", "restore")
    if not is_printable(said):
        yield f"printed {said!r}"
    if shape.harmless:
        if status != (shape.verifies if what == "verify" else 0):
            yield f"exit status {status}: {said}"
        if len(answer["left"]) != writes:
            yield f"wrote {answer['left']}"
        return
    if status == 0 and (what in shape.passes or (what == "show" and shape.group in UNREAD)):
        return
    if status not in STATUSES:
        yield f"exit status {status}: {said}"
    elif not is_named(shape, said):
        yield f"says {said!r}"
    if answer["left"]:
        yield f"left {answer['left']}"


# show does not read packs and their checksums.
UNREAD = {"pack", "pack-is", "manifest-file"}


def problems(shape: Shape, answers: dict[str, Answers]) -> list[str]:
    found = []
    for what, answer in answers.items():
        trouble = list(costs(answer))
        if not trouble:
            judged = load_problems(shape, answer) if what == "load" else command_problems(shape, what, answer)
            trouble = list(judged)
        found += [f"{shape.name}: {what}: {text}" for text in trouble]
    return found


# --------------------------------------------------------------------- tests


def photograph(*folders: pathlib.Path, loosely: bool = False) -> dict[str, Any]:
    """Everything about everything below, but times of looking. Loosely: a reader's hold comes and goes."""
    seen: dict[str, Any] = {}
    for folder in folders:
        for path, names, files in os.walk(folder):
            for name in [".", *names, *files]:
                at = os.path.join(path, name)
                st = os.lstat(at)
                if not loosely or not stat.S_ISDIR(st.st_mode):
                    seen[at] = (st.st_mode, st.st_size, st.st_mtime_ns, st.st_ino, st.st_nlink)
    return seen


class Bench:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.cwd, self.bait = folder / "cwd", folder / "bait"
        self.cwd.mkdir()
        self.bait.mkdir()
        (self.bait / "file").write_text("bait\n")
        pawl.save(STATE, folder / "base", metadata={"who": "me"})
        self.corpus = Corpus(folder / "corpus", folder / "base", STATE, self.bait)

    def run(self, shapes: list[Shape]) -> dict[str, dict[str, Answers]]:
        """On two processors."""

        def work(part: int) -> dict[str, dict[str, Answers]]:
            load, command = Probe("load", self.cwd), Probe("command", self.cwd)
            try:
                mine = shapes[part::2]
                return {
                    s.name: try_shape(s, load, command, self.folder / f"out{part}" / str(i)) for i, s in enumerate(mine)
                }
            finally:
                load.close()
                command.close()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first, second = pool.map(work, range(2))
        return first | second


@pytest.fixture(name="bench")
def fixture_bench(tmp_path: pathlib.Path) -> Bench:
    return Bench(tmp_path)


def expected(shape: Shape) -> Shape:
    """The value of a file as tensors."""
    if shape.harmless and shape.kind == "file":
        tensors = {name: torch.frombuffer(bytearray(row[2]), dtype=torch.float32) for name, row in shape.value.items()}
        return replace(shape, value=tensors)
    return shape


def contents(shape: Shape) -> bytes | None:
    """What is hostile of a shape, if it is the bytes of one file."""
    path = {"checkpoint": shape.path / "manifest.json", "run": shape.path / "run.json"}.get(shape.kind, shape.path)
    made_of_bytes = shape.group.startswith(("length", "header", "tensor", "manifest-", "state", "digest", "run.json"))
    return path.read_bytes() if made_of_bytes and not shape.group.endswith("-is") else None


def test_P17_the_attack_corpus_is_refused_or_harmless(bench: Bench) -> None:
    shapes = [expected(shape) for shape in bench.corpus.make_all()]
    assert len({shape.name for shape in shapes}) == len(shapes) >= LEAST_SHAPES
    made = [(shape.kind, contents(shape)) for shape in shapes if contents(shape) is not None]
    assert len(set(made)) == len(made) > 600, "two shapes are the same"
    counts = Counter(shape.group for shape in shapes)
    watched, read = (bench.bait, bench.cwd, bench.folder / "base"), bench.folder / "corpus"
    before, start = (photograph(*watched), photograph(read, loosely=True)), time.monotonic()
    answers = bench.run(shapes)
    every = [answer for of_shape in answers.values() for answer in of_shape.values()]
    slowest, largest = (max(answer.get(what, 0) for answer in every) for what in ("seconds", "grown"))
    print(f"{len(shapes)} shapes in {time.monotonic() - start:.1f} s", dict(counts))
    print(f"the slowest took {slowest:.3f} s, the largest {largest >> 20} MiB")
    found = [problem for shape in shapes for problem in problems(shape, answers[shape.name])]
    assert not found, f"{len(found)} of {len(shapes)} shapes\n" + "\n".join(found)
    after = photograph(*watched), photograph(read, loosely=True)
    assert not changes(before[0] | before[1], after[0] | after[1])


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def test_P8_no_work_on_a_hostile_run_reaches_out_of_it(bench: Bench) -> None:
    """Clearing up, pruning, repairing and training where links lead out, and pipes and folders stand for files."""
    bench.corpus.harmless_runs()
    before = photograph(bench.bait, bench.cwd)
    load, command = Probe("load", bench.cwd), Probe("command", bench.cwd)
    for shape in bench.corpus.shapes:
        path = str(shape.path)
        lines = [["gc", path], ["prune", path, "--keep-last", "1"], ["repair", path], ["pin", path + "@latest"]]
        answers = [command.ask([PAWL, *line]) for line in lines]
        trained = load.ask(["train", path])
        answers += [trained, command.ask([PAWL, "gc", path])]
        assert not [cost for answer in answers for cost in costs(answer)], (shape.name, answers)
        assert "error" not in trained or trained["code"] in CODES | {"busy"}, (shape.name, trained)
        assert not changes(before, photograph(bench.bait, bench.cwd)), (shape.name, answers)
    load.close()
    command.close()


def test_the_check_of_the_corpus_can_fail(bench: Bench) -> None:
    """Controls: what is right, declared hostile; what is hostile, declared harmless; another value."""
    good = file_bytes(GOOD)
    bench.corpus.file("control", "good-file", good)
    bench.corpus.file("control", "bad-file", good[:-1], harmless=True, value=STATE)
    bench.corpus.file("control", "other-value", good, harmless=True, value={"t": torch.zeros(2)})
    bench.corpus.checkpoint("control", "good-checkpoint", (bench.folder / "base" / "manifest.json").read_bytes())
    run = bench.corpus.make_run("control", "good-run")
    bench.corpus.add("control", "good-run", "run", run)
    shapes = bench.corpus.shapes
    answers = bench.run(shapes)
    for shape in shapes:
        found = problems(shape, answers[shape.name])
        assert any(": load: " in line for line in found), (shape.name, found)
        assert any(": verify: " in line for line in found) == (shape.name != "control/other-value"), (shape.name, found)
    died: dict[str, Answers] = {"load": {"died": -11}, "verify": {"status": -6, "out": "", "err": "", "left": []}}
    assert len(problems(shapes[0], died)) == 2
    before = photograph(bench.bait)
    (bench.bait / "file").write_text("bite\n")
    assert photograph(bench.bait) != before
