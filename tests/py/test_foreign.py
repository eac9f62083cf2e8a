# SPDX-License-Identifier: Apache-2.0
"""What the safetensors package writes pawl opens: as a state, into live tensors, and in every command that looks."""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from common import TORCH_DTYPES, random_torch, run_program, same

import pawl
from cli import run, run_json

# complex128 is not a dtype of the format, and this version of the package writes no pairs of four bits.
DTYPES = [dtype for dtype in TORCH_DTYPES if dtype not in (torch.complex128, torch.float4_e2m1fn_x2)]


@pytest.fixture(name="model")
def model_file(tmp_path: pathlib.Path) -> pathlib.Path:
    tensors = {"layer.0/w": random_torch(torch.bfloat16, (300, 1000)), "scale": torch.tensor(2.5)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "n" * 4000})
    return tmp_path / "model.safetensors"


def test_every_dtype_of_torch_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    tensors = {}
    for index, dtype in enumerate(DTYPES):
        for shape in ((7, 5), (0, 3), ()):
            tensors[f"{dtype}/{shape}.x%"] = random_torch(dtype, shape, index)
    path = tmp_path / "all.safetensors"
    safetensors.torch.save_file(tensors, path)
    loaded = pawl.load(path)
    expected = safetensors.torch.load_file(path)
    assert set(loaded) == set(tensors)
    assert all(same(loaded[name], tensors[name]) and same(loaded[name], expected[name]) for name in tensors)


