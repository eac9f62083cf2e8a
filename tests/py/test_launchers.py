# SPDX-License-Identifier: Apache-2.0
"""Who am I: three real processes under torchrun, Open MPI and MPICH, and the variables of launchers that need a cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from ports import free_port
from waiting import HANG_SECONDS

import pawl

pytestmark = pytest.mark.launcher

# Whatever started the tests has no say in them.
FAMILIES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "MPI_LOCAL",
    "MV2_",
    "SLURM_",
    "FLUX_",
    "PALS_",
    "JAX_",
    "TORCHELASTIC_",
    "GROUP_",
)
PLAIN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "JOB_COMPLETION_INDEX"}

# Every process writes what it is into a file of its own. Those that must fail do so the first time, when all three
# have written: the first one to end takes the others with it.
PROGRAM = """
import dataclasses, json, os, pathlib, sys, time
import pawl
me = pawl.rank_identify()
folder = pathlib.Path(sys.argv[1])
path = folder / f"{os.getpid()}.json"
path.with_suffix(".new").write_text(json.dumps(dataclasses.asdict(me)))
path.with_suffix(".new").rename(path)
if "fail" in sys.argv[2:] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while len(list(folder.glob("*.json"))) < 3:
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(FAMILIES) or name in PLAIN:
            monkeypatch.delenv(name)


def environment(temporary: pathlib.Path) -> dict[str, str]:
    path = str(pathlib.Path(pawl.__file__).parent.parent)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | root | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


def start(folder: pathlib.Path, launcher: list[str], *words: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    program = folder.parent / "program.py"
    program.write_text(PROGRAM)
    command = [*launcher, str(program), str(folder), *words]
    # a session of its own, so that what a launcher has started ends with it
    return subprocess.Popen(
        command,
        env=environment(folder.parent),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(folder: pathlib.Path, process: subprocess.Popen[str]) -> list[pawl.Rank]:
    """What the processes said, in the order of their ranks."""
    try:
        out, _ = process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, out
    said = [pawl.Rank(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(said, key=lambda who: who.rank)


def run(folder: pathlib.Path, launcher: list[str], *words: str) -> list[pawl.Rank]:
    return finish(folder, start(folder, launcher, *words))


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def check_three_on_a_node(said: list[pawl.Rank], launcher: str) -> None:
    assert [(who.rank, who.world_size) for who in said] == [(0, 3), (1, 3), (2, 3)]
    assert [(who.local_rank, who.local_world_size, who.node_rank) for who in said] == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    assert {who.launcher for who in said} == {launcher}
    assert len({who.attempt for who in said}) == 1


def test_without_a_launcher_it_is_the_only_process() -> None:
    assert pawl.rank_identify() == pawl.Rank(0, 1, 0, 1, 0, "", "")


def test_ranks_of_real_torchrun(tmp_path: pathlib.Path) -> None:
    first = run(tmp_path / "1", torchrun("--standalone", "--nproc-per-node=3"))
    second = run(tmp_path / "2", torchrun("--standalone", "--nproc-per-node=3"))
    check_three_on_a_node(first, "torchrun")
    check_three_on_a_node(second, "torchrun")
    assert first[0].attempt.startswith("torchrun:")
    assert first[0].attempt != second[0].attempt


def test_a_restart_by_torchrun_is_another_attempt(tmp_path: pathlib.Path) -> None:
    """Even where the run id and the port are the same in all starts."""
    fixed = ["--nnodes=1", "--node-rank=0", "--nproc-per-node=3", "--max-restarts=1", "--master-addr=127.0.0.1"]
    fixed += [f"--master-port={free_port()}", "--rdzv-id=none"]
    attempts = set()
    for folder in ("1", "2"):
        said = run(tmp_path / folder, torchrun(*fixed), "fail")
        mine = {who.attempt for who in said}
        assert len(mine) == 2
        for attempt in mine:
            check_three_on_a_node([who for who in said if who.attempt == attempt], "torchrun")
        attempts |= mine
    assert len(attempts) == 4


def test_two_agents_of_torchrun_have_nothing_that_names_a_start(tmp_path: pathlib.Path) -> None:
    options = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=mine"]
    options.append(f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    agents = [start(tmp_path / "all", torchrun(*options)) for _ in range(2)]
    try:
        finish(tmp_path / "all", agents[0])
        said = finish(tmp_path / "all", agents[1])
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
    assert [(who.rank, who.world_size) for who in said] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [(who.local_rank, who.local_world_size, who.node_rank) for who in said] == [
        (0, 2, 0),
        (1, 2, 0),
        (0, 2, 1),
        (1, 2, 1),
    ]
    assert {who.attempt for who in said} == {""}


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")
def test_ranks_of_real_openmpi(tmp_path: pathlib.Path) -> None:
    mpirun = ["mpirun.openmpi", "--oversubscribe", "-n", "3", sys.executable]
    first, second = run(tmp_path / "1", mpirun), run(tmp_path / "2", mpirun)
    check_three_on_a_node(first, "openmpi")
    check_three_on_a_node(second, "openmpi")
    assert first[0].attempt != second[0].attempt or first[0].attempt == ""


@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="MPICH is not installed")
def test_ranks_of_real_mpich(tmp_path: pathlib.Path) -> None:
    mpiexec = ["mpiexec.hydra", "-n", "3", sys.executable]
    first, second = run(tmp_path / "1", mpiexec), run(tmp_path / "2", mpiexec)
    check_three_on_a_node(first, "mpich")
    check_three_on_a_node(second, "mpich")
    assert first[0].attempt == second[0].attempt == ""


def set_slurm(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    step = {"job_id": 4711, "step_id": 0, "ntasks": 6, "step_num_tasks": 6, "step_tasks_per_node": "2(x3)"}
    for name, value in (step | values).items():
        monkeypatch.setenv(f"SLURM_{name.upper()}", str(value))


def test_ranks_of_slurm_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    set_slurm(monkeypatch, procid=3, localid=1, nodeid=1)
    assert pawl.rank_identify() == pawl.Rank(3, 6, 1, 2, 1, "slurm", "slurm:4711.0.0")
    set_slurm(monkeypatch, procid=5, localid=1, nodeid=2)
    assert pawl.rank_identify() == pawl.Rank(5, 6, 1, 2, 2, "slurm", "slurm:4711.0.0")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert pawl.rank_identify().attempt == "slurm:4711.0.1"
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    assert pawl.rank_identify().attempt == "slurm:4711.1.1"


def test_an_allocation_of_slurm_is_no_job_of_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shell of salloc there is no rank, in the script of sbatch one, but no step."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_NTASKS", "6")
    assert pawl.rank_identify().world_size == 1
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert pawl.rank_identify() == pawl.Rank(0, 1, 0, 1, 0, "", "")


def test_what_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    assert pawl.rank_identify() == pawl.Rank(1, 2, None, None, None, "jax", "")
    with pytest.raises(dataclasses.FrozenInstanceError):
        pawl.rank_identify().rank = 0  # type: ignore[misc]


def test_contradictions_name_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(pawl.UsageError, match="^WORLD_SIZE: expected together with RANK, found RANK=1 alone$"):
        pawl.rank_identify()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(pawl.UsageError, match="^RANK: expected less than WORLD_SIZE, which is 1, found 1$"):
        pawl.rank_identify()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(pawl.UsageError, match='^RANK: expected a whole number .*, found "first"$'):
        pawl.rank_identify()
