# SPDX-License-Identifier: Apache-2.0
"""Searches by pawl.tune or by Ray Tune: many trials of a function that does nothing, and one that reports many times;
and what the experiment itself costs. Started by tunes.py, for both with an interpreter that has Ray; writes JSON."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import time
from typing import Any

WARM = 20  # reports that do not count


def nothing(report: Any, config: dict[str, Any]) -> None:
    report({"loss": config["x"]})


def talk(report: Any, config: dict[str, Any]) -> None:
    for i in range(WARM):
        report({"loss": i})
    begin = time.perf_counter()
    for i in range(config["n"]):
        report({"loss": i})
    report({"loss": 0, "seconds": (time.perf_counter() - begin) / config["n"]})


def search_pawl(folder: str, what: Any, config: dict[str, Any]) -> Any:
    from pawl import tune

    def trial(values: dict[str, Any]) -> None:
        what(tune.report, values)

    found = tune.run(
        trial, name=what.__name__, local_dir=folder, config=config, metric="loss", mode="min", verbose=0, engine="local"
    )
    return [one.last_result for one in found.trials]


def search_ray(folder: str, what: Any, config: dict[str, Any]) -> Any:
    from ray import tune

    def trial(values: dict[str, Any]) -> None:
        what(tune.report, values)

    run = tune.RunConfig(name=what.__name__, storage_path=folder, verbose=0)
    return [one.metrics for one in tune.Tuner(trial, param_space=config, run_config=run).fit()]


def measure(side: str, folder: str, trials: int, reports: int) -> dict[str, float]:
    """Seconds per trial, of ``trials`` after one that warms up, and per report."""
    if side == "pawl.tune":
        from pawl import tune

        search, grid = search_pawl, tune.grid_search
    else:
        import ray
        from ray import tune as theirs

        ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
        search, grid = search_ray, theirs.grid_search
        search(os.path.join(folder, "warm"), nothing, {"x": 0})
    begin = time.perf_counter()
    rows = search(folder, nothing, {"x": grid(list(range(trials)))})
    start = (time.perf_counter() - begin) / trials
    assert len(rows) == trials, rows
    return {"start": start, "report": search(folder, talk, {"n": reports})[0]["seconds"]}


def interpreter() -> float:
    """What an interpreter costs that does nothing."""
    import subprocess

    begin = time.perf_counter()
    for _ in range(10):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begin) / 10


def exploit(folder: pathlib.Path, nbytes: int) -> dict[str, float]:
    """Seconds of a report whose trial continues from another one's checkpoint, and of a copy of that."""
    from pawl import _pawl

    scheduler = {"type": "pbt", "time_attr": "training_iteration", "perturbation_interval": 1, "quantile_fraction": 0.5}
    document = {
        "name": "e",
        "local_dir": str(folder),
        "space": {"lr": {"$uniform": [0.1, 1]}},
        "num_samples": 2,
        "metric": "loss",
        "mode": "min",
        "scheduler": scheduler | {"hyperparam_mutations": {"lr": {"$uniform": [0.1, 1]}}},
    }
    experiment = _pawl.Experiment(json.dumps(document), str(folder / "e"))
    places = []
    for number in range(2):
        found = experiment.next()
        assert not isinstance(found, str), found
        place = pathlib.Path(found[3], "checkpoint_000001")
        place.mkdir()
        places.append(place)
        for i in range(4):
            with open(place / f"part{i}", "wb") as file:
                for _ in range(max(1, (nbytes >> 22) if number == 0 else 1)):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
    experiment.report(0, '{"loss": 1}', "checkpoint_000001")
    begin = time.perf_counter()
    verdict = experiment.report(1, '{"loss": 2}', "checkpoint_000001")
    cloned = time.perf_counter() - begin
    assert verdict[0] == 3, verdict
    begin = time.perf_counter()
    shutil.copytree(places[0], folder / "copy")
    for path in (folder / "copy").iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    copied = time.perf_counter() - begin
    experiment.close()
    return {"clone": cloned, "copy": copied}


def resident() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def memory(folder: pathlib.Path, trials: int) -> dict[str, float]:
    """Bytes by which a process grows that has run an experiment of so many trials, two results each."""
    from pawl import _pawl

    before = resident()
    document = {
        "name": "m",
        "local_dir": str(folder),
        "space": {"lr": {"$loguniform": [1e-4, 1]}, "width": {"$choice": [16, 32]}},
        "num_samples": trials,
        "metric": "loss",
        "mode": "min",
        "scheduler": {"type": "asha", "max_t": 100},
    }
    experiment = _pawl.Experiment(json.dumps(document), str(folder / "m"))
    for _ in range(trials):
        found = experiment.next()
        assert not isinstance(found, str), found
        for i in range(2):
            if experiment.report(found[0], f'{{"loss": {i}}}', None)[0]:
                break
        experiment.ended(found[0], 0, "")
    grown = resident() - before
    experiment.close()
    return {"bytes": grown}


def main() -> None:
    what, folder, n, reports = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if what == "exploit":
        found = exploit(pathlib.Path(folder), n)
    elif what == "memory":
        found = memory(pathlib.Path(folder), n)
    else:
        found = measure(what, folder, n, reports) | {"interpreter": interpreter()}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
