# SPDX-License-Identifier: Apache-2.0
"""The demo of searches: 16 trials on real data, once with ASHA and once with population based training. Each search is
killed (SIGKILL) on its way, trials and all, and resumes. Everything stays in runs/demo-tune for a look afterwards."""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
SPACE = {"lr": {"$loguniform": [0.001, 3.0]}, "momentum": {"$uniform": [0.5, 0.99]}}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "asha": {"type": "asha", "max_t": 27, "grace_period": 1, "reduction_factor": 3},
    "pbt": {
        "type": "pbt",
        "time_attr": "training_iteration",
        "perturbation_interval": 5,
        "synch": True,  # the outcome does not depend on which trial is quick
        "hyperparam_mutations": SPACE,
    },
}
TITLES = {
    "asha": "ASHA: trials that do badly are stopped early",
    "pbt": "PBT: they go on from a better trial's checkpoint",
}


def write_document(folder: pathlib.Path, name: str) -> pathlib.Path:
    document = {
        "name": name,
        "local_dir": str(folder),
        "run": [sys.executable, str(HERE / "search_trial.py"), "{lr}", "{momentum}"],
        "metric": "accuracy",
        "mode": "max",
        "num_samples": 16,
        "seed": 3,
        "space": SPACE,
        "scheduler": SCHEDULERS[name],
        "checkpoint": {"keep": 2},
        "max_failures": 1,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document, indent=1))
    return file


def count_results(search: pathlib.Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in search.glob("*/result.json"))


def trials_of(search: pathlib.Path) -> list[dict[str, Any]]:
    done = subprocess.run(["pawl", "tune", "ls", str(search), "--json"], check=True, capture_output=True)
    trials: list[dict[str, Any]] = json.loads(done.stdout)["trials"]
    return trials


def kill_on_the_way(file: pathlib.Path, search: pathlib.Path, results: int) -> None:
    command = ["pawl", "tune", str(file), "--resume", "--quiet", "--no-progress"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and count_results(search) < results:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    how = "killed by SIGKILL" if process.wait() == -signal.SIGKILL else "it had ended before it could be killed,"
    print(f"{how} after {count_results(search)} results", flush=True)


def run_demo(name: str, folder: pathlib.Path) -> bool:
    print(f"\n=== {TITLES[name]}", flush=True)
    file, search = write_document(folder, name), folder / name
    ended: dict[str, Any] = {}
    for results in (10, 24):  # asha may need no more than 40 in all
        kill_on_the_way(file, search, results)
        ended = {trial["name"]: trial for trial in trials_of(search) if trial["state"] == "TERMINATED"}
    if subprocess.run(["pawl", "tune", str(file), "--resume", "--quiet"]).returncode != 0:
        return False
    trials = trials_of(search)
    again = [trial["name"] for trial in trials if trial["name"] in ended and trial != ended[trial["name"]]]
    whole = len(trials) == 16 and all(trial["state"] == "TERMINATED" for trial in trials) and not again
    print(f"--- {len(trials)} trials, {len(ended)} of them had ended before the last kill and were left alone")
    if name == "pbt":
        clones = (
            len((search / "pbt_global.txt").read_text().splitlines()) if (search / "pbt_global.txt").exists() else 0
        )
        whole = whole and clones > 0
        print(f"    {clones} times a trial continued from a better one's checkpoint")
    print(f"    {'WHOLE' if whole else 'NOT WHOLE'}; it is in {search}", flush=True)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="runs/demo-tune", type=pathlib.Path)
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole = [run_demo(name, folder) for name in SCHEDULERS]
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main())
