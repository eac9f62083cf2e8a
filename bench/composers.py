# SPDX-License-Identifier: Apache-2.0
"""How long a training run of the real Composer stands still at each save of pawl's saver, and of Composer's own.
Composer is installed into an environment of its own, that of the tests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import measure

import pawl

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "py"
WIDTH = 1_000_000  # of the model at scale 1: its state and its optimizer's are 132 MB
SECONDS = 900


def turn(python: pathlib.Path, side: str, folder: pathlib.Path, suffix: str, width: int) -> list[float]:
    """Seconds that each save of a training run holds it up; the first one, which pays for memory, is left out."""
    with measure.scratch(folder, "composer") as place:
        options = {"save_interval": "4ba", "filename": f"ep{{epoch}}-ba{{batch}}.{suffix}", "latest_filename": None}
        given = {"saver": side, "folder": str(place), "width": width, "options": options}
        path = [str(pathlib.Path(pawl.__file__).parent.parent), str(TESTS)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore"}
        words = [str(python), str(TESTS / "composer_real.py"), json.dumps(given)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{side}: status {done.returncode}: {done.stderr[-2000:]}")
    blocked: list[float] = json.loads(lines[0].removeprefix("ANSWER "))["blocked"]
    return blocked[1:]


def phase(setting: Any, result: Any, say: Callable[[str], None]) -> None:
    sys.path.append(str(TESTS))
    import composer_venv

    try:
        python = composer_venv.composer_python()
    except subprocess.SubprocessError as error:
        result.missing["Composer"] = str(error)[:200]
        return
    n = max(1, setting.rounds // 3)
    for number in range(n):
        for suffix in ("pt", "pt.zst"):
            sides = ["pawl", "composer"]
            for side in sides[number % 2 :] + sides[: number % 2]:
                for seconds in turn(python, side, setting.folder, suffix, max(16, round(WIDTH * setting.scale))):
                    result.add(f"composer {suffix}", side, {"blocked": seconds})
        say(f"composer: round {number + 1} of {n}")
