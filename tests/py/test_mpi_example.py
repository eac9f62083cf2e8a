# SPDX-License-Identifier: Apache-2.0
"""R160, P11: the heat of a plate under real Open MPI and MPICH: killed, resumed on other numbers of ranks, the same field."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from waiting import HANG_SECONDS

from cli import static_library

pytestmark = pytest.mark.launcher

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
SOURCE = ROOT / "examples" / "mpi" / "heat2d.c"
PAWL = os.environ.get("PAWL_BIN", "pawl")
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "mpich": ["mpirun.mpich"],
}
STEPS, EVERY = 60, 10
SIZE = "97x61"  # in no grid are all boxes of one size


class Job:
    """The example built for one MPI, and its launcher."""

    def __init__(self, mpi: str, folder: pathlib.Path) -> None:
        compiler = shutil.which(f"mpicc.{mpi}")
        if not compiler or not shutil.which(LAUNCHERS[mpi][0]):
            pytest.skip(f"no {mpi}")
        self.launcher = LAUNCHERS[mpi]
        self.program = folder / "heat2d"
        # as the head of the source says
        plain = ["-std=gnu17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
        plain += [str(SOURCE), *static_library(), "-o", str(self.program)]
        built = subprocess.run([compiler, *plain], capture_output=True, text=True, timeout=HANG_SECONDS)
        assert built.returncode == 0, built.stderr

    def run(self, ranks: int, run: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
        command = [*self.launcher, "-n", str(ranks), str(self.program), "--size", SIZE]
        command += ["--steps", str(STEPS), "--every", str(EVERY), *options, str(run)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="module", params=sorted(LAUNCHERS))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def undisturbed(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The last field and what the program prints of it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = job.run(4, folder / "run")
    assert done.returncode == 0, done.stderr
    return field(folder / "run"), last_line(done)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    plates = [line for line in done.stdout.splitlines() if line.startswith("plate ")]
    assert len(plates) == 1, done.stdout + done.stderr
    return plates[0]


def field(run: pathlib.Path) -> bytes:
    """The bytes of the complete plate in the newest checkpoint."""
    target = run.parent / "field.safetensors"
    target.unlink(missing_ok=True)
    subprocess.run([PAWL, "export", run, target], check=True, capture_output=True, timeout=HANG_SECONDS)
    image = target.read_bytes()
    begin = 8 + int.from_bytes(image[:8], "little")
    heat = json.loads(image[8:begin])["heat"]
    assert heat["dtype"] == "F64" and heat["shape"] == [97, 61]
    first, end = heat["data_offsets"]
    assert end - first == 97 * 61 * 8
    return image[begin + first : begin + end]


@pytest.mark.parametrize(
    ("die", "ranks"),
    [("30:2", 4), ("40:0", 2), ("35:1", 6), ("40:all", 1)],
    ids=["rank2-4", "rank0-2", "rank1-6", "all-1"],
)
def test_R160_mpi_job_killed_and_resumed_ends_with_the_same_field(
    job: Job, undisturbed: tuple[bytes, str], die: str, ranks: int, tmp_path: pathlib.Path
) -> None:
    run = tmp_path / "run"
    killed = job.run(4, run, "--die", die)
    assert killed.returncode != 0
    assert "plate " not in killed.stdout
    resumed = job.run(ranks, run)
    assert resumed.returncode == 0, resumed.stderr
    found = re.search(r"resumed after step (\d+) of 4 ranks on (\d) ranks", resumed.stdout)
    assert found, resumed.stdout
    # two saves back at the most: the one that was cut off, and one more that was still being written
    assert int(found[1]) in range(int(die.split(":")[0]) // EVERY * EVERY - 2 * EVERY, STEPS, EVERY)
    assert int(found[2]) == ranks
    assert ("dropped: cells: kept per rank by 4 ranks" in resumed.stdout) == (ranks != 4)
    assert last_line(resumed) == undisturbed[1]
    assert field(run) == undisturbed[0]


def test_R160_mpi_example_keeps_a_value_for_each_rank(job: Job, tmp_path: pathlib.Path) -> None:
    """On as many ranks, what a rank has counted continues: as much as in a run that was never disturbed."""
    straight = job.run(3, tmp_path / "straight")
    assert job.run(3, tmp_path / "run", "--die", "45:1").returncode != 0
    resumed = job.run(3, tmp_path / "run")

    def cells(done: subprocess.CompletedProcess[str]) -> list[str]:
        return sorted(line for line in done.stdout.splitlines() if line.endswith("cells worked out"))

    assert len(cells(straight)) == 3
    assert cells(resumed) == cells(straight)


def test_mpi_example_of_another_length_ends_with_another_field(
    job: Job, undisturbed: tuple[bytes, str], tmp_path: pathlib.Path
) -> None:
    done = job.run(2, tmp_path / "run", "--steps", "59")
    assert last_line(done).split()[1] != undisturbed[1].split()[1]
    assert field(tmp_path / "run") != undisturbed[0]


def test_mpi_example_says_why_it_cannot_save(job: Job, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = job.run(2, tmp_path / "file" / "run")
    assert done.returncode != 0
    assert "heat2d: rank " in done.stderr
