# SPDX-License-Identifier: Apache-2.0
"""pawl.train with workers that are actors of a real Ray."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest
from frameworks import run
from s3_servers import BUCKET, moto

pytestmark = pytest.mark.framework


def test_P11_a_killed_worker_of_ray_costs_a_start(tmp_path: pathlib.Path) -> None:
    out = run("ray", "ray_engine_worker.py", tmp_path)
    assert "rank 1 was killed, or its node was lost" in out
    starts = [(tmp_path / f"log{rank}").read_text().splitlines() for rank in range(2)]
    assert starts[0] == starts[1] and starts[0][0] == "0 2"
    assert starts[0][1:] in (["1 2"], ["2 2"])  # killed while epoch 1 was still being written, or just after


@pytest.mark.server
def test_P11_R51_workers_on_two_nodes_save_into_a_bucket_and_a_new_driver_goes_on(tmp_path: pathlib.Path) -> None:
    with moto() as server, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short:
        words = ("ray", "ray_engine_worker.py", tmp_path, f"s3://{BUCKET}/engine")
        # folders of their own, so that no other program takes the cluster for that of this machine
        run(*words, "killed", expect=-signal.SIGKILL, **server.env, RAY_TMPDIR=f"{short}/a")
        run(*words, "again", **server.env, RAY_TMPDIR=f"{short}/b")
    starts = [(tmp_path / f"log{rank}").read_text().splitlines() for rank in range(2)]
    assert [lines[0] for lines in starts] == ["0 0 0/1", "0 1 0/1"]  # each on a node of its own
    assert [lines[1:] for lines in starts] == [["2 0 0/2"], ["2 0 1/2"]]  # next to each other, from the bucket


def test_without_the_library_the_error_says_what_to_install() -> None:
    program = "from pawl import train; train.ScalingConfig(engine='ray'); import pawl.train.ray_engine"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'libpawl[ray]'" in done.stderr
