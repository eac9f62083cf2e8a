# SPDX-License-Identifier: Apache-2.0
"""Workers that raise, are killed, stop, hang or disagree; jobs that are asked to end; groups that grow smaller."""

from __future__ import annotations

import contextlib
import copy
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest
import torch
from common import result_of_failure
from waiting import HANG_SECONDS, exists, wait_until

import pawl
from pawl import _signals, train
from pawl.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, TorchTrainer, group
from pawl.train._worker import _report_error
from pawl.train.channel import Host
from pawl.train.engine import Job, LocalEngine, Outcome
from pawl.train.group import Group

pytestmark = pytest.mark.long

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CPU = {"CPU": 0.1}


def fit(
    function: Any, folder: pathlib.Path, kind: Any = DataParallelTrainer, scaling: Any = None, **failures: Any
) -> train.Result:
    failures.setdefault("heartbeat_timeout", HANG_SECONDS)
    run = RunConfig("run", folder, FailureConfig(**failures), options={"timeouts": pawl.Timeouts(commit=HANG_SECONDS)})
    scaling = scaling or ScalingConfig(num_workers=2, resources_per_worker=CPU)
    return kind(function, train_loop_config={}, scaling_config=scaling, run_config=run).fit()


LIMIT = 10_000.0  # seconds of the driver's clock, which a test puts forward
STEP = 0.6 * LIMIT


def drive_clock(monkeypatch: pytest.MonkeyPatch, may_pass: Callable[[group.Look], bool]) -> None:
    """STEP seconds pass for the driver before each look at which they may."""
    ahead, problem = [0.0], group.Look.problem

    def look(self: group.Look) -> group.Trouble | None:
        ahead[0] += STEP if may_pass(self) else 0.0
        return problem(self)

    monkeypatch.setattr(
        group, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep)
    )
    monkeypatch.setattr(group.Look, "problem", look)
    monkeypatch.setattr(group, "_ANSWER_SECONDS", float(HANG_SECONDS))


def is_stopped(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def failing(config: dict[str, Any]) -> None:
    context = train.get_context()
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    assert start == context.attempt - 1  # every attempt has made one epoch
    rows = pathlib.Path(context.trial_dir, "rows")  # of rank 0, which keeps the metrics
    rows.mkdir(exist_ok=True)
    for epoch in range(start, 4):
        if context.get_world_rank() == 0:
            (rows / str(epoch)).touch()  # the row of the epoch before is kept
        if epoch == context.attempt and context.get_world_rank() == 1:
            exists(rows / str(epoch))
            if context.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            elif context.attempt == 2:
                raise KeyError("no such thing")
            elif context.attempt == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}), wait=True)


def test_R55_a_killed_a_raising_and_a_stopped_worker_cost_a_start_each(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[Any] = [None]

    def may_pass(look: group.Look) -> bool:
        """While rank 1 is stopped, from one sign of life of rank 0 to the next."""
        beat, last = look._channel.get("beat/0"), beats[-1]
        beats[:] = [beat]
        return bool(is_stopped(look.pid(1)) and beat != last)

    drive_clock(monkeypatch, may_pass)
    result = fit(failing, tmp_path, max_failures=3, heartbeat_timeout=LIMIT)
    assert result.error is None
    assert result.failures == [
        "rank 1 was killed by SIGKILL",
        "rank 1 raised KeyError: 'no such thing'",
        "rank 1 gave no sign of life for 10000 s, and was killed",
    ]
    assert result.checkpoint is not None
    last = result.checkpoint.to_dict()
    assert (last["epoch"], last["_current_checkpoint_id"]) == (3, 3)
    assert [row["epoch"] for row in result.metrics_history] == [0, 1, 2, 3]


def one_report(config: dict[str, Any]) -> None:
    train.report({"epoch": 1})


def test_times_of_failures_are_text_or_timedelta(tmp_path: pathlib.Path) -> None:
    longest = timedelta(seconds=HANG_SECONDS)
    times: dict[str, Any] = {"heartbeat_timeout": "2h", "report_timeout": longest, "progress_timeout": longest}
    assert fit(one_report, tmp_path, grace_seconds="30s", **times).metrics == {"epoch": 1}


def test_a_fit_that_an_exception_ends_leaves_no_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scalars: dict[str, float], step: int) -> None:
        raise RuntimeError("the logger is down")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    run = RunConfig("run", tmp_path / "runs", logger=broken)
    one = ScalingConfig(num_workers=1, resources_per_worker=CPU)
    with pytest.raises(RuntimeError, match="the logger is down"):
        DataParallelTrainer(one_report, train_loop_config={}, scaling_config=one, run_config=run).fit()
    assert [path.name for path in (tmp_path / "tmp").glob("pawl-train-*")] == []


