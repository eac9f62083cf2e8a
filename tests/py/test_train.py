# SPDX-License-Identifier: Apache-2.0
"""pawl.train with real workers: what is reported, kept, found again and resumed from; and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from common import result_of_failure
from s3_fake import Answer, Fake, serving
from waiting import HANG_SECONDS

import pawl
from pawl import _signals, train
from pawl.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, group
from pawl.train.channel import Channel, Host
from pawl.train.engine import Job, LocalEngine
from pawl.train.session import Session, enter
from pawl.train.trainer import _options

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "train"
TWO = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1})


def by_value(function: Any) -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])


def fit(
    function: Any, folder: pathlib.Path | str, name: str = "run", workers: int = 2, options: Any = None, **keep: Any
) -> train.Result:
    """A run in folder/name. The functions of this file go to the workers by value, as those of a script do."""
    by_value(function)
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1})
    patient = FailureConfig(heartbeat_timeout=HANG_SECONDS)
    run = RunConfig(name, folder, patient, checkpoint_config=CheckpointConfig(**keep), options=options or {})
    return DataParallelTrainer(function, train_loop_config={"a": 1}, scaling_config=scaling, run_config=run).fit()


# ---- the two programs of the guide, complete


def printed(program: str, folder: pathlib.Path) -> str:
    env = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / program)],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stderr
    assert "RuntimeWarning" not in ended.stderr, ended.stderr
    return ended.stdout


def check_printed(text: str, epoch: int, id: int) -> None:
    line = text.strip().splitlines()[-1]
    plain = re.sub(r"tensor\((\[.*?\])\)(?=[,)])", r"\1", line).replace("OrderedDict(", "dict(")
    found = eval(plain, {"__builtins__": {}, "dict": dict})  # noqa: S307 - our own line
    assert list(found) == ["epoch", "model_weights", "_timestamp", "_preprocessor", "_current_checkpoint_id"]
    assert (found["epoch"], found["_preprocessor"], found["_current_checkpoint_id"]) == (epoch, None, id)
    assert isinstance(found["_timestamp"], int)
    weights = found["model_weights"]
    assert sorted(weights) == ["bias", "weight"]  # the model's own names
    assert (np.shape(weights["bias"]), np.shape(weights["weight"])) == ((1,), (1, 4))


def test_R42_R43_R44_R46_R47_R48_the_saving_program_of_the_guide_runs(tmp_path: pathlib.Path) -> None:
    """R42 R43 R44 R46 R47 R48: with pawl in the place of ray; five epochs end with number 4, in the folder of the run."""
    check_printed(printed("report.py", tmp_path), epoch=4, id=4)
    runs = [path.relative_to(tmp_path).parts for path in tmp_path.glob("ray_results/*/*/checkpoints/checkpoint_000005")]
    assert len(runs) == 1
    assert runs[0][1].startswith("train_")


def test_R55_R56_R57_R58_the_resuming_program_of_the_guide_runs(tmp_path: pathlib.Path) -> None:
    """R47 R55 R56 R57 R58: two epochs, then on to four from their checkpoint; its number continues, to 2."""
    check_printed(printed("resume.py", tmp_path), epoch=3, id=2)


@pytest.mark.parametrize(
    ("program", "sha256"),
    [
        ("report.py", "d0198336cd77828b1c23cab14ad4f284e3af4c6d953f453700aa8293f09afbea"),
        ("resume.py", "ebf19f457559dbca9bc56a6cb8d6c3f4d11baa42317ba64dfb10510de471fbb0"),
    ],
)
def test_the_programs_of_the_guide_run_with_pawl_in_the_place_of_ray(program: str, sha256: str) -> None:
    """The checksum is that of the guide's own text, from the first import of another package on. Its own imports are
    those that stand before."""
    head, mark, body = (EXAMPLES / program).read_text().replace("pawl", "ray").partition("\nimport torch\n")
    assert hashlib.sha256((mark + body).encode()).hexdigest() == sha256
    assert [line for line in head.splitlines() if "import " in line] == [
        "import ray.train.torch",
        "from ray import train",
        "from ray.air import Checkpoint, ScalingConfig",
        "from ray.train.torch import TorchTrainer",
    ]


def from_elsewhere(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    assert checkpoint is not None
    found = checkpoint.to_dict()
    train.report({}, checkpoint=Checkpoint.from_dict({"epoch": found["epoch"] + 1, "w": found["w"] + 1}))


def test_R56_a_training_begins_with_what_another_program_wrote(tmp_path: pathlib.Path) -> None:
    state = {"epoch": 4, "w": torch.arange(3.0)}
    torch.save(state, tmp_path / "m.pt")
    pawl.save(state, tmp_path / "saved")
    made: dict[str, pawl.Checkpoint] = {
        "file": Checkpoint(tmp_path / "m.pt"),
        "file of the other class": pawl.Checkpoint(tmp_path / "m.pt"),
        "folder": pawl.Checkpoint(tmp_path / "saved"),
        "memory": pawl.Checkpoint.from_dict(state),
        "memory of this class": Checkpoint.from_dict(state),
    }
    for name, given in made.items():
        trainer = DataParallelTrainer(from_elsewhere, resume_from_checkpoint=given)
        with contextlib.ExitStack() as after:
            place, first = trainer._resumed(after)
            assert place is not None and place[1] == first == 0, name
            found = Checkpoint(place[0]).to_dict()
        assert (found["epoch"], found["w"].tolist()) == (4, [0.0, 1.0, 2.0]), name
    for name in ("file", "memory"):
        one = ScalingConfig(resources_per_worker={"CPU": 0.1})
        run = RunConfig(name, tmp_path, FailureConfig(heartbeat_timeout=HANG_SECONDS))
        by_value(from_elsewhere)
        result = DataParallelTrainer(
            from_elsewhere, scaling_config=one, run_config=run, resume_from_checkpoint=made[name]
        ).fit()
        assert result.checkpoint is not None
        last = result.checkpoint.to_dict()
        assert (last["epoch"], last["w"].tolist()) == (5, [1.0, 2.0, 3.0])
    with pytest.raises(pawl.NotFoundError, match=r"missing\.pt is neither a folder nor a file of a checkpoint"):
        DataParallelTrainer(from_elsewhere, resume_from_checkpoint=Checkpoint(tmp_path / "missing.pt")).fit()
    for number in ("x", 1.5, [1], -1, 2**70):
        torch.save(state | {"_current_checkpoint_id": number}, tmp_path / "odd.pt")
        with pytest.raises(pawl.UsageError, match=r"odd\.pt'\): _current_checkpoint_id must be .*, received "):
            DataParallelTrainer(from_elsewhere, resume_from_checkpoint=Checkpoint(tmp_path / "odd.pt")).fit()


def odd_numbers(config: dict[str, Any]) -> None:
    for value in (Fraction(3, 4), Decimal("0.5"), 10**400, Decimal("-1e400")):
        train.report({"auc": value, "other": 10**5000}, checkpoint=Checkpoint.from_dict({"w": torch.ones(1)}))
    train.save_checkpoint(auc=Decimal("0.25"), note="older")


def test_R28_R50_every_number_of_python_is_a_score(tmp_path: pathlib.Path) -> None:
    logged: list[float] = []
    by_value(odd_numbers)
    result = DataParallelTrainer(
        odd_numbers,
        scaling_config=ScalingConfig(resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(
            "run",
            tmp_path,
            FailureConfig(heartbeat_timeout=HANG_SECONDS),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="auc"),
            logger=lambda scalars, step: logged.extend(scalars[name] for name in scalars if name == "auc"),
        ),
    ).fit()
    largest = sys.float_info.max
    assert [row["auc"] for row in result.metrics_history] == [0.75, 0.5, largest, -largest, 0.25]
    assert logged == [0.75, 0.5, largest, -largest, 0.25]
    kept = [metrics["auc"] for _, metrics in result.best_checkpoints]
    assert kept == [largest, 0.75, 0.25]  # the best two, and the latest
    assert result.checkpoint is not None and result.checkpoint.to_dict()["auc"] == 0.25


def test_R1_names_are_where_programs_for_the_originals_import_them_from() -> None:
    """In a process of its own, as some of them are only loaded when they are asked for."""
    words = [
        "import pawl",
        "pawl.init()",
        "pawl.init(address=None)",
        "from pawl import air, train, tune",
        "from pawl.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig",
        "from pawl.train import CheckpointConfig, CheckpointStrategy, RunConfig, TrainingFailedError",
        "from pawl.train.checkpoint import MAX, MIN, CheckpointManager, CheckpointStrategy, PersistedCheckpoint",
        "from pawl.train.checkpoint import TuneCheckpointManager, construct_checkpoint_file_name",
        "from pawl.composer import CheckpointSaver, checkpoint_periodically",
        "from pawl.train import legacy",
        "assert train.CheckpointStrategy is CheckpointStrategy is legacy.CheckpointStrategy",
        "assert air.Checkpoint is train.Checkpoint and CheckpointStrategy().num_to_keep is None",
        "assert not hasattr(train, 'NoSuchName') and not hasattr(train.checkpoint, 'NoSuchName')",
    ]
    orders = ["\n".join([words[first], *words]) for first in (4, 5, 6, 7, 8)]  # whichever comes first
    program = f"""
