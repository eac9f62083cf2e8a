# SPDX-License-Identifier: Apache-2.0
"""The phase of trainings: pawl.train against the real Ray Train, which is installed into an environment of its own,
that of the tests."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import measure

HERE = pathlib.Path(__file__).resolve().parent
REPORTS = 5  # per round
SECONDS = 900


def turn(
    python: pathlib.Path, env: dict[str, str], side: str, folder: pathlib.Path, scale: float
) -> list[dict[str, Any]]:
    """The rows of one training run, in processes of its own."""
    with measure.scratch(folder, "train") as place:
        place.mkdir()
        output = place / "rows.jsonl"
        words = [str(python), str(HERE / "train.py"), side, str(place), str(scale), str(REPORTS), str(output)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
        rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    if done.returncode != 0 or len(rows) != REPORTS + 1:
        raise RuntimeError(f"{side}: status {done.returncode}, {len(rows)} rows: {done.stderr[-2000:]}")
    return rows


def phase(setting: Any, result: Any, say: Callable[[str], None]) -> None:
    """500 MB at scale 1: seconds lost per report, and from SIGKILL of a worker to training again."""
    sys.path.append(str(HERE.parent / "tests" / "py"))
    import frameworks

    quiet = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        python = frameworks.python_of("ray")
    except AssertionError as error:
        result.missing["Ray Train"] = str(error)[:200]
        return
    env = frameworks.environment(**quiet)
    sides = ["pawl.train", "Ray Train", "pawl.ray"]
    n = max(1, setting.rounds // 3)
    for number in range(n):
        for side in sides[number % 3 :] + sides[: number % 3]:
            for row in turn(python, env, side, setting.folder, setting.scale):
                if "restart" in row:
                    result.add("train restart", side, {"seconds": row["restart"]})
                else:
                    result.add("train report", side, row)
        say(f"train: round {number + 1} of {n}")
    result.facts["bytes"] = round(500e6 * setting.scale)