def raising(config: dict[str, Any]) -> None:
    train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"epoch": 0}), wait=True)
    raise RuntimeError(f"attempt {train.get_context().attempt}")


def test_after_max_failures_fit_raises_an_error_that_has_the_result(tmp_path: pathlib.Path) -> None:
    one = ScalingConfig(num_workers=1, resources_per_worker=CPU)
    result = result_of_failure(fit, raising, tmp_path, scaling=one, max_failures=1)
    assert result.error is not None
    assert result.metrics == {"a": 1}
    assert result.best_checkpoints[0][1] == {"a": 1}
    assert result.error.reason == "rank 0 raised RuntimeError: attempt 2"
    assert result.failures == [f"rank 0 raised RuntimeError: attempt {n}" for n in (1, 2)]
    assert "in raising\n" in str(result.error)  # where
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 0
    for error in (copy.copy(result.error), pickle.loads(pickle.dumps(result.error))):
        assert isinstance(error, train.TrainingFailedError) and str(error) == str(result.error)
        assert (error.reason, error.reasons) == (result.error.reason, result.failures)
        assert error.traceback == result.error.traceback and error.result is not None
        assert error.result.metrics == {"a": 1} and error.result.checkpoint is not None
        assert error.result.checkpoint.to_dict()["epoch"] == 0


