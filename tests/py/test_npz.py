# SPDX-License-Identifier: Apache-2.0
"""Files of numpy, and sets of safetensors files with an index: what numpy and safetensors wrote pawl opens, in every
command that looks; what it cannot hold or is damaged it refuses by name."""

from __future__ import annotations

import io
import json
import pathlib
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from common import random_torch, same

import pawl
from cli import run, run_json

NAMES = "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16".split()


def random_numpy(name: str, shape: tuple[int, ...], order: str = "C") -> Any:
    count = int(np.prod(shape))
    bits = np.random.default_rng(7).integers(0, 256, count * np.dtype(name).itemsize, dtype=np.uint8)
    if name == "?":
        bits &= 1
    return np.asarray(bits.view(name).reshape(shape), order=order)  # type: ignore[call-overload]


def arrays() -> dict[str, Any]:
    """Every dtype that both have, in both orders, without elements and without dimensions."""
    shapes = ((7, 5, 3), (0, 4), (), (600, 500))
    return {f"{n}/{o}.{len(s)}{s[:1]}": random_numpy(n, s, o) for n in NAMES for o in "CF" for s in shapes}


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(a.tobytes()) == bytes(b.tobytes())


def test_an_archive_of_numpy_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    expected = arrays()
    np.savez(tmp_path / "all.npz", **expected)
    loaded = pawl.load(tmp_path / "all.npz")
    assert set(loaded) == set(expected)
    assert all(isinstance(loaded[n], np.ndarray) and equal(loaded[n], expected[n]) for n in expected)
    assert run("verify", tmp_path / "all.npz").returncode == 0
    assert run_json("show", tmp_path / "all.npz")["checkpoint"]["format"] == "numpy.savez"


def test_a_compressed_archive_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    expected = arrays() | {"large": np.arange(1_500_000) % 1000, "noise": random_numpy("f4", (900, 1000))}
    np.savez_compressed(tmp_path / "all.npz", **expected)
    loaded = pawl.load(tmp_path / "all.npz")
    assert set(loaded) == set(expected)
    assert all(equal(loaded[n], expected[n]) for n in expected)
    assert run("verify", tmp_path / "all.npz").returncode == 0
    assert run_json("show", tmp_path / "all.npz")["checkpoint"]["format"] == "numpy.savez"
    (tmp_path / "all.npz").rename(tmp_path / "weights")  # by its first bytes
    assert equal(pawl.load(tmp_path / "weights")["large"], expected["large"])
    run("convert", tmp_path / "weights", tmp_path / "plain.npz", "--include", "l*")
    assert equal(np.load(tmp_path / "plain.npz")["large"], expected["large"])


def test_T7_a_compressed_archive_is_unpacked_where_TMPDIR_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", w=np.arange(9))
    (tmp_path / "spool").mkdir()
    assert run("verify", tmp_path / "a.npz", TMPDIR=str(tmp_path / "spool")).returncode == 0
    assert not list((tmp_path / "spool").iterdir())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(pawl.PawlError, match="TMPDIR"):
        pawl.load(tmp_path / "a.npz")


