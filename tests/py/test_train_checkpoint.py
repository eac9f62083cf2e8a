# SPDX-License-Identifier: Apache-2.0
"""A pawl.train.Checkpoint of a run: which one is read, and where files may go."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import pawl
from pawl.train import Checkpoint


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