import os, sys, torch
for order in {orders!r}:
    if os.fork() == 0:
        exec(order)
        sys.exit()
    assert os.wait()[1] == 0, order
"""
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert ended.returncode == 0, ended.stderr


# ---- what counts, what is kept


def saving(config: dict[str, Any]) -> None:
    context = train.get_context()
    assert (context.get_world_size(), context.get_local_world_size(), context.get_node_rank()) == (2, 2, 0)
    assert context.get_world_rank() == context.get_local_rank() == int(os.environ["RANK"])
    rank = context.get_world_rank()
    assert train.get_checkpoint() is None
    for epoch, accuracy in enumerate((0.5, 0.9, 0.7, 0.6)):
        own = torch.full((3,), float(rank))
        values = {"epoch": epoch, "w": own, "tied": own, "scalar": torch.tensor(2.5), "list": [own, {"x": 1}]}
        metrics = {"mean_accuracy": accuracy, "rank": rank} if rank == 0 else {"rank": rank}
        # a part of every worker's, and what is the first one's
        part = pawl.Shard(torch.full((2,), float(rank)), (4,), (2 * rank,))
        train.report(metrics, checkpoint=Checkpoint.from_dict({**values, "parts": part}))
    newest = train.get_checkpoint()
    assert newest is not None
    assert newest.to_dict()["epoch"] == 3


def test_R21_R45_R49_R50_R52_R54_the_best_two_and_the_newest_of_the_first_worker(tmp_path: pathlib.Path) -> None:
    result = fit(
        saving,
        tmp_path,
        num_to_keep=2,
        checkpoint_score_attribute="mean_accuracy",
        checkpoint_score_order="max",
    )
    assert result.error is None
    assert result.path == str(tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("checkpoint_*"))
    assert kept == ["checkpoint_000002", "checkpoint_000003", "checkpoint_000004"]
    assert [metrics["mean_accuracy"] for _, metrics in result.best_checkpoints] == [0.9, 0.7, 0.6]
    assert result.best_checkpoints[0][0].to_dict()["epoch"] == 1
    assert result.checkpoint is not None
    last = result.checkpoint.to_dict()
    assert (last["epoch"], last["list"][1]) == (3, {"x": 1})
    for tensor in (last["w"], last["tied"], last["list"][0]):
        assert tensor.tolist() == [0.0, 0.0, 0.0]  # the first worker's, complete
    assert last["parts"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert result.metrics == {"mean_accuracy": 0.6, "rank": 0}
    assert [row["mean_accuracy"] for row in result.metrics_history] == [0.5, 0.9, 0.7, 0.6]
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(pawl.UnsupportedError, match="needs pandas"):
            _ = result.metrics_dataframe
    else:
        assert list(result.metrics_dataframe["mean_accuracy"]) == [0.5, 0.9, 0.7, 0.6]


def logging_(config: dict[str, Any]) -> None:
    """Every second report has a checkpoint. It fails after the third report, once."""
    context = train.get_context()
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["n"] + 1 if checkpoint else 1
    for n in range(start, 6):  # the first worker may come to report 4 alone, which is none then
        if n == 4 and context.attempt == 1 and context.get_world_rank() == 1:
            raise RuntimeError("once")
        one = Checkpoint.from_dict({"n": n}) if n % 2 == 0 else None
        train.report({"loss": 1 / n, "name": "demo"}, checkpoint=one, wait=True)


def test_metrics_and_costs_go_to_the_logger_of_the_one_who_calls_fit(tmp_path: pathlib.Path) -> None:
    """One that cannot be pickled; steps continue after a failure, from the checkpoint, and a report is logged once."""
    import cloudpickle

    rows, lock = [], threading.Lock()

    def logger(scalars: dict[str, float], step: int) -> None:
        with lock:
            rows.append((step, scalars, threading.get_ident()))

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    run = RunConfig("run", tmp_path, FailureConfig(max_failures=1, heartbeat_timeout=HANG_SECONDS), logger=logger)
    result = DataParallelTrainer(logging_, scaling_config=TWO, run_config=run).fit()
    assert (result.error, result.failures) == (None, ["rank 1 raised RuntimeError: once"])
    assert {thread for *_, thread in rows} == {threading.get_ident()}
    losses = [(step, scalars["loss"]) for step, scalars, _ in rows if "loss" in scalars]
    assert losses in [[(n, 1 / n) for n in order] for order in ((1, 2, 3, 3, 4, 5), (1, 2, 3, 4, 5))]
    costs = [(step, sorted(scalars)) for step, scalars, _ in rows if "loss" not in scalars]
    names = ["checkpoint/blocked_seconds", "checkpoint/bytes", "checkpoint/durable_seconds"]
    assert costs == [(2, names), (4, names)]


def folders(config: dict[str, Any]) -> None:
    import tempfile

    rank = train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / f"model-{rank}.bin").write_bytes(bytes([rank]) * 1000)
        (folder / "sub").mkdir()
        (folder / "sub" / "same.txt").write_text("the same")
        (folder / "empty").write_bytes(b"")
        train.report({}, checkpoint=Checkpoint.from_directory(folder))
    if rank == 1:
        train.report({"without": 1})
    else:
        with tempfile.TemporaryDirectory() as made:
            pathlib.Path(made, "one.txt").write_text("of the first worker only")
            train.report({}, checkpoint=Checkpoint.from_directory(made))


def test_R44_R53_folders_of_all_workers_become_one_checkpoint(tmp_path: pathlib.Path) -> None:
    result = fit(folders, tmp_path, _checkpoint_upload_from_workers=True)
    assert result.error is None
    (only, _), (merged, _) = result.best_checkpoints
    with merged.as_directory() as made:
        found = {
            str(path.relative_to(made)): path.read_bytes() for path in pathlib.Path(made).rglob("*") if path.is_file()
        }
    assert found == {
        "model-0.bin": bytes(1000),
        "model-1.bin": b"\x01" * 1000,
        os.path.join("sub", "same.txt"): b"the same",
        "empty": b"",
    }
    made = only.to_directory(tmp_path / "out")
    assert os.listdir(made) == ["one.txt"]
    with pytest.raises(pawl.UsageError, match="use as_directory"):
        merged.to_dict()


def clashing(config: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        pathlib.Path(made, "model.bin").write_text(str(train.get_context().get_world_rank()) * 3_000_000)
        train.report({}, checkpoint=Checkpoint.from_directory(made))


def test_R44_one_file_name_of_two_workers_is_an_error_and_nothing_is_lost(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its writing takes seconds after the error is known."""
    monkeypatch.setattr(group, "_CLASH_SECONDS", HANG_SECONDS)
    result = result_of_failure(fit, clashing, tmp_path, options={"io": pawl.IO(write_bytes_per_second=1_000_000)})
    assert result.error is not None
    assert "ranks 0 and 1 both give the file 'model.bin' with different contents" in result.error.reason
    assert result.checkpoint is not None
    assert both(result.checkpoint) == {"rank_0/model.bin": "0", "rank_1/model.bin": "1"}


