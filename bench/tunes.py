# SPDX-License-Identifier: Apache-2.0
"""The phase of searches: pawl.tune against the real Ray Tune, which is installed into an environment of its own,
that of the tests; a clone of a checkpoint against a copy; memory."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import measure

HERE = pathlib.Path(__file__).resolve().parent
TRIALS, REPORTS, MANY = 100, 10_000, 10_000
SECONDS = 1800


def turn(
    python: pathlib.Path, env: dict[str, str], what: str, folder: pathlib.Path, n: int, reports: int = 0
) -> dict[str, float]:
    with measure.scratch(folder, "tune") as place:
        place.mkdir()
        words = [str(python), str(HERE / "tune.py"), what, str(place), str(n), str(reports)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{what}: status {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[0].removeprefix("RESULT "))
    return found


def phase(setting: Any, result: Any, say: Callable[[str], None]) -> None:
    """100 trials that do nothing, 10,000 reports, a clone of 1 GB, 10,000 trials; less at a smaller scale."""
    sys.path.append(str(HERE.parent / "tests" / "py"))
    import frameworks

    quiet = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
    share = min(1.0, setting.scale)
    trials, reports, many = max(10, round(TRIALS * share)), max(300, round(REPORTS * share)), round(MANY * share)
    rounds = max(1, setting.rounds // 3)
    sides = ["pawl.tune", "Ray Tune"]
    try:
        python = frameworks.python_of("ray")
    except AssertionError as error:
        result.missing["Ray Tune"] = str(error)[:200]
        python, sides = pathlib.Path(sys.executable), sides[:1]
    env = frameworks.environment(**quiet)
    for number in range(rounds):
        for side in sides[number % 2 :] + sides[: number % 2]:
            found = turn(python, env, side, setting.folder, trials, reports)
            beyond = max(found["start"] - found["interpreter"], 1e-4) if side != "pawl.tune" else found["start"]
            result.add("tune start", side, {"seconds": found["start"], "beyond": beyond})
            result.add("tune report", side, {"seconds": found["report"]})
        found = turn(python, env, "exploit", setting.folder, round(1e9 * share))
        result.add("tune exploit", "pawl.tune", {"seconds": found["clone"]})
        result.add("tune exploit", "copy", {"seconds": found["copy"]})
        say(f"tune: round {number + 1} of {rounds}")
    grown = turn(python, env, "memory", setting.folder, many)
    result.add("tune memory", "pawl.tune", {"megabytes": grown["bytes"] / 1e6})
    result.facts |= {"trials": trials, "reports": reports, "many": many}