def test_four_bits_in_pairs_come_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f4.safetensors"
    header = json.dumps({"q": {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(6)))
    loaded = pawl.load(path)["q"]
    assert loaded.dtype == torch.float4_e2m1fn_x2 and loaded.shape == (2, 3)
    assert loaded.view(torch.uint8).flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_every_dtype_of_numpy_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    names = "bool u1 i1 u2 i2 f2 u4 i4 f4 c8 f8 i8 u8".split()
    arrays = {
        f"{name}{shape}": np.random.default_rng(1).integers(0, 2, shape).astype(name)
        for name in names
        for shape in ((5, 3), (0,), ())
    }
    path = tmp_path / "np.safetensors"
    safetensors.numpy.save_file(arrays, path)
    loaded = pawl.load(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        got = loaded[name].numpy()
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes()), name
    # and what pawl writes the package reads, by way of the command
    run("export", path, tmp_path / "again.safetensors")
    again = safetensors.numpy.load_file(tmp_path / "again.safetensors")
    assert all(same(again[name], array) for name, array in arrays.items())


def test_without_torch_they_are_arrays(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "np.safetensors"
    safetensors.numpy.save_file({"a": np.arange(6.0).reshape(2, 3)}, path)
    program = f"""
import sys, pawl
tree = pawl.load({str(path)!r})
print(type(tree["a"]).__module__, tree["a"].tolist(), "torch" in sys.modules)
"""
    assert run_program(program).split("\n")[0] == "numpy [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] False"


def test_live_tensors_are_filled_in_place(model: pathlib.Path) -> None:
    live = {"layer.0/w": torch.zeros(300, 1000, dtype=torch.bfloat16), "scale": torch.tensor(0.0)}
    kept = dict(live)
    pawl.load(model, state=live)
    assert all(live[name] is kept[name] for name in kept)
    expected = safetensors.torch.load_file(model)
    assert all(same(live[name], expected[name]) for name in kept)
    assert pawl.load(model, ["scale"]) == {"scale": torch.tensor(2.5)}
    live["more"] = torch.zeros(1)
    with pytest.raises(pawl.MismatchError, match="more"):
        pawl.load(model, state=live)


def test_a_module_takes_its_weights_from_a_file(tmp_path: pathlib.Path) -> None:
    there, here = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    safetensors.torch.save_file(there.state_dict(), tmp_path / "linear.safetensors")
    pawl.load(tmp_path / "linear.safetensors", state=here)
    assert same(dict(here.state_dict()), dict(there.state_dict()))


def test_the_metadata_of_a_file(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = pawl.Checkpoint(model)
    assert found.get_metadata() == {"format": "pt", "note": "n" * 4000}
    with pytest.raises(pawl.UsageError, match="only reads"):
        found.set_metadata({})
    with found.as_directory() as folder:
        assert same(pawl.load(folder), pawl.load(model))
    folder = found.to_directory(tmp_path / "folder")
    assert pawl.Checkpoint(folder).get_metadata() == found.get_metadata()
    safetensors.torch.save_file({}, tmp_path / "empty.safetensors")
    assert pawl.Checkpoint(tmp_path / "empty.safetensors").get_metadata() == {}
    assert pawl.load(tmp_path / "empty.safetensors") == {}


def test_a_pack_of_pawl_is_a_file_too(tmp_path: pathlib.Path) -> None:
    w = torch.randn(40, 3)
    pawl.save({"model": {"w": w}, "step": 3}, tmp_path / "ck", metadata={"who": "me"})
    (pack,) = (tmp_path / "ck").glob("*.safetensors")
    assert same(pawl.load(pack), {"model/w": w})
    assert "pawl.state" in pawl.Checkpoint(pack).get_metadata()


def test_a_file_with_long_metadata_becomes_a_checkpoint_of_pawl(tmp_path: pathlib.Path) -> None:
    notes = {"format": "pt", "tags": "é€" * 2000, "exact": "x" * 4096}
    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "lora.safetensors", metadata=notes)
    assert pawl.Checkpoint(tmp_path / "lora.safetensors").get_metadata() == notes
    run("convert", tmp_path / "lora.safetensors", tmp_path / "ck", "--to", "pawl")
    found = pawl.Checkpoint(tmp_path / "ck").get_metadata()
    assert "".join(found.pop("tags")) == notes.pop("tags") and found == notes
    run("verify", tmp_path / "ck")


def test_the_commands_take_a_file(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """R150."""
    shown = run("show", model).stdout
    assert "safetensors" in shown and "layer.0/w" in shown and "BF16" in shown and "step" not in shown
    table = run_json("show", model)
    assert table["checkpoint"]["format"] == "safetensors" and table["run"] is None
    assert {row["name"]: row["dtype"] for row in table["tensors"]} == {"layer.0%2Fw": "BF16", "scale": "F32"}
    verified = run("verify", model)
    assert "readable" in verified.stdout and "has no checksums" in verified.stderr
    assert run_json("verify", model)["checkpoints"][0]["sums"] is False
    pawl.save(safetensors.torch.load_file(model), tmp_path / "ck")
    assert "equal, bit for bit" in run("diff", model, tmp_path / "ck").stderr
    other = safetensors.torch.load_file(model)
    other["scale"] += 1
    safetensors.torch.save_file(other, tmp_path / "other.safetensors")
    (row,) = run_json("diff", model, tmp_path / "other.safetensors", status=1)["rows"]
    assert (row["path"], row["change"], row["max_abs"]) == ("scale", "changed", 1)
    assert "file" in run("restore", model, tmp_path / "x", status=2).stderr
    assert "file" in run("repair", model, status=2).stderr


def test_P17_hostile_files_are_refused(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = model.read_bytes()
    bad: dict[str, tuple[bytes, type[Exception]]] = {
        "cut": (data[:-1], pawl.CorruptError),
        "longer": (data + b"x", pawl.CorruptError),
        "no header": (b"", pawl.CorruptError),
        "header beyond the file": (struct.pack("<Q", len(data)) + data[8:], pawl.CorruptError),
        "no JSON": (data[:8] + b"[" + data[9:], pawl.CorruptError),
    }
    for name, (content, error) in bad.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(error, match=name):
            pawl.load(path)
        assert "corrupt" in run("verify", path, status=4).stdout, name
        run("show", path, status=4)
    (tmp_path / "notes.txt").write_text("nothing but text")
    with pytest.raises(pawl.NotFoundError, match="is not a checkpoint"):
        pawl.load(tmp_path / "notes.txt")
    assert "is a file" in run("show", tmp_path / "notes.txt", status=2).stderr


def test_a_file_by_another_name(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """As the hub's cache keeps them: a link to a file that is named by its digest."""
    blob = model.rename(tmp_path / "0f1e2d3c")
    link = tmp_path / "weights.safetensors"
    link.symlink_to(blob)
    trees: list[Any] = [pawl.load(link), pawl.load(blob), pawl.load(f"file://{blob}")]
    assert all(same(tree, trees[0]) for tree in trees) and len(trees[0]) == 2