def both(checkpoint: Checkpoint) -> dict[str, str]:
    with checkpoint.as_directory() as made:
        files = [path for path in pathlib.Path(made).rglob("*") if path.is_file()]
        return {str(path.relative_to(made)): path.read_text()[-1:] for path in files}


def test_R44_R52_with_keep_all_ranks_one_file_name_of_two_workers_is_kept_per_rank(tmp_path: pathlib.Path) -> None:
    result = fit(clashing, tmp_path, _checkpoint_keep_all_ranks=True)
    assert result.error is None and result.checkpoint is not None
    assert both(result.checkpoint) == {"rank_0/model.bin": "0", "rank_1/model.bin": "1"}


def each(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    checkpoint = train.get_checkpoint()
    if checkpoint:
        assert checkpoint.to_dict()["mine"].tolist() == [rank]  # its own back
        train.report({})  # rank 0 waits for the other here
        return
    values = {"mine": torch.tensor([rank]), "name": f"worker {rank}"}
    train.report({}, checkpoint=Checkpoint.from_dict(values))


def test_R52_with_keep_all_ranks_every_worker_gets_its_own_back(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        result = fit(each, tmp_path, _checkpoint_keep_all_ranks=True)
        assert result.error is None
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["name"] == "worker 0"


def parts(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    part = pawl.Shard(torch.full((2,), float(rank)), (4,), (2 * rank,))
    checkpoint = train.get_checkpoint()
    if checkpoint:
        assert checkpoint.to_dict()["parts"].tolist() == [0.0, 0.0, 1.0, 1.0]
    train.report({"rank": rank}, checkpoint=Checkpoint.from_dict({"epoch": 1, "parts": part}))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Generator[Fake, None, None]:
    with serving(monkeypatch) as fake:
        yield fake


def test_R51_R53_storage_on_S3_is_written_by_every_worker(bucket: Fake, tmp_path: pathlib.Path) -> None:
    result = fit(parts, "s3://bucket/location", _checkpoint_upload_from_workers=True)
    assert result.error is None
    assert result.path == "s3://bucket/location/run"
    stored = [key for key in bucket.objects if key.startswith("location/run/checkpoints/checkpoint_000001/")]
    assert any("rank00000" in key for key in stored) and any("rank00001" in key for key in stored)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["parts"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert result.checkpoint.path == "s3://bucket/location/run/checkpoints/checkpoint_000001"
    copy = Checkpoint(result.checkpoint.to_directory(tmp_path / "copy"))
    assert copy.to_dict()["epoch"] == 1


def small(config: dict[str, Any]) -> None:
    train.report({"loss": 1}, checkpoint=Checkpoint.from_dict({"w": torch.arange(4)}))


def test_R3_E2_with_num_to_keep_0_the_newest_is_in_memory_only(tmp_path: pathlib.Path) -> None:
    result = fit(small, tmp_path, workers=1, num_to_keep=0, checkpoint_score_attribute="not asked for")
    assert result.error is None
    assert list(tmp_path.iterdir()) == []
    assert not os.path.exists(result.path)
    assert result.checkpoint is not None
    assert result.checkpoint.path is None
    assert result.checkpoint.to_dict()["w"].tolist() == [0, 1, 2, 3]


# ---- one worker in this process


class Alone:
    """A session without a process of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.host, self.n = folder, Host(), 0
        self.session: Session | None = None

    def start(self, **more: Any) -> Channel:
        self.stop()
        self.n += 1
        options = more.pop("options", {})
        given = {
            "payload": b"",
            "world_size": 1,
            "attempt": self.n,
            "token": "x",
            "host": self.host.host,
            "port": self.host.port,
            "root": str(self.folder / "run"),
            "options": options,
            "keep_all_ranks": False,
            "allow_pickle": False,
            "report_timeout": 600.0,
            "grace_seconds": 0.0,
            "backend": None,
            "resume": None,
        }
        job = Job(**{**given, **more})
        channel = Channel.join(job.host, job.port, job.attempt)
        self.watch = _signals.acquire(0.0)
        self.session = Session(job, channel, self.watch)
        enter(self.session)
        return channel

    def stop(self) -> None:
        if self.session is not None:
            self.session.finish()
            _signals.release()
            self.session = None
        enter(None)


@pytest.fixture
def alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Alone, None, None]:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    one = Alone(tmp_path)
    yield one
    one.stop()


def test_a_call_outside_of_a_worker_is_refused() -> None:
    for name, call in (
        ("report", lambda: train.report({})),
        ("get_checkpoint", train.get_checkpoint),
        ("get_context", train.get_context),
        ("get_checkpoint", train.load_checkpoint),
        ("save_checkpoint", train.save_checkpoint),
    ):
        with pytest.raises(pawl.UsageError, match=f"^{name} can only be called in a train function"):
            call()


def test_metrics_that_are_no_plain_values_are_refused_by_name(alone: Alone) -> None:
    alone.start()
    for value, words in (
        (torch.ones(2), r"metrics\['a'\]\['b'\] is a tensor \(torch\.Tensor\); report a number: \.item\(\)"),
        (np.ones(2), r"metrics\['a'\]\['b'\] is a tensor"),
        ({1, 2}, r"metrics\['a'\]\['b'\] is of type builtins\.set"),
    ):
        with pytest.raises(pawl.UsageError, match=words):
            train.report({"a": {"b": value}})
    with pytest.raises(pawl.UsageError, match="metrics must be a dict"):
        train.report(3)  # type: ignore[arg-type]
    with pytest.raises(pawl.UsageError, match="names of metrics"):
        train.report({1: 2})  # type: ignore[dict-item]
    with pytest.raises(pawl.UsageError, match=r"must be a pawl\.train\.Checkpoint, received dict"):
        train.report({}, checkpoint={"w": 1})  # type: ignore[arg-type]
    train.report({"numpy": np.float32(0.5), "list": [1, None, "x"]})


def test_R27_R49_a_score_that_is_missing_is_an_error_before_anything_is_written(alone: Alone) -> None:
    alone.start(options={"score_attribute": "accuracy", "num_to_keep": 2})
    with pytest.raises(ValueError, match="'accuracy' is missing; include it in the metrics"):
        train.report({"loss": 1}, checkpoint=Checkpoint.from_dict({"w": 1}))
    assert list((alone.folder / "run" / "checkpoints").glob("checkpoint_*")) == []


def test_R7_R27_the_older_interface_scores_by_the_checkpoint_itself(alone: Alone) -> None:
    alone.start(options={"score_attribute": "accuracy", "num_to_keep": 1})
    assert train.load_checkpoint() is None
    train.save_checkpoint(epoch=3, accuracy=0.5, w=torch.ones(2))
    with pytest.raises(ValueError, match="'accuracy' is missing"):
        train.save_checkpoint(epoch=4)
    alone.start(options={"score_attribute": "accuracy", "num_to_keep": 1})
    found = train.load_checkpoint()
    assert found is not None
    assert (found["epoch"], found["accuracy"], found["w"].tolist()) == (3, 0.5, [1.0, 1.0])
    assert found["_current_checkpoint_id"] == 0


def test_P3_a_report_is_held_for_the_copy_only_unless_it_is_to_wait(alone: Alone, bucket: Fake) -> None:
    """P3: the bucket takes nothing until the report has returned and its tensor has changed; what has arrived there in the
    end is the copy, and with wait it is there when the report returns."""
    taken, passes = threading.Event(), threading.Event()

    def hold(method: str, target: str) -> Answer | None:
        if method == "PUT" and "checkpoint_000001" in target:
            taken.set()
            passes.wait()
        return None

    bucket.always = hold
    root = "s3://bucket/held"
    alone.start(root=root)
    weights = torch.zeros(1000)
    train.report({}, checkpoint=Checkpoint.from_dict({"w": weights}))
    weights += 1
    try:
        assert taken.wait(HANG_SECONDS)
        assert not [key for key in bucket.objects if "checkpoint_000001" in key]
    finally:
        passes.set()
    train.report({}, checkpoint=Checkpoint.from_dict({"w": weights}), wait=True)
    with pawl.CheckpointManager(root, read_only=True) as manager:
        assert manager.all_steps() == [1, 2]
        for step, value in ((1, 0.0), (2, 1.0)):
            restored = manager.restore(step=step)
            assert restored is not None
            assert torch.equal(restored.state["w"], torch.full((1000,), value))


def test_a_value_that_a_state_cannot_hold_is_named(alone: Alone) -> None:
    alone.start()
    with pytest.raises(pawl.UnsupportedError, match="a/odd"):
        train.report({}, checkpoint=Checkpoint.from_dict({"a": {"odd": ...}}))
    train.report({}, checkpoint=Checkpoint.from_dict({"a": {"odd": ...}}, allow_pickle=True), wait=True)
    with pytest.raises(pawl.UnsupportedError, match="'a/odd' is a pickle"):
        train.load_checkpoint()
    alone.start(allow_pickle=True)
    found = train.load_checkpoint()
    assert found is not None
    assert found["a"]["odd"] is ...


def damage(folder: pathlib.Path) -> None:
    pack = max(folder.glob("*.safetensors"), key=lambda file: file.stat().st_size)  # the others hold no tensor
    data = bytearray(pack.read_bytes())
    data[-5] ^= 1
    pack.unlink()
    pack.write_bytes(data)


def test_R55_a_damaged_newest_checkpoint_is_passed_over(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    alone.start()
    for epoch in range(2):
        train.report({}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "w": torch.arange(1000)}), wait=True)
    alone.start()
    damage(alone.folder / "run" / "checkpoints" / "checkpoint_000002")
    found = train.load_checkpoint()
    assert found is not None
    assert found["epoch"] == 0
    warned = [record.getMessage() for record in caplog.records if record.name == "pawl"]
    assert any("restored checkpoint_000001" in one and "skipped: checkpoint_000002" in one for one in warned), warned


def test_P1_a_damaged_checkpoint_is_not_replaced_by_a_newer_one(alone: Alone) -> None:
    alone.start()
    for epoch in range(2):
        train.report({}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "w": torch.arange(1000)}), wait=True)
    second = train.get_checkpoint()
    assert second is not None
    train.report({}, checkpoint=Checkpoint.from_dict({"epoch": 2, "w": torch.arange(1000)}), wait=True)
    damage(alone.folder / "run" / "checkpoints" / "checkpoint_000002")
    with pytest.raises(pawl.CorruptError, match="checkpoint_000002"):
        second.to_dict()


def test_R50_the_newest_checkpoint_is_the_newest_that_was_kept(alone: Alone) -> None:
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="acc", keep_latest=False)
    alone.start(options=_options(keep, {}))
    for epoch, accuracy in ((1, 0.9), (2, 0.1)):
        train.report({"acc": accuracy}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))
        found = train.load_checkpoint()
        assert found is not None
        assert found["epoch"] == 1
    train.report({"acc": 0.95}, checkpoint=Checkpoint.from_dict({"epoch": 3}))
    found = train.load_checkpoint()
    assert found is not None
    assert found["epoch"] == 3


def test_R56_what_a_run_begins_from(alone: Alone, tmp_path: pathlib.Path) -> None:
    alone.start()
    train.report({}, checkpoint=Checkpoint.from_dict({"epoch": 5, "w": torch.ones(1)}), wait=True)
    alone.start(root=str(tmp_path / "other"), resume=(str(alone.folder / "run"), 1), names={"first": "7"})
    found = train.load_checkpoint()
    assert found is not None
    assert found["epoch"] == 5
    train.report({}, checkpoint=Checkpoint.from_dict({"epoch": 6}), wait=True)
    alone.start(root=str(tmp_path / "other"), resume=(str(alone.folder / "run"), 1))
    found = train.load_checkpoint()
    assert found is not None
    assert (found["epoch"], found["_current_checkpoint_id"]) == (6, 7)  # its own, and the number continues


def test_R46_checkpoints_in_memory_and_of_folders(tmp_path: pathlib.Path) -> None:
    weights = torch.ones(2)
    one = Checkpoint.from_dict({"w": weights}, metadata={"by": "me"})
    assert one.get_metadata() == {"by": "me"}
    assert sorted(one.to_dict()) == ["_current_checkpoint_id", "_preprocessor", "_timestamp", "w"]
    assert torch.equal(one.to_dict()["w"], weights)
    saved = Checkpoint(one.to_directory(tmp_path / "saved"))
    assert torch.equal(saved.to_dict()["w"], weights)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a")
    folder = Checkpoint.from_directory(tmp_path / "mine")
    with folder.as_directory() as path:
        assert path == str(tmp_path / "mine")
    assert os.listdir(folder.to_directory(tmp_path / "copy")) == ["a.txt"]
    with pytest.raises(pawl.UsageError, match="use as_directory"):
        folder.to_dict()
    with pytest.raises(pawl.UsageError, match="expected a dict"):
        Checkpoint.from_dict([1])  # type: ignore[arg-type]


# ---- what is refused before anything starts


def test_R49_wrong_configurations_are_refused_by_name() -> None:
    for make, words in (
        (lambda: ScalingConfig(num_workers=0), "num_workers must be a whole number from 1"),
        (lambda: ScalingConfig(num_workers=2, min_workers=3), "min_workers must be at most num_workers"),
        (lambda: ScalingConfig(engine="cloud"), 'engine must be "local", "ray", "launcher" or None'),  # type: ignore[arg-type]
        (lambda: FailureConfig(max_failures=-2), "max_failures must be -1"),
        (lambda: FailureConfig(heartbeat_timeout=0), "heartbeat_timeout must be a number of seconds above 0"),
        (lambda: FailureConfig(progress_timeout=0), "progress_timeout must be a number of seconds above 0"),
        (lambda: CheckpointConfig(num_to_keep=-1), "num_to_keep: -1. Must be None or non-negative integer"),
        (lambda: CheckpointConfig(checkpoint_score_order="up"), 'either "max" or "min"'),  # type: ignore[arg-type]
        (lambda: RunConfig(name=".."), "name must be the name of a folder"),
        (lambda: RunConfig(logger=3), "add_scalar, log_metrics or log"),
        (lambda: RunConfig(options={"logger": print}), r"give the logger as RunConfig\(logger="),
        (lambda: RunConfig(options={"num_to_keep": 3}), r"as checkpoint_config=CheckpointConfig\(num_to_keep="),
        (lambda: RunConfig(options={"score_attribute": "a"}), r"CheckpointConfig\(checkpoint_score_attribute="),
        (lambda: RunConfig(options={"score_order": "min"}), r"CheckpointConfig\(checkpoint_score_order="),
        (lambda: DataParallelTrainer(3), "must be a function"),  # type: ignore[arg-type]
        (lambda: DataParallelTrainer(lambda a, b: None), "takes one argument, the config, or none"),
        (lambda: DataParallelTrainer(small, resume_from_checkpoint="x"), "must be a Checkpoint"),  # type: ignore[arg-type]
    ):
        with pytest.raises(pawl.UsageError, match=words):
            make()


@pytest.mark.parametrize(("config", "retention"), [(True, False), (False, True), (True, True)])
def test_the_latest_is_kept_only_if_no_option_says_otherwise(config: bool, retention: bool) -> None:
    more = {"retention": pawl.Retention(keep_latest=retention)}
    found = _options(CheckpointConfig(keep_latest=config), more)["retention"]
    assert found.keep_latest == (config and retention)


def test_more_workers_than_the_machine_has_are_refused(tmp_path: pathlib.Path) -> None:
    many = len(os.sched_getaffinity(0)) + 1
    trainer = DataParallelTrainer(
        small, scaling_config=ScalingConfig(num_workers=many), run_config=RunConfig("x", tmp_path)
    )
    with pytest.raises(pawl.UsageError, match=f"num_workers={many}, but there is room for {many - 1} here"):
        trainer.fit()
    assert LocalEngine().available(ScalingConfig(many, resources_per_worker={"CPU": 0.5})) == 2 * (many - 1)


def test_what_cannot_be_handed_to_the_workers_is_named(tmp_path: pathlib.Path) -> None:
    lock = threading.Lock()

    def uses_lock() -> None:
        with lock:
            pass

    trainer = DataParallelTrainer(uses_lock, run_config=RunConfig("x", tmp_path))
    with pytest.raises(pawl.UnsupportedError, match="the variable 'lock' that it uses, lock, cannot be pickled"):
        trainer.fit()
    trainer = DataParallelTrainer(small, train_loop_config={"lock": lock}, run_config=RunConfig("x", tmp_path))
    with pytest.raises(pawl.UnsupportedError, match=r"train_loop_config\['lock'\], lock, cannot be pickled"):
        trainer.fit()


def test_the_state_that_is_printed_can_be_read() -> None:
    """The check of the printed line is not blind."""
    with pytest.raises(AssertionError):
        check_printed("{'epoch': 1}", 4, 4)
    assert compile((EXAMPLES / "report.py").read_text(), "report.py", "exec")
