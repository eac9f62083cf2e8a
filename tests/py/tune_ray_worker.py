# SPDX-License-Identifier: Apache-2.0
"""A search of pawl.tune on a real Ray of two nodes that have different home folders; test_tune_ray.py starts it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import ray
from ray_cluster import Cluster
from waiting import HANG_SECONDS

from pawl import tune
from pawl.tune.schedulers import HyperBandScheduler

SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}


def steps(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """Counts to four. Says where it begins; one of its processes is killed, and one tells when its node is to go."""
    first, place = 0, pathlib.Path(config["notes"])
    if checkpoint_dir:
        first = int(pathlib.Path(checkpoint_dir, "deep", "step").read_text())
    with open(place / f"starts-{tune.get_trial_id()}", "a") as notes:
        notes.write(f"{first}\n")
    away = os.environ["HOME"].endswith("second")
    for step in range(first + 1, 5):
        with tune.checkpoint_dir(step=step) as folder:
            os.mkdir(os.path.join(folder, "deep"))
            pathlib.Path(folder, "deep", "step").write_text(str(step))
            pathlib.Path(folder, "empty").touch()
        if step == 3 and away:
            (place / "lose").touch()  # the driver sees to it when this is reported, which has no answer then
        until = time.monotonic() + HANG_SECONDS
        while step == 3 and not (place / "lose").exists():
            assert time.monotonic() < until, "no trial has come to the second node"
            time.sleep(0.05)
        tune.report(loss=config["x"] / step)
        print("step", step)
        if step == 2 and config["x"] == 1 and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: pathlib.Path, cluster: Cluster, second: Any) -> None:
    """A process and a node go while the search runs; checkpoints have reached the driver before."""
    lost: list[bool] = []

    def lose(trial_id: str, result: dict[str, Any]) -> bool:
        if not lost and (folder / "lose").exists():
            lost.append(True)
            cluster.remove_node(second, allow_graceful=False)
            cluster.add_node(**SMALL, resources={"away": 1}, env_vars={"HOME": str(folder / "third")})
        return False

    analysis = tune.run(
        steps,
        name="killed",
        local_dir="~/results",
        config={"x": tune.grid_search([1, 2]), "notes": str(folder)},
        metric="loss",
        mode="min",
        stop=lose,
        max_failures=3,
        keep_checkpoints_num=2,
        verbose=2,
        engine="ray",
    )
    rows = {
        trial.config["x"]: {
            "status": trial.status,
            "iteration": trial.last_result["training_iteration"],
            "failures": trial.failures,
            "kept": sorted(one for one in os.listdir(trial.logdir) if one.startswith("checkpoint_")),
            "starts": (folder / f"starts-{trial.trial_id}").read_text().split(),
            "step": pathlib.Path(trial.checkpoint.path, "deep", "step").read_text(),
        }
        for trial in analysis.trials
    }
    print(json.dumps({"killed": rows, "best": analysis.best_config["x"]}))


def search(folder: pathlib.Path) -> Any:
    return tune.run(
        paused,
        name="paused",
        local_dir="~/results",
        config={"x": tune.grid_search([1, 2, 3]), "notes": str(folder)},
        metric="loss",
        mode="min",
        scheduler=HyperBandScheduler(max_t=4, reduction_factor=2),
        sync_config=tune.SyncConfig(upload_dir=str(folder / "bucket")),
        resources_per_trial={"cpu": 0.5, "away": 1},  # one at a time: the best is the first, and has to pause
        resume="AUTO",
        engine="ray",
    )


def paused(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """One that continues after its pause ends the driver, once."""
    first, place = 0, pathlib.Path(config["notes"])
    if checkpoint_dir:
        first = int(pathlib.Path(checkpoint_dir, "step").read_text())
        with contextlib.suppress(FileNotFoundError):
            driver = int((place / "driver").read_text())
            (place / "driver").unlink()
            os.kill(driver, signal.SIGKILL)
    for step in range(first + 1, 10):
        with tune.checkpoint_dir(step=step) as folder:
            pathlib.Path(folder, "step").write_text(str(step))
        tune.report(loss=config["x"] / step)


def resumed(folder: pathlib.Path, address: str) -> None:
    """The driver is killed by one of its trials; the same search continues."""
    words = [sys.executable, __file__, str(folder), "driver", address]
    status = subprocess.run(words, check=False, timeout=HANG_SECONDS).returncode
    analysis = search(folder)
    best = analysis.best_checkpoint
    before = os.listdir(best.path)
    with best.as_directory() as here:
        step = pathlib.Path(here, "step").read_text()
    rows = {one.config["x"]: [one.status, one.last_result["training_iteration"]] for one in analysis.trials}
    remote = sorted(str(path.relative_to(folder)) for path in (folder / "bucket" / "paused").glob("*/*/step"))
    print(json.dumps({"status": status, "resumed": rows, "step": step, "before": before, "remote": len(remote)}))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    os.environ["HOME"] = str(folder / "first")
    if sys.argv[2:3] == ["driver"]:
        ray.init(address=sys.argv[3], log_to_driver=False)
        (folder / "driver").write_text(str(os.getpid()))
        search(folder)
        return
    for name in ("first", "second", "third"):
        (folder / name).mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    second = cluster.add_node(**SMALL, env_vars={"HOME": str(folder / "second")})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        killed(folder, cluster, second)
        resumed(folder, cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
