# SPDX-License-Identifier: Apache-2.0
"""A pawl.train.Checkpoint of a run: which one is read, what each worker gets back, and where files may go."""

from __future__ import annotations

import collections
import dataclasses
import errno
import functools
import os
import pathlib
import random
import subprocess
import sys
import time
import zlib
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from waiting import HANG_SECONDS

import pawl
from pawl import train
from pawl.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    parts,
)
from pawl.train.channel import Channel

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def fit(function: Any, folder: pathlib.Path, name: str, workers: int = 2, **more: Any) -> train.Result:
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1})
    run = RunConfig(name, folder, FailureConfig(heartbeat_timeout=HANG_SECONDS))
    return DataParallelTrainer(function, scaling_config=scaling, run_config=run, **more).fit()


# ---- damage


def three_checkpoints(root: pathlib.Path) -> None:
    with pawl.CheckpointManager(root) as manager:
        for n in (1, 2, 3):
            manager.save(n, {"w": np.full(1000, n), "n": n}, wait=True)


def damage(root: pathlib.Path, id: int) -> None:
    packs = (root / "checkpoints" / f"checkpoint_{id:06d}").glob("*.safetensors")
    pack = max(packs, key=lambda file: file.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[-5] ^= 1
    pack.unlink()
    pack.write_bytes(data)


@pytest.mark.parametrize("id", [1, 2, 3])
def test_P1_a_damaged_checkpoint_is_an_error_and_never_another_one(tmp_path: pathlib.Path, id: int) -> None:
    three_checkpoints(tmp_path / "run")
    damage(tmp_path / "run", id)
    found = Checkpoint.from_run(str(tmp_path / "run"), id)
    with pytest.raises(pawl.CorruptError, match=f"checkpoint_{id:06d}"):
        found.to_dict()
    for other in {1, 2, 3} - {id}:
        assert Checkpoint.from_run(str(tmp_path / "run"), other).to_dict()["n"] == other


# ---- files


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "sub" / "b").touch()
    assert parts.list_files(str(tmp_path)) == ["a", "sub/b"]
    real = os.scandir

    def scan(path: Any) -> Any:
        if os.fspath(path) == str(tmp_path / "sub"):
            raise OSError(errno.EIO, "Input/output error", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(pawl.StorageError, match="Input/output error: .*/sub"):
        parts.list_files(str(tmp_path))


TRUNCATED = """
import os, sys, zlib
import pawl
from pawl.train import parts

folder, real = sys.argv[1], zlib.crc32

def checksum(data, *more):  # another worker truncates the file before the first bytes are checksummed
    os.truncate(os.path.join(folder, "model"), 5000)
    return real(data, *more)

zlib.crc32, parts._PIECE_BYTES = checksum, 4096
try:
    parts.of_files(folder, 0)
except pawl.ConflictError as error:
    print(error)
"""


def test_a_reported_file_that_is_truncated_while_it_is_read_is_an_error_and_no_signal(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model").write_bytes(bytes(50_000))
    done = subprocess.run([sys.executable, "-c", TRUNCATED, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"{tmp_path}/model: its size changed while it was read: expected 50000 bytes, found 5000\n"
    assert done.stdout == expected


def test_the_bytes_of_a_reported_file_are_those_of_its_checksum(tmp_path: pathlib.Path) -> None:
    """A file that changes after it was read changes nothing in the state."""
    data = os.urandom(20_000)
    (tmp_path / "model").write_bytes(data)
    (tmp_path / "empty").touch()
    state, facts = parts.of_files(str(tmp_path), 3)
    with (tmp_path / "model").open("r+b") as file:
        file.write(bytes(len(data)))
    assert facts == {"empty": (0, 0), "model": (len(data), zlib.crc32(data))}
    assert state["files"]["model"]["3"].tensor.tobytes() == data
    assert state["files"]["empty"]["3"].tensor.tobytes() == b""


def test_a_reported_file_that_is_removed_meanwhile_is_an_error_that_names_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "list_files", lambda folder: ["gone"])
    with pytest.raises(pawl.NotFoundError, match="/gone: expected a file, found none"):
        parts.of_files(str(tmp_path), 0)


@pytest.mark.parametrize("rank", ["/../../outside/here", "../../../outside", "", "-1", "1/../../../outside", "²", 1])
def test_files_of_a_checkpoint_stay_in_the_folder_whatever_their_rank_is_called(
    tmp_path: pathlib.Path, rank: object
) -> None:
    good, evil = (np.frombuffer(text, np.uint8) for text in (b"good", b"evil"))
    files = {"files": {"a.txt": {"0": good, rank: evil}}}
    pawl.save(files, tmp_path / "given", metadata={"pawl.train": {"kind": "files"}, "user": None})
    target = tmp_path / "deep" / "deeper" / "target"
    with pytest.raises(pawl.UsageError, match="not a number"):
        Checkpoint(tmp_path / "given").to_directory(target)
    found = [path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "given" not in path.parents]
    assert found == []


# ---- values of each worker


def draws(rank: int) -> torch.Tensor:
    return torch.rand(3, generator=torch.Generator().manual_seed(rank))


def counted(config: dict[str, Any]) -> None:
    """Reports values per rank at first; the next time it restores them."""
    rank, checkpoint = train.get_context().get_world_rank(), train.get_checkpoint()
    if checkpoint is None:
        torch.manual_seed(rank)
        values = {"w": torch.ones(3), "at": pawl.PerRank(100 + rank), "rng": pawl.rng_state()}
        values |= {"torch": torch.Generator().manual_seed(rank), "random": random.Random(rank)}
        train.report({}, checkpoint=Checkpoint.from_dict(values))
        return
    torch.manual_seed(99)
    state = {"w": torch.zeros(3), "at": pawl.PerRank(-1), "rng": pawl.rng_state()}
    state |= {"torch": torch.Generator().manual_seed(99), "random": random.Random(99)}
    checkpoint.restore(state)
    saved_by = rank if config["workers"] == 2 else 0
    assert state["at"].value == 100 + saved_by, (rank, state)
    assert torch.equal(torch.rand(3), draws(saved_by)), rank
    assert torch.equal(torch.rand(3, generator=state["torch"]), draws(saved_by)), rank
    assert state["random"].random() == random.Random(saved_by).random(), rank
    assert torch.equal(state["w"], torch.ones(3))
    train.report({"restored": True})


@pytest.mark.parametrize("by_path", [False, True])
def test_restore_gives_each_worker_its_own_values(tmp_path: pathlib.Path, by_path: bool) -> None:
    config = {"workers": 2}
    first = fit(counted, tmp_path, "run", train_loop_config=config).checkpoint
    assert first is not None and first.path is not None
    if by_path:
        again = fit(counted, tmp_path, "other", train_loop_config=config, resume_from_checkpoint=Checkpoint(first.path))
    else:
        again = fit(counted, tmp_path, "run", train_loop_config=config)
    assert again.metrics == {"restored": True}


def test_restore_gives_the_values_of_a_single_worker_to_all(tmp_path: pathlib.Path) -> None:
    fit(counted, tmp_path, "run", 1, train_loop_config={"workers": 1})
    assert fit(counted, tmp_path, "run", 2, train_loop_config={"workers": 1}).metrics == {"restored": True}


# ---- objects that hold tensors


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Moments:
    mean: Any
    n: int


def holding(config: dict[str, Any]) -> None:
    a, b, c, d, e = (torch.arange(3.0) + train.get_context().get_world_rank() for _ in range(5))
    values = {
        "pair": Pair(a, [Moments(b, 3)]),
        "last": collections.deque([c, 1], maxlen=4),
        "lists": collections.defaultdict(list, {"w": [d]}),
        "counts": collections.Counter("aab"),
        "own": Pair(e, pawl.PerRank(7)),
    }
    train.report({}, checkpoint=Checkpoint.from_dict(values))


def test_objects_with_tensors_are_saved_by_two_workers_as_by_one(tmp_path: pathlib.Path) -> None:
    found = []
    for workers in (1, 2):
        checkpoint = fit(holding, tmp_path, f"run{workers}", workers, train_loop_config={}).checkpoint
        assert checkpoint is not None
        found.append({name: value for name, value in checkpoint.to_dict().items() if not name.startswith("_")})
    one, two = found
    assert (one["own"]["b"], two["own"].pop("b")) == (7, [7, 7])
    del one["own"]["b"]
    assert repr(one) == repr(two)
    assert isinstance(two["last"], collections.deque) and isinstance(two["lists"], collections.defaultdict)


# ---- the newest checkpoint


def keep_none(folder: str, candidates: list[pawl.Candidate]) -> list[int]:
    """A rule of rank 0. With two candidates it ends once rank 1 waits for it, or has not waited for it."""
    until = time.monotonic() + HANG_SECONDS
    while len(candidates) > 1 and not any(pathlib.Path(folder, name).exists() for name in ("waits", "found")):
        assert time.monotonic() < until
        time.sleep(0.01)
    return []


def find_newest(config: dict[str, Any]) -> None:
    """Retention deletes the newer of two checkpoints, which is worse."""
    folder, rank = pathlib.Path(config["folder"]), train.get_context().get_world_rank()
    wait = Channel._wait

    def note_wait(channel: Channel, key: str, timeout: float) -> int | None:
        (folder / "waits").touch()
        return wait(channel, key, timeout)

    for epoch in (1, 2):
        train.report({"acc": 1 / epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}), wait=epoch == 2)
    if rank == 1:
        Channel._wait = note_wait  # type: ignore[assignment]
        checkpoint = train.get_checkpoint()
        (folder / "found").touch()
    elif config["asks"]:
        checkpoint = train.get_checkpoint()
    else:
        return
    assert checkpoint is not None
    assert checkpoint.to_dict()["epoch"] == 1, rank


@pytest.mark.parametrize("asks", [True, False])
def test_R50_all_workers_get_the_newest_checkpoint_that_retention_has_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """Also if rank 0, which applies retention, does not call get_checkpoint itself."""
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))  # the workers import the rule
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="acc", keep_latest=False)
    options = {"retention": pawl.Retention(keep=functools.partial(keep_none, str(tmp_path)))}
    patient = FailureConfig(heartbeat_timeout=HANG_SECONDS)
    run = RunConfig("run", tmp_path, patient, checkpoint_config=keep, options=options)
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1})
    config = {"folder": str(tmp_path), "asks": asks}
    result = DataParallelTrainer(find_newest, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    assert result.error is None, result.error
