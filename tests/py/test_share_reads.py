# SPDX-License-Identifier: Apache-2.0
"""What every rank wants of a checkpoint is read by one of them and handed to the others by the caller's broadcast
function: real processes, over gloo."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from test_ranks import job

import pawl

pytestmark = pytest.mark.long

MIB = 1 << 20
WHOLE = 1500 * 1000 * 4 + 700 * 1000 * 8  # of the tensors that all ranks want
OWN = 64 * 4096 * 4  # of the one that is cut


def restore(tmp_path: pathlib.Path, world: int, kind: str) -> list[dict[str, Any]]:
    return job(tmp_path, world, "share_restore", str(tmp_path / "run"), kind)


def read_bytes(tmp_path: pathlib.Path) -> int:
    """What all ranks have read from the store in the last restore."""
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    return int([line["read_bytes"] for line in lines if line["what"] == "restore"][-1])


def damage(tmp_path: pathlib.Path, step: int, rank: int) -> None:
    pack = max((tmp_path / "run").glob(f"checkpoints/*{step}/rank0000{rank}-*"), key=lambda path: path.stat().st_size)
    with open(pack, "r+b") as file:
        file.seek(pack.stat().st_size // 2)
        file.write(b"damaged!")


@pytest.mark.parametrize("world", [2, 4])
def test_R160_what_all_ranks_want_is_read_once(tmp_path: pathlib.Path, world: int) -> None:
    job(tmp_path, 2, "share_save", str(tmp_path / "run"), "1")
    apart = restore(tmp_path, world, "no")
    assert all(answer["right"] for answer in apart)
    alone = read_bytes(tmp_path)
    assert alone > world * WHOLE  # each rank by itself
    together = restore(tmp_path, world, "yes")
    assert all(answer["right"] and answer["step"] == 1 and answer["fallbacks"] == [] for answer in together)
    # once, but for the blocks in which the shares of two ranks meet
    assert WHOLE + OWN <= read_bytes(tmp_path) < WHOLE + OWN + 2 * MIB
    assert alone - read_bytes(tmp_path) > (world - 1) * WHOLE - 2 * MIB


def test_R160_what_one_rank_wants_otherwise_is_read_by_each(tmp_path: pathlib.Path) -> None:
    job(tmp_path, 2, "share_save", str(tmp_path / "run"), "1")
    assert all(answer["right"] for answer in restore(tmp_path, 4, "half"))
    big, rest = 1500 * 1000 * 4, WHOLE - 1500 * 1000 * 4
    assert 0 <= read_bytes(tmp_path) - (rest + OWN + 3 * big + big // 2) < 2 * MIB


@pytest.mark.parametrize("rank", [0, 1])
def test_P1_P11_damage_that_one_rank_reads_makes_all_take_the_checkpoint_before(
    tmp_path: pathlib.Path, rank: int
) -> None:
    job(tmp_path, 2, "share_save", str(tmp_path / "run"), "2")
    damage(tmp_path, 2, rank)
    for answer in restore(tmp_path, 2, "yes"):
        assert answer["right"] and answer["step"] == 1
        assert "checkpoint_000002" in answer["fallbacks"][0] and "not what was written" in answer["fallbacks"][0]
    damage(tmp_path, 1, rank)
    for answer in restore(tmp_path, 2, "yes"):
        assert answer["kind"] == "CorruptError" and "not what was written" in answer["error"]


def test_P11_an_exception_of_the_broadcast_function_ends_the_restore_of_all(tmp_path: pathlib.Path) -> None:
    job(tmp_path, 2, "share_save", str(tmp_path / "run"), "1")
    answers = restore(tmp_path, 2, "raises")
    assert [answer["kind"] for answer in answers] == ["UsageError"] * 2
    assert "the network is gone" in answers[1]["error"] or "broadcast" in answers[1]["error"]
    assert all(answer["right"] for answer in restore(tmp_path, 2, "yes"))


def test_P11_nobody_enters_the_broadcast_unless_all_do(tmp_path: pathlib.Path) -> None:
    job(tmp_path, 2, "share_save", str(tmp_path / "run"), "1")
    for answer in restore(tmp_path, 2, "some"):
        assert answer["kind"] == "MismatchError" and "share_reads" in answer["error"]
    other = restore(tmp_path, 2, "other")
    assert "rank 1: " in other[0]["error"] and "shape: small" in other[0]["error"]  # in rank 1's own words
    assert other[1]["kind"] == "MismatchError" and "small" in other[1]["error"]


def test_shared_reads_need_a_function(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        assert manager.restore({}, share_reads=True) is None  # alone there is no rank to share with
    with pytest.raises(pawl.UsageError, match="needs the broadcast function"):
        pawl._pawl.Run(str(tmp_path / "run"), read_only=True).restore({}, share_reads=True)
