# SPDX-License-Identifier: Apache-2.0
"""fit in processes that a launcher started: real mpirun of Open MPI and MPICH, real srun and sbatch, real torchrun,
and Slurm's variables by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from slurm import Hasten, slurm
from test_launchers import FAMILIES, PLAIN
from waiting import HANG_SECONDS, wait_until

import pawl
from pawl import train
from pawl.train import launched

pytestmark = pytest.mark.launcher

PROGRAM = """
import atexit, os, pathlib, signal, sys, time
import torch
import pawl
from pawl import train
from pawl.loggers import PrometheusFile
from pawl.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig, TorchTrainer

folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]

def outlive_rank_0():
    while pathlib.Path("/proc", (folder / "pid0").read_text()).exists():
        time.sleep(0.02)

def train_func(config):
    context = train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    with open(folder / f"log{rank}", "a") as log:
        log.write(f"{start} of {world}, {context.get_local_rank()} of {context.get_local_world_size()}\\n")
    if what == "requeue" and rank == 1:
        atexit.register(time.sleep, 3)  # the launcher has seen the other one leave long before
    if what == "apart" and rank == 0:
        (folder / "pid0").write_text(str(os.getpid()))
    if what == "apart" and rank == 1:
        atexit.register(outlive_rank_0)
    again = what == "requeue" and "SLURM_RESTART_COUNT" in os.environ
    for epoch in range(start, start + 2 if again else 100_000 if what in ("signal", "apart", "requeue") else 4):
        if epoch == 2 and rank == 0 and what == "raise":
            (folder / "second").touch()  # the row of the epoch before is there
        if epoch == 2 and rank == 1 and what == "raise":
            while not (folder / "second").exists():
                time.sleep(0.02)
            raise KeyError("no such thing")
        if epoch == 2 and rank == 1 and what == "unequal":
            return
        if epoch == 2 and rank == 1 and what == "die" and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.ones(1) * (rank + 1)
        if what != "unequal":
            torch.distributed.all_reduce(total)
        part = pawl.Shard(torch.full((2,), float(rank)), (2 * world,), (2 * rank,))
        values = {"epoch": epoch, "total": total, "part": part}
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict(values), wait=what == "die")
        if rank == 0:
            print("epoch", epoch, flush=True)

trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=int(sys.argv[3])),
    run_config=RunConfig(
        "run",
        folder / "runs",
        FailureConfig(report_timeout=900, heartbeat_timeout=1800),
        logger=PrometheusFile(folder / "pawl.prom"),
    ),
)
try:
    result = trainer.fit()