def test_P1_a_flipped_bit_of_a_compressed_archive_is_seen(tmp_path: pathlib.Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", w=random_numpy("f8", (30_000,)))
    assert run("verify", tmp_path / "a.npz").returncode == 0
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[100_000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(pawl.CorruptError, match="a.npz"):
        pawl.load(tmp_path / "a.npz")
    run("verify", tmp_path / "a.npz", status=4)


def test_one_array_of_every_version_of_the_format(tmp_path: pathlib.Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        for order in "CF":
            array = random_numpy("f4", (70, 30), order)
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, array, version=version)
            assert equal(pawl.load(tmp_path / "a.npy"), array)
    assert "no checksums" in run("verify", tmp_path / "a.npy").stderr


def test_live_arrays_are_filled_from_either_order(tmp_path: pathlib.Path) -> None:
    expected = {"w": random_numpy("f8", (300, 200), "F"), "b": random_numpy("i4", (9,))}
    np.savez(tmp_path / "a.npz", **expected)
    live = {name: np.zeros_like(array, order="C") for name, array in expected.items()}
    pawl.load(tmp_path / "a.npz", state=live)
    assert all(equal(live[name], expected[name]) for name in expected)


def test_an_archive_by_another_name(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.arange(3))
    (tmp_path / "a.npz").rename(tmp_path / "weights")
    assert pawl.load(tmp_path / "weights")["w"].tolist() == [0, 1, 2]


def test_commands_look_at_archives_of_numpy(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.arange(6.0).reshape(2, 3), b=np.zeros(2))
    np.savez(tmp_path / "b.npz", w=np.arange(6.0).reshape(2, 3) + 1, b=np.zeros(2))
    (row,) = run_json("diff", tmp_path / "a.npz", tmp_path / "b.npz", status=1)["rows"]
    assert (row["path"], row["max_abs"]) == ("w", 1)
    run("export", tmp_path / "a.npz", tmp_path / "a.safetensors")
    assert safetensors.torch.load_file(tmp_path / "a.safetensors")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_P1_a_flipped_bit_of_an_archive_is_seen(tmp_path: pathlib.Path) -> None:
    array = np.arange(100_000.0)
    np.savez(tmp_path / "a.npz", w=array)
    assert run("verify", tmp_path / "a.npz").returncode == 0
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[400_000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(pawl.CorruptError, match="CRC"):
        pawl.load(tmp_path / "a.npz")
    run("verify", tmp_path / "a.npz", status=4)


def header(text: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H", len(text)) if version == b"\x01\x00" else struct.pack("<I", len(text))
    return b"\x93NUMPY" + version + length + text + data


def good(**changes: str) -> bytes:
    parts = {"descr": "'<f4'", "fortran_order": "False", "shape": "(2,)"} | changes
    return ("{" + ", ".join(f"'{key}': {value}" for key, value in parts.items()) + ", }\n").encode()


EIGHT = bytes(8)
BROKEN = {
    "empty": b"",
    "magic only": b"\x93NUMPY",
    "version 0": header(good(), EIGHT, b"\x00\x00"),
    "version 9": header(good(), EIGHT, b"\x09\x00"),
    "no header": header(b"", EIGHT),
    "header beyond the end": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + good(),
    "header of 70,000 bytes": header(good() + b" " * 70000, EIGHT, b"\x02\x00"),
    "cut": header(good(), EIGHT[:-1]),
    "longer": header(good(), EIGHT + b"x"),
    "no dict": header(b"[1, 2]", EIGHT),
    "code": header(b"__import__('os').system('true')", EIGHT),
    "unclosed": header(good().rstrip(b"\n} ,"), EIGHT),
    "behind": header(good() + b"x", EIGHT),
    "key twice": header(good().replace(b"'fortran_order': False", b"'descr': '<f4'"), EIGHT),
    "shape twice": header(good(fortran_order="False, 'shape': (2,)"), EIGHT),
    "key missing": header(good().replace(b"'fortran_order': False, ", b""), EIGHT),
    "another key": header(good(shape="(2,), 'x': 1"), EIGHT),
    "order a number": header(good(fortran_order="1"), EIGHT),
    "shape no tuple": header(good(shape="(2)"), EIGHT),
    "shape a list": header(good(shape="[2]"), EIGHT),
    "shape negative": header(good(shape="(-2,)"), EIGHT),
    "shape of floats": header(good(shape="(2.0,)"), EIGHT),
    "shape huge": header(good(shape="(4294967296, 4294967296, 4)"), EIGHT),
    "extent beyond 64 bits": header(good(shape="(18446744073709551618,)"), EIGHT),
    "65 dimensions": header(good(shape="(" + "1, " * 65 + ")"), EIGHT),
    "descr escaped": header(good(descr="'\\x3cf4'"), EIGHT),
    "descr long": header(good(descr="'" + "f" * 100 + "'"), EIGHT),
    "descr empty": header(good(descr="''"), EIGHT),
}
FOREIGN = {
    "objects": (header(good(descr="'|O'"), EIGHT), "objects"),
    "fields": (header(good(descr="[('a', '<f4')]"), EIGHT), "structured"),
    "texts": (header(good(descr="'<U1'"), EIGHT), "arrays of text"),
    "dates": (header(good(descr="'<M8[s]'", shape="(1,)"), EIGHT), "dates"),
    "raw bytes": (header(good(descr="'|V4'"), EIGHT), "raw bytes"),
    "big-endian": (header(good(descr="'>f4'"), EIGHT), "big-endian"),
    "long doubles": (header(good(descr="'<f16'", shape="()"), bytes(16)), "<f16"),
}


def archive(member: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(member, data)
    return out.getvalue()


def test_the_headers_are_only_broken_where_they_are_meant_to_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.npy").write_bytes(header(good(), EIGHT))
    assert np.load(tmp_path / "a.npy").tolist() == pawl.load(tmp_path / "a.npy").tolist() == [0, 0]
    (tmp_path / "a.npz").write_bytes(archive("a.npy", header(good(), EIGHT)))
    assert np.load(tmp_path / "a.npz")["a"].tolist() == pawl.load(tmp_path / "a.npz")["a"].tolist() == [0, 0]


@pytest.mark.parametrize("name", BROKEN)
def test_P17_broken_headers_are_refused(tmp_path: pathlib.Path, name: str) -> None:
    for file, data in (("bad.npy", BROKEN[name]), ("bad.npz", archive("m.npy", BROKEN[name]))):
        (tmp_path / file).write_bytes(data)
        with pytest.raises((pawl.CorruptError, pawl.LimitError, pawl.UnsupportedError), match=file):
            pawl.load(tmp_path / file)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_pawl_has_no_dtype_for_is_refused_by_name(tmp_path: pathlib.Path, name: str) -> None:
    data, says = FOREIGN[name]
    for file, content in (("a.npy", data), ("a.npz", archive("m.npy", data))):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(pawl.UnsupportedError, match=says):
            pawl.load(tmp_path / file)


def test_members_that_are_no_arrays_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "n.npz").write_bytes(archive("notes.txt", b"text"))
    with pytest.raises(pawl.UnsupportedError, match="not an array"):
        pawl.load(tmp_path / "n.npz")
    (tmp_path / "d.npz").write_bytes(archive("../m.npy", header(good(), EIGHT)))
    with pytest.raises(pawl.CorruptError, match="safe name"):
        pawl.load(tmp_path / "d.npz")


# ------------------------------------------------------------------ shard sets


def write_set(folder: pathlib.Path, name: str = "model") -> dict[str, torch.Tensor]:
    """As save_pretrained leaves it: the index names every tensor; one file holds a tensor more."""
    tensors = {f"layer.{i}.weight": random_torch(torch.bfloat16, (40, 30), i) for i in range(5)}
    tensors["scale"] = torch.tensor(2.5)
    folder.mkdir()
    parts = [list(tensors)[:3], list(tensors)[3:]]
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"{name}-{i + 1:05d}-of-00002.safetensors"
        extra = {"not.named": torch.zeros(3)} if i == 0 else {}
        safetensors.torch.save_file(
            {key: tensors[key] for key in part} | extra, folder / file, metadata={"format": "pt"}
        )
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 12004, "note": "n"}, "weight_map": weight_map}
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index))
    return tensors