@pytest.mark.parametrize("missing", ["room", "start"])
def test_workers_that_cannot_start_again_are_a_failure_that_has_the_result(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    one = ScalingConfig(num_workers=1, resources_per_worker=CPU)
    if missing == "room":
        found = [1, 0]
        monkeypatch.setattr(LocalEngine, "available", lambda self, scaling: found.pop(0))
    else:
        start = LocalEngine.start

        def starts_once(self: LocalEngine, job: Job) -> None:
            if job.attempt == 2:
                raise pawl.UsageError("no place, but room for 0 workers")
            start(self, job)

        monkeypatch.setattr(LocalEngine, "start", starts_once)
    result = result_of_failure(fit, raising, tmp_path, scaling=one, max_failures=1)
    assert result.error is not None and isinstance(result.error.__cause__, pawl.UsageError)
    (reason,) = result.failures
    assert re.match(r"rank 0 raised RuntimeError: attempt 1; the workers could not start again: .*room for 0", reason)
    assert result.error.reason == reason and "in raising\n" in str(result.error)
    assert result.metrics == {"a": 1} and result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 0


def replacing(config: dict[str, Any]) -> None:
    train.report({"a": 1})
    folder = pathlib.Path(train.get_context().trial_dir)
    folder.rename(f"{folder}.old")
    folder.touch()
    raise RuntimeError("the run is a file")


def test_a_run_that_cannot_be_read_does_not_hide_the_failure(tmp_path: pathlib.Path) -> None:
    one = ScalingConfig(num_workers=1, resources_per_worker=CPU)
    result = result_of_failure(fit, replacing, tmp_path, scaling=one)
    assert result.error is not None and result.error.reason == "rank 0 raised RuntimeError: the run is a file"
    assert (result.checkpoint, result.metrics, result.failures) == (None, {"a": 1}, [result.error.reason])
    (note,) = result.error.__notes__
    assert "could not be read" in note and "run: is not a folder" in note


def test_a_script_whose_training_fails_ends_with_another_status_than_0(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pawl import train\n"
        "def train_func(config):\n"
        "    raise ZeroDivisionError('on purpose')\n"
        "scaling = train.ScalingConfig(resources_per_worker={'CPU': 0.1})\n"
        f"run = train.RunConfig('run', {str(tmp_path)!r})\n"
        "train.DataParallelTrainer(train_func, scaling_config=scaling, run_config=run).fit()\n"
        "print('went on')\n"
    )
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert "TrainingFailedError: rank 0 raised ZeroDivisionError: on purpose" in ended.stderr


class Seen:
    """An engine whose agent has seen two workers end at once, with a status that says nothing, and names the lower one."""

    def start(self, job: Job) -> None:
        pass

    def poll(self) -> Outcome:
        return Outcome(False, 0, "rank 0 ended with exit status 1")


def test_of_several_that_raise_the_first_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run into its end."""
    host = Host()
    for rank, error in ((1, KeyError("no such thing")), (0, RuntimeError("connection closed by peer"))):
        monkeypatch.setenv("RANK", str(rank))
        _report_error(host.attempt(1), error)
    run = RunConfig("run", tmp_path)
    trainer = DataParallelTrainer(unequal, run_config=run)
    watch = _signals.acquire(0.0)
    try:
        group = Group(Seen(), host, run, watch)  # type: ignore[arg-type]
        group.run(trainer._job(b"", 2, 1, host, str(tmp_path / "run"), None, 0))
    finally:
        _signals.release()
    assert group.reasons == ["rank 1 raised KeyError: 'no such thing'"]


def unequal(config: dict[str, Any]) -> None:
    for _ in range(2 if train.get_context().get_world_rank() == 1 else 3):
        train.report({})


def test_unequal_numbers_of_reports_are_named_and_nothing_is_started_again(tmp_path: pathlib.Path) -> None:
    result = result_of_failure(fit, unequal, tmp_path, max_failures=-1)
    assert result.error is not None
    assert result.error.reason == (
        "report 3: rank 0 has reached it, but the train function of rank 1 has ended after 2; "
        "all workers must report equally often"
    )
    assert len(result.failures) == 1


def late(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        time.sleep(HANG_SECONDS)
    train.report({})


def test_a_report_that_not_all_come_to_is_named_at_its_deadline(tmp_path: pathlib.Path) -> None:
    result = result_of_failure(fit, late, tmp_path, report_timeout=3.0)
    assert result.error is not None
    assert "report 1: not all 2 workers reached it within 3 s" in result.error.reason
    assert "rank 1 is at 0" in result.error.reason


def hanging(config: dict[str, Any]) -> None:
    """Gets on without a report for longer than the limit, by the driver's clock, then hangs, the first time."""
    context = train.get_context()
    train.report({"attempt": context.attempt})
    if context.attempt > 1:
        return
    folder = pathlib.Path(config["folder"])
    while not (folder / "enough").exists():
        context.alive()
        time.sleep(0.1)
    _ = (folder / f"got-on-{context.get_world_rank()}").touch(), time.sleep(HANG_SECONDS)  # here


def test_P16_a_hang_of_all_workers_at_once_is_noticed_and_says_where(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs: list[list[Any]] = []
    looks: list[group.Look] = []

    def may_pass(look: group.Look) -> bool:
        """Of the first start: from one sign of both workers to the next, until that took longer than the limit; then
        while they hang."""
        looks.append(look)
        if look is not looks[0]:
            return False
        if (tmp_path / "enough").exists():
            return len(list(tmp_path.glob("got-on-*"))) == 2
        sign = [look._channel.get(f"on/{rank}") for rank in range(2)]
        if None in sign or (signs and any(now == before for now, before in zip(sign, signs[-1], strict=True))):
            return False
        signs.append(sign)
        if len(signs) == 5:
            (tmp_path / "enough").touch()
        return True

    drive_clock(monkeypatch, may_pass)
    scaling = ScalingConfig(num_workers=2, resources_per_worker=CPU)
    failures = FailureConfig(max_failures=1, progress_timeout=LIMIT, heartbeat_timeout=100 * LIMIT)
    run = RunConfig("run", tmp_path, failures)
    config = {"folder": str(tmp_path)}
    result = DataParallelTrainer(hanging, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    assert result.error is None
    assert sorted(path.name for path in tmp_path.glob("got-on-*")) == ["got-on-0", "got-on-1"]  # that was not a hang
    assert len(result.failures) == 1
    words = r"no worker came to a report for 10000 s: rank 0 is at 1; rank 1 is at 1 \(rank 0 in hanging \(.+:(\d+)\)"
    found = re.match(words, result.failures[0])  # the file's name is lost when a function travels by value
    assert found, result.failures
    assert "# here" in pathlib.Path(__file__).read_text().splitlines()[int(found[1]) - 1]
    assert result.metrics == {"attempt": 2}


PROGRAM = """
import os, signal, sys, time
import torch
from pawl import train
from pawl.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train_func(config):
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    rank = train.get_context().get_world_rank()
    if rank == 0:
        print("starts at", start, flush=True)
    for epoch in range(start, start + 3 if start else 10_000):
        time.sleep(0.05)
        train.report({}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "w": torch.ones(10)}))
        if rank == 0:
            print("epoch", epoch, flush=True)

result = DataParallelTrainer(
    train_func,
    train_loop_config={},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1}),
    run_config=RunConfig("run", sys.argv[1], FailureConfig(grace_seconds=float(sys.argv[2]) or None)),
).fit()
print("ended", result.checkpoint.to_dict()["epoch"], flush=True)
"""


def start(folder: pathlib.Path, grace: float, text: str = PROGRAM) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, str(program), str(folder), str(grace)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("number", "all_of_it"), [(signal.SIGTERM, False), (signal.SIGUSR1, True)])
def test_R41_R153_a_job_that_is_told_to_end_saves_once_more_and_goes_on_later(
    tmp_path: pathlib.Path, number: signal.Signals, all_of_it: bool
) -> None:
    """The driver alone gets the signal, or every process; the exit status asks for a new start, which continues."""
    job = start(tmp_path, HANG_SECONDS)
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith("epoch 5"):
            break
    os.killpg(job.pid, number) if all_of_it else job.send_signal(number)
    out, err = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == train.REQUEUE_EXIT_CODE == 75, err
    seen = [int(line.split()[1]) for line in out.splitlines() if line.startswith("epoch")]
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert (manager.latest_step() or 0) - 1 > max(seen, default=5)  # one more than was reported
        newest = (manager.latest_step() or 0) - 1
    if all_of_it:
        return
    again = start(tmp_path, 0.0)
    out, err = again.communicate(timeout=HANG_SECONDS)
    assert again.returncode == 0, err
    assert f"starts at {newest + 1}\n" in out
    assert f"ended {newest + 3}\n" in out


def alive(folder: pathlib.Path) -> list[str]:
    """Processes with the environment of a test's own."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PAWL_TEST_OF={folder}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_R41_R153_without_any_grace_the_next_start_goes_on_from_the_newest_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAWL_TEST_OF", str(tmp_path))
    job = start(tmp_path, 0.0)
    assert job.stdout is not None
    assert next(line for line in job.stdout if line.startswith("epoch 5"))
    job.terminate()

    def all_gone() -> bool:
        left = alive(tmp_path)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        job.poll()
        return not left

    wait_until(all_gone)
    job.communicate(timeout=HANG_SECONDS)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True, ranks=pawl.Ranks(rank=0, world_size=1)) as manager:
        newest = (manager.latest_step() or 0) - 1
        assert newest >= 4 and manager.verify() == []  # the one after it was still being written
    again = start(tmp_path, 0.0)
    out, err = again.communicate(timeout=HANG_SECONDS)
    assert again.returncode == 0, err
    assert f"starts at {newest + 1}\n" in out


def test_workers_end_when_their_driver_is_gone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAWL_TEST_OF", str(tmp_path))
    job = start(tmp_path, 0.0)
    assert job.stdout is not None
    assert next(line for line in job.stdout if line.startswith("epoch 2"))
    workers = set(alive(tmp_path)) - {str(job.pid)}
    assert len(workers) >= 2
    job.kill()
    job.wait()
    wait_until(lambda: not workers & set(alive(tmp_path)), "the end of the workers")
    job.stdout.close()


def test_R153_with_too_little_time_the_job_ends_in_it_with_what_there_is(tmp_path: pathlib.Path) -> None:
    program = PROGRAM.replace("time.sleep(0.05)", "time.sleep(0.05 if epoch < 2 else 100_000)")
    program = program.replace('"w": torch.ones(10)}))', '"w": torch.ones(10)}), wait=True)')
    assert "wait=True" in program
    job = start(tmp_path, 2.0, program)
    assert job.stdout is not None
    assert next(line for line in job.stdout if line.startswith("epoch 1"))  # which is durable
    began = time.monotonic()
    job.terminate()
    _, err = job.communicate(timeout=HANG_SECONDS)
    assert job.returncode == train.REQUEUE_EXIT_CODE, err
    assert time.monotonic() - began > 1
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.latest_step() == 2


def sharded(config: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor, zeros

    context = train.get_context()
    mesh = init_device_mesh("cpu", (context.get_world_size(),))
    whole = torch.arange(10.0)
    checkpoint = train.get_checkpoint()
    if context.attempt == 1:
        assert (checkpoint, context.get_world_size()) == (None, 2)
        train.report({}, checkpoint=Checkpoint.from_dict({"w": distribute_tensor(whole, mesh, [Shard(0)])}), wait=True)
        os.kill(os.getpid(), signal.SIGKILL)
    assert checkpoint is not None
    assert context.get_world_size() == 1
    state = {"w": zeros(10, device_mesh=mesh, placements=[Shard(0)])}
    checkpoint.restore(state)
    assert torch.equal(state["w"].full_tensor(), whole)
    assert torch.equal(checkpoint.to_dict()["w"], whole)
    train.report({"workers": 1})


def test_R160_after_a_failure_fewer_workers_go_on_where_there_are_fewer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R160: what two workers saved in pieces is restored by one."""
    found = [2, 1]
    monkeypatch.setattr(LocalEngine, "available", lambda self, scaling: found.pop(0))
    scaling = ScalingConfig(num_workers=2, min_workers=1, resources_per_worker=CPU)
    result = fit(sharded, tmp_path, TorchTrainer, scaling, max_failures=1)
    assert result.error is None, result.error
    assert result.metrics == {"workers": 1}
    assert len(result.failures) == 1
