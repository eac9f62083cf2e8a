# SPDX-License-Identifier: Apache-2.0
"""pawl show, diff and verify take every format that pawl reads, compressed or not. R150."""

from __future__ import annotations

import gzip
import pathlib
import tarfile

import numpy as np
import pytest
import safetensors.torch
import torch

import pawl
from cli import run, run_json
from pawl.composer import CheckpointSaver

W = torch.arange(20000.0).reshape(100, 200)
B = torch.ones(7, dtype=torch.int64)
TENSORS = {"w": W, "b": B}
CODECS = ["gz", "bz2", "lz4", "lzma", "xz", "zst", "lzo"]
TARS = ["tar", "tar.gz", "tgz", "tar.bz2", "tar.lzma"]
PLAIN = ["m.pt", "m.safetensors", "m.npz", "packed.npz", "m.npz.gz"]
FOLDERS = ["one", "shards", "shards/model.safetensors.index.json", "dcp", "pawl"]
NAMES = [*PLAIN, *FOLDERS, *(f"m.{kind}.{codec}" for kind in ("pt", "safetensors") for codec in CODECS)]
NAMES += [f"state.{suffix}" for suffix in TARS]


@pytest.fixture(scope="module", name="files")
def files_of_every_format(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("formats")
    torch.save(TENSORS, place / "m.pt")
    safetensors.torch.save_file(TENSORS, place / "m.safetensors")
    arrays = {name: tensor.numpy() for name, tensor in TENSORS.items()}
    np.savez(place / "m.npz", **arrays)  # type: ignore[arg-type]
    np.savez_compressed(place / "packed.npz", **arrays)  # type: ignore[arg-type]
    (place / "m.npz.gz").write_bytes(gzip.compress((place / "m.npz").read_bytes()))
    pawl.convert(place / "m.pt", place / "one", to="hf")
    pawl.convert(place / "m.pt", place / "shards", to="hf", max_shard_bytes=50000)
    pawl.convert(place / "m.pt", place / "dcp", to="dcp")
    pawl.convert(place / "m.pt", place / "pawl", to="pawl")
    for codec in CODECS:
        pawl.save(TENSORS, place / f"m.pt.{codec}")
        pawl.save(TENSORS, place / f"m.safetensors.{codec}")
    for suffix in TARS:
        with CheckpointSaver(place, f"state.{suffix}", latest_filename=None) as saver:
            saver.save({"run_name": "run", "batch": 1}, TENSORS)
    return place


@pytest.mark.parametrize("name", NAMES)
def test_R150_every_format_is_shown_compared_and_verified(
    files: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    path = files / name
    shown = run_json("show", path)
    assert {row["name"]: row["dtype"] for row in shown["tensors"]} == {"w": "F32", "b": "I64"}
    assert [checkpoint["findings"] for checkpoint in run_json("verify", path)["checkpoints"]] == [[]]
    pawl.save({"w": W, "b": B}, tmp_path / "same")
    assert "equal, bit for bit" in run("diff", path, tmp_path / "same").stderr
    pawl.save({"w": W, "b": B + 1}, tmp_path / "other")
    (row,) = run_json("diff", path, tmp_path / "other", status=1)["rows"]
    assert (row["path"], row["change"], row["max_abs"]) == ("b", "changed", 1)
    loaded = pawl.load(path)
    assert torch.equal(torch.as_tensor(loaded["w"]), W) and torch.equal(torch.as_tensor(loaded["b"]), B)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("state.", "m.npz", "m.pt"))])
def test_P1_a_file_that_is_cut_is_damaged(files: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    whole = (files / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    told = run("verify", tmp_path / name, status=4)
    assert name in told.stdout + told.stderr
    with pytest.raises(pawl.CorruptError, match=name):
        pawl.load(tmp_path / name)


def test_a_tar_with_something_else_in_it_is_refused_by_name(files: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(files / "m.pt", "m.pt")
    with pytest.raises(pawl.NotFoundError, match=r"other\.tar: expected composer_states\.pt in it"):
        pawl.load(tmp_path / "other.tar")
    assert "other.tar is a file; expected" in run("show", tmp_path / "other.tar", status=2).stderr


def test_P17_members_of_a_tar_that_lie_are_refused(files: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """One larger than the archive, one that leads out of it, a link."""
    whole = (files / "state.tar").read_bytes()
    for name, change in (("size", {"size": 1 << 40}), ("up", {"name": "../x"}), ("link", {"type": tarfile.SYMTYPE})):
        info = tarfile.TarInfo("composer_states.pt")
        for key, value in change.items():
            setattr(info, key, value)
        path = tmp_path / f"{name}.tar"
        path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + whole)
        with pytest.raises((pawl.CorruptError, pawl.UnsupportedError, pawl.LimitError), match=f"{name}.tar"):
            pawl.load(path)


def test_P1_of_a_tar_it_is_clear_which_state_is_meant(files: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A second state appended to it, which tar would unpack over the first; and one that is cut behind the state."""
    whole = (files / "state.tar").read_bytes()
    with tarfile.open(files / "state.tar") as tar:
        member = tar.getmember("composer_states.pt")
        end = member.offset_data + -(-member.size // 512) * 512
    (tmp_path / "twice.tar").write_bytes(whole[:end] + whole)
    with pytest.raises(pawl.CorruptError, match=r"twice\.tar: expected one composer_states\.pt, found two"):
        pawl.load(tmp_path / "twice.tar")
    (tmp_path / "cut.tar").write_bytes(whole[:end])
    with pytest.raises(pawl.CorruptError, match=r"cut\.tar"):
        pawl.load(tmp_path / "cut.tar")
