# SPDX-License-Identifier: Apache-2.0
"""The blocks of README.md and docs/, and a reader who follows a page: each block is done in order, in one folder."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterable

from waiting import HANG_SECONDS

from cli import PAWL

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)(?: title=\"([\w.-]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PART = re.compile(r"<!-- part of (\S+) -->\n\Z")
# What differs between two runs of a command: "3.2 ms", "2s", "3.4 MB/s", "2026-11-25 20:17:23".
VARIES = [
    (re.compile(r"\b[\d.]+ ?(ms|s|min|m|h|d|w|y)\b( \d+ ?(s|min|h)\b)?"), "<time>"),
    (re.compile(r"\b[\d.]+ ?[kMG]?B/s"), "<rate>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "<when>"),
]


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str  # "" of a drawing, which nothing can run
    title: str  # the file that the reader makes of it
    text: str
    part: str  # the file of which it is a part; the tests compile or import that file

    @property
    def first(self) -> str:
        """Its first line that is not blank."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[1],
            match[2] or "",
            match[3],
            part[1] if (part := PART.search(text, 0, match.start())) else "",
        )
        for match in FENCE.finditer(text)
    ]


def words(line: str, names: dict[str, str]) -> list[str]:
    for name, shown in names.items():
        line = line.replace(name, shown)
    for pattern, shown in VARIES:
        line = pattern.sub(shown, line)
    return line.split()


def close(shown: str, seen: str) -> bool:
    """The same word, or "…"; or two numbers with a fraction, equal to 2%: processors round differently."""
    if shown in (seen, "…"):
        return True
    try:
        return "." in shown and math.isclose(float(shown), float(seen), rel_tol=0.02)
    except ValueError:
        return False


def same_output(shown: str, seen: str, names: dict[str, str]) -> bool:
    """A page shows this output. A line "…" stands for any lines, a word "…" for any word; times, rates and dates differ."""
    left, right = ([words(line, names) for line in text.strip().splitlines()] for text in (shown, seen))

    def same(i: int, j: int) -> bool:
        if i == len(left):
            return j == len(right)
        if left[i] == ["…"]:
            return any(same(i + 1, k) for k in range(j, len(right) + 1))
        if j == len(right) or len(left[i]) != len(right[j]):
            return False
        return all(map(close, left[i], right[j])) and same(i + 1, j + 1)

    return same(0, 0)


@dataclasses.dataclass
class Reader:
    """Does what a page says."""

    folder: pathlib.Path
    stand_ins: str = ""  # what the programs of the page expect to exist
    names: dict[str, str] = dataclasses.field(default_factory=dict)  # in a block: places that this machine lacks
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    python: str = sys.executable

    def run(self, command: list[str], *, fails: bool = False) -> str:
        """What it prints, errors included. With `fails` it may end with any status."""
        # pip finds here what a page installs, and asks no index.
        quiet = {"LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INDEX": "1"}
        environment = os.environ | quiet | self.environment
        path = [str(pathlib.Path(self.python).parent), str(pathlib.Path(PAWL).parent), environment["PATH"]]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment | {"PATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=HANG_SECONDS,
        )
        assert fails or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}"
        return done.stdout

    def compare(self, block: Block, shown: str, seen: str) -> None:
        names = {str(self.folder): "/data", socket.gethostname(): "ada"}
        assert same_output(shown, seen, names), f"{block} shows another output than\n{seen}"

    def do(self, block: Block, answer: Block | None) -> None:
        text = block.text
        for name, place in self.names.items():
            text = text.replace(name, place)
        if block.title:
            (self.folder / block.title).write_text(text)
            return
        if block.language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                self.compare(block, shown, self.run(["bash", "-c", command], fails=True))
            return
        if block.language == "python":
            program = self.folder / f"block{block.line}.py"
            program.write_text(f"{self.stand_ins}\n{text}")
            seen = self.run([self.python, program.name])
        elif block.language == "sh":
            seen = self.run(["bash", "-e", "-c", text])
        else:
            raise AssertionError(f"{block}: no reader can do a block of {block.language}")
        if answer:
            self.compare(answer, answer.text, seen)

    def follow(self, page: Iterable[Block]) -> None:
        todo = [block for block in page if block.language]
        for block, after in zip(todo, [*todo[1:], None], strict=True):
            if block.language != "text":
                self.do(block, after if after and after.language == "text" else None)
