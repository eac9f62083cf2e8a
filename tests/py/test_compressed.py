# SPDX-License-Identifier: Apache-2.0
"""E11, R82: files of other programs that the usual tools have compressed are opened as they are, in every command and by
pawl.load; damaged ones are refused."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from common import same

import pawl
from cli import run

TOOLS = {
    "gz": ["gzip", "-1c"],
    "bz2": ["bzip2", "-1c"],
    "lz4": ["lz4", "-qc"],
    "lzma": ["lzma", "-0c"],
    "lzo": ["lzop", "-c"],
    "xz": ["xz", "-0c"],
    "zst": ["zstd", "-qc"],
}


def packed(path: pathlib.Path, suffix: str) -> pathlib.Path:
    result = path.with_name(f"{path.name}.{suffix}")
    with path.open("rb") as source:
        result.write_bytes(subprocess.run(TOOLS[suffix], stdin=source, capture_output=True, check=True).stdout)
    return result


@pytest.fixture(name="model")
def model_file(tmp_path: pathlib.Path) -> pathlib.Path:
    torch.manual_seed(1)
    state = {"model": {"w": torch.randn(300, 1000), "b": torch.arange(7)}, "epoch": 3}
    torch.save(state, tmp_path / "ep1.pt")
    return tmp_path / "ep1.pt"


@pytest.mark.parametrize("suffix", TOOLS)
def test_R82_compressed_files_of_torch_are_opened(model: pathlib.Path, suffix: str) -> None:
    path = packed(model, suffix)
    loaded: Any = pawl.load(path)
    expected = torch.load(model)
    assert loaded["epoch"] == 3
    assert all(same(loaded["model"][name], expected["model"][name]) for name in ("w", "b"))
    assert run("diff", model, path).returncode == 0
    assert "torch.save" in run("show", path).stdout
    run("verify", path)
    run("export", path, path.parent / f"{suffix}.safetensors")


def test_a_name_that_says_only_how_it_is_compressed(model: pathlib.Path) -> None:
    path = packed(model, "zst").rename(model.with_name("weights.zst"))
    assert pawl.load(path)["epoch"] == 3


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_damaged_ones_are_refused(model: pathlib.Path, suffix: str) -> None:
    path = packed(model, suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(pawl.CorruptError, match="ends inside of a"):
        pawl.load(path)
    path.write_bytes(whole[:20000] + bytes([whole[20000] ^ 1]) + whole[20001:])
    with pytest.raises(pawl.CorruptError, match=r"ep1\.pt"):
        pawl.load(path)
    path.write_bytes(whole)  # the control
    assert pawl.load(path)["epoch"] == 3


def test_nothing_is_left_where_it_is_unpacked(
    model: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setenv("TMPDIR", str(spool))
    assert pawl.load(packed(model, "gz"))["epoch"] == 3
    assert os.listdir(spool) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(pawl.PawlError, match="cannot make a temporary file"):
        pawl.load(packed(model, "gz"))


def test_a_bomb_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "zeros.safetensors"
    header = b'{"w":{"dtype":"U8","shape":[100000000],"data_offsets":[0,100000000]}}   '
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100_000_000))
    bomb = packed(path, "gz")
    with pytest.raises(pawl.PawlError, match="decompresses to more than 200 times"):
        pawl.load(bomb)
    assert np.asarray(pawl.load(path)["w"]).nbytes == 100_000_000  # the control