def test_a_set_of_shards_is_one_checkpoint(tmp_path: pathlib.Path) -> None:
    expected = write_set(tmp_path / "hub")
    for path in (tmp_path / "hub", tmp_path / "hub" / "model.safetensors.index.json"):
        loaded = pawl.load(path)
        assert list(loaded) == list(expected) and all(same(loaded[name], expected[name]) for name in expected)
        shown = run_json("show", path)
        assert shown["checkpoint"]["format"] == "safetensors shards" and shown["metadata"]["total_size"] == 12004
        assert "no checksums" in run("verify", path).stderr
    other = write_set(tmp_path / "named", "diffusion_pytorch_model")
    loaded = pawl.load(tmp_path / "named" / "diffusion_pytorch_model.safetensors.index.json")
    assert same(loaded["scale"], other["scale"])


def test_a_folder_with_one_model(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(4)}, tmp_path / "m" / "model.safetensors")
    assert pawl.load(tmp_path / "m")["w"].tolist() == [0, 1, 2, 3]
    assert run("verify", tmp_path / "m").returncode == 0


def test_P17_an_index_that_is_not_true_is_refused(tmp_path: pathlib.Path) -> None:
    write_set(tmp_path / "hub")
    index = tmp_path / "hub" / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    first = whole["weight_map"]["scale"]
    for change, says in (
        ({"scale": "../" + first}, "not a safe name"),
        ({"scale": "gone.safetensors"}, "which does not exist"),
        ({"scale": "model-00001-of-00002.safetensors"}, "no such tensor"),
        ({"scale": 3}, "weight_map"),
    ):
        index.write_text(json.dumps(whole | {"weight_map": whole["weight_map"] | change}))
        with pytest.raises(pawl.CorruptError, match=says):
            pawl.load(tmp_path / "hub")
        run("show", tmp_path / "hub", status=4)
    index.write_text(json.dumps(whole))
    assert len(pawl.load(tmp_path / "hub")) == 6