except train.TrainingFailedError as error:
    found = error.result
    epoch = None if found.checkpoint is None else found.checkpoint.to_dict()["epoch"]
    words = ["failed", epoch, found.metrics, len(found.metrics_history), found.error is error]
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    raise
last = result.checkpoint.to_dict()
words = ["ended", last["epoch"], last["total"].item(), last["part"].tolist(), result.metrics, result.error]
os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # at once: ranks share this pipe
"""
ENDED = "ended 3 3.0 [0.0, 0.0, 1.0, 1.0] {'epoch': 3} None"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith((*FAMILIES, "MASTER_")) or name in PLAIN:
            monkeypatch.delenv(name)


def start(folder: pathlib.Path, launcher: list[str], what: str, workers: int = 1, **more: str) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    path = str(pathlib.Path(pawl.__file__).parent.parent)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    quiet = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    # a session of its own, so that what a launcher has started ends with it
    return subprocess.Popen(
        [*launcher, str(program), str(folder), what, str(workers)],
        env=os.environ | root | quiet | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, _ = process.communicate(timeout=HANG_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return out


def starts(folder: pathlib.Path) -> list[list[int]]:
    """Of each rank the epochs that it began with."""
    found = []
    for rank in range(2):
        lines = (folder / f"log{rank}").read_text().splitlines()
        assert all(line.endswith(f" of 2, {rank} of 2") for line in lines)
        found.append([int(line.split()[0]) for line in lines])
    return found


MPIRUN = ["mpirun.openmpi", "--oversubscribe", "-n", "2", sys.executable]
MPICH = ["mpiexec.hydra", "-n", "2", sys.executable]


def test_P11_R55_under_mpirun_a_killed_worker_ends_the_job_and_the_next_one_goes_on(tmp_path: pathlib.Path) -> None:
    first = start(tmp_path, MPIRUN, "die", 2)
    out = finish(first)
    assert first.returncode not in (0, train.REQUEUE_EXIT_CODE), out
    assert "ended 3" not in out
    again = start(tmp_path, MPIRUN, "die")
    out = finish(again)
    assert again.returncode == 0, out
    assert starts(tmp_path) == [[0, 2], [0, 2]]
    assert [line for line in out.splitlines() if line.startswith("ended")] == [ENDED, ENDED]  # both have the result
    assert not list(tmp_path.glob(".pawl-meet-*"))


def told(job: subprocess.Popen[str], tell: list[str] | None, epoch: int = 3) -> tuple[int, str]:
    """Lets it train until an epoch, tells it to end; the last epoch that was heard of, and all that it said."""
    assert job.stdout is not None
    for line in job.stdout:
        if line.strip() == f"epoch {epoch}":
            break
    else:
        pytest.fail(f"it has ended with {job.wait()}")
    if tell is None:
        job.send_signal(signal.SIGUSR1)
    else:
        subprocess.run(tell, check=True)
    out = finish(job)
    return max((int(line.split()[1]) for line in out.splitlines() if line.startswith("epoch")), default=epoch), out


def check_told(folder: pathlib.Path, job: subprocess.Popen[str], seen: int, out: str) -> None:
    assert job.returncode == train.REQUEUE_EXIT_CODE, out
    with pawl.CheckpointManager(
        folder / "runs" / "run", read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)
    ) as manager:
        assert manager.checkpoints()[-1].world_size == 2
        assert (manager.latest_step() or 0) - 1 > seen  # one more than was reported


# Of processes that leave at once with one code, whatever they are, MPICH's launcher makes 0 now and then: there they
# leave one after the other.
@pytest.mark.parametrize(("launcher", "what"), [(MPIRUN, "signal"), (MPICH, "apart")], ids=["openmpi", "mpich"])
def test_R41_R153_under_mpirun_a_job_that_is_told_to_end_saves_once_more(
    tmp_path: pathlib.Path, launcher: list[str], what: str
) -> None:
    job = start(tmp_path, launcher, what, 2)
    check_told(tmp_path, job, *told(job, None))


JOB = """#!/bin/sh
#SBATCH --ntasks=2 --requeue --job-name=pawl --open-mode=append
srun --kill-on-bad-exit=1 {program}
status=$?
echo status $status
[ $status -eq 75 ] && scontrol requeue $SLURM_JOB_ID
"""


def wait_for_line(path: pathlib.Path, line: str, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    def is_there() -> bool:
        meanwhile()
        return line in lines()

    wait_until(is_there, line)
    return lines()


def test_R41_R153_a_batch_job_of_real_slurm_is_queued_again_by_its_exit_status(tmp_path: pathlib.Path) -> None:
    """The script of docs/reference/train.md."""
    out, script = tmp_path / "out", tmp_path / "job.sh"
    with slurm() as env:
        script.write_text(JOB.format(program=f"{sys.executable} {tmp_path}/program.py {tmp_path} requeue 2"))
        assert start(tmp_path, ["sbatch", "-o", str(out), str(script)], "requeue", 2, **env).wait(HANG_SECONDS) == 0
        wait_for_line(out, "epoch 3")
        tools = os.environ | env
        subprocess.run(["scancel", "-s", "USR1", "-n", "pawl"], env=tools, check=True)
        wait_for_line(out, "status 75")
        lines = wait_for_line(out, "status 0", Hasten("pawl", tools))
    assert [line for line in lines if line.startswith("status")] == ["status 75", "status 0"]
    (_, first), (_, second) = starts(tmp_path)
    assert first == second > 3  # from the checkpoint that the first start has left
    assert f"epoch {first + 1}" in lines


@contextlib.contextmanager
def two_of_slurm(folder: pathlib.Path, what: str, workers: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """As srun -n 2 would start them, without Slurm."""
    step = {"job_id": 4711, "step_id": 0, "ntasks": 2, "step_num_tasks": 2, "step_tasks_per_node": "2", "nodeid": 0}
    jobs = []
    try:
        for rank in range(2):
            values = {f"SLURM_{n.upper()}": str(v) for n, v in {**step, "procid": rank, "localid": rank}.items()}
            jobs.append(start(folder, [sys.executable], what, workers, **values))
        yield jobs
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


def test_P11_an_error_of_one_process_ends_all_of_them_and_is_named(tmp_path: pathlib.Path) -> None:
    with two_of_slurm(tmp_path, "raise") as jobs:
        outs = [finish(job) for job in jobs]
        assert [job.returncode for job in jobs] == [1, 1], outs
    # the first two epochs were reported by all; the save of the second may be over or not
    words = [line for out in outs for line in out.splitlines() if line.startswith("failed")]
    # rank 0 may learn of it while its function waits for rank 1: then it ends without this line
    assert len(words) == 2 - ("rank 0 ends: rank 1 raised KeyError" in outs[0])
    assert all(re.fullmatch(r"failed (None|0|1) \{'epoch': 1\} 2 True", line) for line in words), words
    assert "rank 1 raised KeyError: 'no such thing'" in outs[0] and "rank 1 raised KeyError" in outs[1]
    assert "ended 3" not in outs[0] + outs[1]


def test_P11_unequal_numbers_of_reports_end_all_processes_with_the_reason(tmp_path: pathlib.Path) -> None:
    with two_of_slurm(tmp_path, "unequal") as jobs:
        outs = [finish(job) for job in jobs]
        assert [job.returncode for job in jobs] == [1, 1], outs
    words = "report 3: rank 0 has reached it, but the train function of rank 1 has ended after 2"
    assert all(words in out for out in outs), outs


def test_a_number_of_workers_that_is_not_the_launchers_is_refused(tmp_path: pathlib.Path) -> None:
    with two_of_slurm(tmp_path, "plain", workers=3) as jobs:
        outs = [finish(job) for job in jobs]
        assert [job.returncode for job in jobs] == [1, 1], outs
    assert "num_workers=3, but slurm has started 2 processes" in outs[0]
    with pytest.raises(pawl.UsageError, match="no launcher of several processes has started this one"):
        scaling = train.ScalingConfig(engine="launcher")
        train.DataParallelTrainer(print_nothing, scaling_config=scaling).fit()


def print_nothing() -> None:
    pass


def test_P11_R55_torchrun_starts_a_killed_worker_again_and_it_goes_on(tmp_path: pathlib.Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    job = start(tmp_path, torchrun, "die")
    out = finish(job)
    assert job.returncode == 0, out
    assert starts(tmp_path) == [[0, 2], [0, 2]]
    assert out.count(ENDED) == 2
    lines = (tmp_path / "pawl.prom").read_text().splitlines()
    assert "pawl_checkpoint_step 4.0" in lines and 'pawl_metric{name="epoch"} 3.0' in lines


class Mute:
    """A channel on which no rank is heard."""

    def get_all(self, name: str, n: int) -> list[None]:
        return [None] * n

    def get(self, key: str) -> None:
        return None

    def ended(self, rank: int) -> bool:
        return False


def test_P11_processes_wait_for_a_group_as_long_as_for_each_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store by which they meet is also the one by which torch makes the group; its own limit counts for that."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    alone = pawl.rank_identify()
    ranks = [dataclasses.replace(alone, rank=rank, world_size=2, local_world_size=2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        places = list(pool.map(lambda who: launched._Place(who, str(tmp_path)), ranks))
    assert [place.store.timeout for place in places] == [timedelta(seconds=launched._MEET_SECONDS)] * 2


def test_P11_a_file_of_another_user_is_refused_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "meet"
    file.write_text("{}")
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(pawl.UsageError, match="meet belongs to another user"):
        object.__new__(launched._Place)._find(str(file))


def test_P11_a_rank_that_finds_no_other_reports_whether_the_file_exists(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched, "_MEET_SECONDS", 0.1)
    file = tmp_path / "meet"
    place = object.__new__(launched._Place)
    with pytest.raises(pawl.TimeoutError, match="meet does not exist"):
        place._find(str(file))
    file.write_text("")
    with pytest.raises(pawl.TimeoutError, match="no answer at the address in .*meet"):
        place._find(str(file))


def test_P11_rank_0_does_not_take_itself_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a rank that polls is alive."""
    monkeypatch.setattr(launched, "_SILENT_SECONDS", 0.0)
    driver: Any = object.__new__(launched._Driver)
    driver._channel, driver._world_size = Mute(), 3
    assert driver._silent() == [1, 2]


def test_R41_R153_under_real_slurm_a_job_is_told_to_end_and_goes_on(tmp_path: pathlib.Path) -> None:
    with slurm() as env:
        srun = ["srun", "-n", "2", "--job-name=pawl", sys.executable]
        tell = ["env", f"SLURM_CONF={env['SLURM_CONF']}", "scancel", "-s", "USR1", "-n", "pawl"]
        job = start(tmp_path, srun, "signal", 2, **env)
        check_told(tmp_path, job, *told(job, tell))
        newest = max(int(path.name[-6:]) for path in (tmp_path / "runs" / "run" / "checkpoints").glob("checkpoint_*"))
        again = start(tmp_path, srun, "signal", 2, **env)
        check_told(tmp_path, again, *told(again, tell, newest + 1))
    assert starts(tmp_path) == [[0, newest], [0, newest]]
