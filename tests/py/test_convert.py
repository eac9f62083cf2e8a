# SPDX-License-Identifier: Apache-2.0
"""pawl convert: what it writes the real numpy, torch and safetensors read as it was; casts as theirs; names by rules; a
target that is complete or not there; memory that does not grow with the size."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
import zipfile
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from common import TORCH_DTYPES, random_torch, same
from waiting import HANG_SECONDS

import pawl
from cli import PAWL, environment, run, run_json

FLAT = [dtype for dtype in TORCH_DTYPES if dtype not in (torch.complex128, torch.float4_e2m1fn_x2)]


def load(path: pathlib.Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
    return tensors


@pytest.fixture(name="model")
def model_file(tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, torch.Tensor]]:
    """A training state as torch.save leaves it: larger than what is written at a time, views, tied tensors."""
    weight = random_torch(torch.float32, (3000, 4000)).nan_to_num()
    tensors = {
        "layer.0.weight": weight,
        "layer.0.bias": torch.arange(7),
        "turned": random_torch(torch.float16, (300, 500)).nan_to_num().t(),
        "part": weight[10:20],
        "tied": weight,
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
    }
    torch.save({"model": tensors, "step": 3}, tmp_path / "m.pt")
    return tmp_path / "m.pt", tensors


def test_torch_to_safetensors_and_to_numpy_and_back(
    model: tuple[pathlib.Path, dict[str, torch.Tensor]], tmp_path: pathlib.Path
) -> None:
    path, expected = model
    done = run("convert", path, tmp_path / "m.safetensors", "--rename", "model/*={1}")
    assert "left out 1 value that is not a tensor" in done.stderr
    loaded = load(tmp_path / "m.safetensors")
    assert set(loaded) == set(expected) - {"tied"}
    assert all(same(loaded[name], expected[name].contiguous()) for name in loaded)
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata()["tied"] == "layer.0.weight" and file.metadata()["format"] == "pt"

    run("convert", path, tmp_path / "m.npz", "--rename", "model/*={1}")
    assert zipfile.ZipFile(tmp_path / "m.npz").testzip() is None
    with np.load(tmp_path / "m.npz") as arrays:
        assert set(arrays) == set(expected)
        assert all(arrays[name].tobytes() == expected[name].contiguous().numpy().tobytes() for name in expected)
        assert all(arrays[name].shape == tuple(expected[name].shape) for name in expected)
    run("verify", tmp_path / "m.npz")

    run("convert", tmp_path / "m.npz", tmp_path / "back.safetensors")
    assert all(same(load(tmp_path / "back.safetensors")[name], expected[name].contiguous()) for name in expected)


def test_every_dtype_stays_bit_for_bit(tmp_path: pathlib.Path) -> None:
    tensors = {str(dtype): random_torch(dtype, (33, 5), i) for i, dtype in enumerate(FLAT)}
    pawl.save(tensors, tmp_path / "ckpt")
    run("convert", tmp_path / "ckpt", tmp_path / "a.safetensors")
    assert all(same(load(tmp_path / "a.safetensors")[name], tensors[name]) for name in tensors)
    plain = {name: tensor for name, tensor in tensors.items() if "float8" not in name and "bfloat16" not in name}
    run("convert", tmp_path / "a.safetensors", tmp_path / "a.npz", "-x", "*float8*", "-x", "*bfloat16*")
    with np.load(tmp_path / "a.npz") as arrays:
        assert {n: arrays[n].tobytes() for n in arrays} == {n: t.numpy().tobytes() for n, t in plain.items()}
    refused = run("convert", tmp_path / "a.safetensors", tmp_path / "b.npz", status=1)
    assert "numpy does not have" in refused.stderr and not (tmp_path / "b.npz").exists()


def test_a_single_array(tmp_path: pathlib.Path) -> None:
    expected = np.asfortranarray(np.arange(600.0).reshape(20, 30))
    np.save(tmp_path / "a.npy", expected)
    run("convert", tmp_path / "a.npy", tmp_path / "a.safetensors")
    assert load(tmp_path / "a.safetensors")["tensor"].numpy().tolist() == expected.tolist()
    run("convert", tmp_path / "a.safetensors", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == expected.tolist()
    safetensors.numpy.save_file({"a": expected, "b": expected}, tmp_path / "two.safetensors")
    assert "one array, 2" in run("convert", tmp_path / "two.safetensors", tmp_path / "c.npy", status=2).stderr


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_casts_are_those_of_torch_and_numpy(tmp_path: pathlib.Path, source: torch.dtype) -> None:
    """Every kind of number: random bits, numbers near those of 16 bits and near the middle of two."""
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    near = halves.view(torch.bfloat16).double(), halves.view(torch.float16).double()
    both = torch.cat(near)
    values = torch.cat([both, both * (1 + 2.0**-12), both * (1 + 2.0**-9), both * (1 - 2.0**-11 + 2.0**-20)])
    mixed = torch.cat([values.to(source).flatten(), random_torch(source, (50_000,))])
    safetensors.torch.save_file({"x": mixed, "i": torch.arange(3), "c": torch.ones(2) * 1j}, tmp_path / "a.safetensors")
    for name, dtype in {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}.items():
        run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--dtype", name, "--overwrite")
        loaded = load(tmp_path / "b.safetensors")
        assert loaded["i"].dtype == torch.int64 and loaded["c"].dtype == torch.complex64
        found, expected = loaded["x"], mixed.to(dtype)
        if source == torch.float64 and dtype == torch.float16:  # torch rounds twice
            with np.errstate(all="ignore"):
                expected = torch.from_numpy(mixed.numpy().astype(np.float16))
        nan = expected.isnan()
        assert found.dtype == dtype and bool((found.isnan() == nan).all())
        right = (found == expected) & (found.signbit() == expected.signbit()) | nan
        if source == torch.float64 and dtype == torch.bfloat16:  # as numpy has none: as near as torch's, or nearer
            off, given = (x[~right].double() - mixed[~right] for x in (found, expected))
            assert bool((off.abs() <= given.abs()).all()) and int((~right).sum()) < len(mixed) / 100
        else:
            assert bool(right.all())


def test_a_folder_of_hugging_face_in_shards(
    model: tuple[pathlib.Path, dict[str, torch.Tensor]], tmp_path: pathlib.Path
) -> None:
    path, expected = model
    hub = tmp_path / "hub"
    arguments = ["--to", "hf", "--dtype", "bf16", "--max-shard-size", "10MB", "-r", "model/*={1}"]
    found = run_json("convert", path, hub, *arguments)
    index = json.loads((hub / "model.safetensors.index.json").read_text())
    assert found["files"] == len(set(index["weight_map"].values())) == len(os.listdir(hub)) - 1 > 1
    assert index["metadata"]["total_size"] == found["bytes"]
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(hub / file, "pt") as shard:
            tensor = expected[name]
            wanted = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            assert same(shard.get_tensor(name), wanted.contiguous()), name
    loaded = pawl.load(hub)
    assert set(loaded) == set(index["weight_map"])
    run("convert", hub, tmp_path / "one.safetensors")
    assert all(same(load(tmp_path / "one.safetensors")[name], loaded[name]) for name in loaded)


def test_runs_by_selector_and_step(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in (5, 9):
            manager.save(step, {"model": {"w": torch.full((3,), float(step))}, "n": step})
    for arguments, value in (([], 9.0), (["--step", "5"], 5.0)):
        run("convert", tmp_path / "run", tmp_path / "w.safetensors", "--overwrite", "--dots", *arguments)
        assert load(tmp_path / "w.safetensors")["model.w"].tolist() == [value] * 3
    run("convert", f"{tmp_path}/run@step:5", tmp_path / "v.safetensors")
    assert load(tmp_path / "v.safetensors")["model/w"].tolist() == [5.0] * 3


def test_names_and_what_is_asked_for(tmp_path: pathlib.Path) -> None:
    names = ["enc.0.w", "enc.1.w", "dec.0.w", "head"]
    safetensors.torch.save_file({name: torch.ones(1) for name in names}, tmp_path / "a.safetensors")

    def converted(*arguments: str) -> set[str]:
        run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--overwrite", *arguments)
        return set(load(tmp_path / "b.safetensors"))

    assert converted("-i", "enc.*") == {"enc.0.w", "enc.1.w"}
    assert converted("-x", "enc.*", "-x", "head") == {"dec.0.w"}
    assert converted("-i", "*.0.*", "-x", "dec.*") == {"enc.0.w"}
    assert converted("-r", "enc.*=encoder.{1}", "-r", "*.w={1}") == {"encoder.0.w", "encoder.1.w", "dec.0", "head"}
    for arguments, status, says in (
        (["-r", "*.w=x"], 7, "two tensors would get the name x"),
        (["-r", "*={2}"], 2, "1 wildcard"),
        (["-i", "nothing"], 3, "include and exclude leave no tensor"),
        (["--dtype", "int8"], 2, "dtype"),
        (["--max-shard-size", "1MB"], 2, "only a folder"),
    ):
        target = tmp_path / "c.safetensors"
        assert says in run("convert", tmp_path / "a.safetensors", target, *arguments, status=status).stderr
    assert "format has this suffix" in run("convert", tmp_path / "a.safetensors", tmp_path / "c.bin", status=2).stderr
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "b.safetensors"]


def test_what_is_there_stays_unless_it_may_be_replaced(tmp_path: pathlib.Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    for name in ("b.safetensors", "b.npz"):
        (tmp_path / name).write_text("precious")
        assert "already exists" in run("convert", tmp_path / "a.safetensors", tmp_path / name, status=7).stderr
        assert (tmp_path / name).read_text() == "precious"
        run("convert", tmp_path / "a.safetensors", tmp_path / name, "--overwrite")
        assert pawl.load(tmp_path / name)["w"].tolist() == [1]


def test_P1_a_flipped_bit_is_found_before_the_file_is_there(
    model: tuple[pathlib.Path, dict[str, torch.Tensor]], tmp_path: pathlib.Path
) -> None:
    """Of a storage that is longer than what is read at a time, and that several tensors share."""
    path, expected = model
    data = bytearray(path.read_bytes())
    at = data.find(expected["layer.0.weight"].numpy().tobytes()[:64]) + 40_000_000
    data[at] ^= 4
    path.write_bytes(data)
    for arguments in ([], ["-i", "model/part"], ["-i", "model/tied", "--dtype", "bf16"]):
        failed = run("convert", path, tmp_path / "m.safetensors", *arguments, status=4)
        assert "CRC" in failed.stderr and os.listdir(tmp_path) == ["m.pt"]
    run("convert", path, tmp_path / "m.safetensors", "-i", "model/turned")  # is elsewhere


def test_P4_no_room_leaves_nothing(model: tuple[pathlib.Path, dict[str, torch.Tensor]], tmp_path: pathlib.Path) -> None:
    """As a limit on the size of files; what is there already stays."""
    path, _ = model
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.safetensors").write_text("precious")

    def limited(nbytes: int) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

        line = [PAWL, "convert", str(path), str(tmp_path / "out" / "m.safetensors"), "--overwrite"]
        with_signal_off = ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh", *line]
        return subprocess.run(
            with_signal_off, preexec_fn=limit, capture_output=True, text=True, env=environment(), timeout=HANG_SECONDS
        )

    failed = limited(20_000_000)
    assert failed.returncode not in (0, None) and "File too large" in failed.stderr, failed.stderr
    assert os.listdir(tmp_path / "out") == ["m.safetensors"]
    assert (tmp_path / "out" / "m.safetensors").read_text() == "precious"
    assert limited(1 << 30).returncode == 0
    assert len(load(tmp_path / "out" / "m.safetensors")) == 6


def peak_bytes(*line: str) -> int:
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
    )
    return int(subprocess.check_output(["python3", "-c", code, *line], text=True, env=environment()))


def test_R151_conversion_takes_little_memory_whatever_the_size(tmp_path: pathlib.Path) -> None:
    """500 MB of zeros, which take no room on the disk until they have been written."""
    count, parts = 25_000_000, 5
    row: dict[str, Any] = {"dtype": "F32", "shape": [count]}
    rows = {f"w{i}": row | {"data_offsets": [4 * count * i, 4 * count * (i + 1)]} for i in range(parts)}
    header = json.dumps(rows).encode()
    with open(tmp_path / "big.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * count * parts)
    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "small.safetensors")
    least = peak_bytes(PAWL, "convert", str(tmp_path / "small.safetensors"), str(tmp_path / "small.npz"), "-q")
    for target, arguments in (("a.safetensors", ["--dtype", "bf16"]), ("a.npz", [])):
        most = peak_bytes(PAWL, "convert", str(tmp_path / "big.safetensors"), str(tmp_path / target), "-q", *arguments)
        print(f"{target}: {most >> 20} MiB, a small file {least >> 20} MiB")
        assert most - least < 128 << 20
        (tmp_path / target).unlink()


def test_a_tied_tensor_with_the_name_of_a_metadata_key_is_written_again(tmp_path: pathlib.Path) -> None:
    weight, pairs = torch.arange(3.0), torch.ones(2, dtype=torch.complex128)
    names = ["a", "format", "pawl.tensors", "pawl.state", "tied"]
    pawl.save(dict.fromkeys(names, weight) | {"z": pairs}, tmp_path / "ck")
    run("convert", tmp_path / "ck", tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    rows = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], object_pairs_hook=list)
    notes = [key for key, _ in dict(rows)["__metadata__"]]
    assert sorted(notes) == ["format", "pawl.tensors", "tied"]
    loaded = pawl.load(tmp_path / "m.safetensors")
    assert set(loaded) == set(names) - {"tied"} | {"z"} and same(loaded["z"], torch.view_as_real(pairs))
    assert all(same(loaded[name], weight) for name in loaded if name != "z")
    run("convert", tmp_path / "ck", tmp_path / "m.pt")
    assert set(torch.load(tmp_path / "m.pt", weights_only=True)) == {*names, "z"}


def test_the_name_of_the_metadata_is_refused_for_a_tensor_of_a_safetensors_file(tmp_path: pathlib.Path) -> None:
    pawl.save({"__metadata__": torch.ones(2), "w": torch.ones(3)}, tmp_path / "ck")
    for to in (["m.safetensors"], ["hf", "--to", "hf"]):
        done = run("convert", tmp_path / "ck", tmp_path / to[0], *to[1:], status=2)
        assert "cannot have the name __metadata__" in done.stderr and not (tmp_path / to[0]).exists()
    run("convert", tmp_path / "ck", tmp_path / "m.safetensors", "-r", "__metadata__=metadata")
    assert set(safetensors.torch.load_file(tmp_path / "m.safetensors")) == {"metadata", "w"}
    run("convert", tmp_path / "ck", tmp_path / "m.pt")
    assert set(torch.load(tmp_path / "m.pt", weights_only=True)) == {"__metadata__", "w"}


def test_a_file_of_torch_is_one_flat_dict(
    model: tuple[pathlib.Path, dict[str, torch.Tensor]], tmp_path: pathlib.Path
) -> None:
    path, expected = model
    run("convert", path, tmp_path / "n.pt", "-r", "model/*={1}")
    loaded = torch.load(tmp_path / "n.pt", weights_only=True)
    assert set(loaded) == set(expected) and all(same(loaded[n], expected[n].contiguous()) for n in expected)
    assert loaded["tied"].data_ptr() == loaded["layer.0.weight"].data_ptr()
    assert zipfile.ZipFile(tmp_path / "n.pt").testzip() is None
    run("verify", tmp_path / "n.pt")
    run("convert", tmp_path / "n.pt", tmp_path / "half.pth", "--dtype", "bf16")
    half = torch.load(tmp_path / "half.pth", weights_only=True)
    assert same(half["layer.0.weight"], expected["layer.0.weight"].bfloat16())
