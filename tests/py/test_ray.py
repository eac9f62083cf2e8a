# SPDX-License-Identifier: Apache-2.0
"""pawl.ray inside the TorchTrainer of the real Ray Train: two workers, one killed, then the driver killed and started
again, on a disk and in a bucket."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from frameworks import run
from s3_servers import BUCKET, moto

import pawl

pytestmark = pytest.mark.framework


@pytest.mark.server
def test_P11_a_killed_worker_and_a_killed_driver_lose_nothing(tmp_path: pathlib.Path) -> None:
    run("ray", "ray_worker.py", tmp_path, "first", expect=-signal.SIGKILL)
    run_of_pawl = tmp_path / "results" / "run" / "pawl"
    with pawl.CheckpointManager(run_of_pawl, read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)) as manager:
        assert manager.latest_step() == 4  # the last one before the driver was killed
        assert manager.checkpoints()[-1].world_size == 2
    with moto() as server:
        address = server.endpoint.removeprefix("http://")
        storage = f"s3://{BUCKET}/ray?endpoint_override={address}&scheme=http&region=us-east-1"
        run("ray", "ray_worker.py", tmp_path, "again", storage, **server.env)
    assert (tmp_path / "first").read_text().split() == ["0", "3", "5"]  # a worker killed at 3, the driver at 5
    assert (tmp_path / "second").read_text().split() == ["0", "2"]
    facts = json.loads((tmp_path / "facts").read_text())
    assert pathlib.Path(facts["path"]).parent == run_of_pawl / "checkpoints"  # what pawl wrote, no copy of it
    assert facts["remote"].startswith(f"{BUCKET}/ray/bucket/pawl/checkpoints/")
    assert facts["metrics"]["name"] == "demo"
    with pawl.CheckpointManager(run_of_pawl, read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)) as manager:
        assert manager.all_steps() == [7] and manager.verify() == []  # of two that Ray keeps, with the linked one
    files = list((tmp_path / "plain").glob("*.safetensors"))
    assert files and all(os.path.samefile(file, pathlib.Path(facts["plain"], file.name)) for file in files)


def test_without_the_library_the_error_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", "import pawl.ray"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'libpawl[ray]'" in done.stderr
