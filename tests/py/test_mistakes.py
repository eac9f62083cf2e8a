# SPDX-License-Identifier: Apache-2.0
"""The mistakes of a new user: docs/reference/messages.md shows the exact answer to each, and every block of it is run here."""

from __future__ import annotations

import os
import pathlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from waiting import HANG_SECONDS

import pawl
from cli import PAWL, environment, obey_permissions

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/reference/messages.md"
BLOCKS = re.findall(r"^([^\n]+):\n\n```(console|pycon)\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PLACES = "/srv"  # of the page's folders, "ada" and "bob"
USER = "ada"


@pytest.fixture(name="home")
def home_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """What the page describes."""
    home, other = tmp_path / "ada", tmp_path / "bob"
    home.mkdir()
    monkeypatch.chdir(home)
    with pawl.CheckpointManager("runs/demo") as manager:
        for step in (100, 200, 300):
            state = {"model": {"weight": np.full((4, 4), step, dtype=np.float32)}, "epoch": step // 100}
            manager.save(step, state, metrics={"loss": 1 / step}).wait()
    torch.save({"w": torch.ones(2)}, "model.pt")
    (home / "saved").mkdir()
    torch.save({"w": torch.ones(2)}, "saved/ep1-ba120-rank0.pt")
    (home / "data").mkdir()
    (home / "data" / "notes.txt").write_text("notes")
    (home / "old").symlink_to("runs/gone")
    shutil.copytree("runs/demo", other / "demo", symlinks=True)
    shutil.copytree("runs/demo", other / "private", symlinks=True)
    modes = {other / "private": 0, other / "demo": 0o555, other: 0o555}
    for path, mode in modes.items():
        path.chmod(mode)
    yield home
    for path in reversed(modes):
        path.chmod(0o755)


def tree_of(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
    """All files but those in which a run notes who opened it."""
    notes = {".pawl", "run.json", "events.jsonl"}
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not notes & set(path.parts)}


def answer_of_command(block: str) -> str:
    [first, *_] = block.splitlines()
    words = shlex.split(first.removeprefix("$ pawl "))
    done = subprocess.run(
        [PAWL, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=HANG_SECONDS,
        env=environment(),
        preexec_fn=obey_permissions,
    )
    assert done.returncode != 0
    return f"{first}\n{done.stdout}{done.stderr}"


def answer_of_python(block: str) -> str:
    if "../bob" not in block:
        return answer_here(block)
    program = "import sys, test_mistakes; print(test_mistakes.answer_here(sys.argv[1]), end='')"
    return subprocess.run(
        [sys.executable, "-c", program, block],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
        preexec_fn=obey_permissions,
        check=True,
    ).stdout


def answer_here(block: str) -> str:
    lines = [line for line in block.splitlines() if line.startswith((">>> ", "... "))]
    names: dict[str, Any] = {"pawl": pawl, "torch": torch, "np": np}
    try:
        exec("\n".join(line[4:] for line in lines), names)
    except Exception as error:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return "\n".join([*lines, f"{name}: {error}\n"])
    finally:
        if isinstance(names.get("manager"), pawl.CheckpointManager):
            names["manager"].close()
    raise AssertionError(f"no error: {block}")


@pytest.mark.parametrize(("kind", "block"), [block[1:] for block in BLOCKS], ids=[block[0] for block in BLOCKS])
def test_a_mistake_gets_the_message_that_the_page_shows_and_nothing_is_lost(
    home: pathlib.Path, kind: str, block: str
) -> None:
    before = tree_of(home)
    answer = {"console": answer_of_command, "pycon": answer_of_python}[kind](block)
    answer = answer.replace(os.path.realpath(home.parent), PLACES)
    answer = answer.replace(f"user {pwd.getpwuid(os.geteuid()).pw_name} ", f"user {USER} ")
    pattern = re.escape(block).replace(r"\.\.\.\)", ".*\\)")  # "(known: ls, du, ...)"
    assert re.fullmatch(pattern, answer), answer
    assert tree_of(home) == before


def test_the_page_shows_all_of_them() -> None:
    assert len(BLOCKS) >= 44 and len({block[2] for block in BLOCKS}) == len(BLOCKS)
