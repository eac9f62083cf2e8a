# SPDX-License-Identifier: Apache-2.0
"""What torch.save writes pawl opens, without running anything in it: equal to what torch.load gives, or refused."""

from __future__ import annotations

import collections
import datetime
import io
import os
import pathlib
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from common import TORCH_DTYPES, random_torch, same
from torch.utils.serialization import config

import pawl
import pawl.torch
from cli import run, run_json


def check(path: pathlib.Path, expected: Any = None) -> Any:
    """Loads it, equal to what torch loads of it."""
    expected = torch.load(path, weights_only=True) if expected is None else expected
    loaded = pawl.load(path)
    assert same(loaded, expected)
    return loaded


def saved(tmp_path: pathlib.Path, state: Any, name: str = "x.pt", **options: Any) -> pathlib.Path:
    torch.save(state, tmp_path / name, **options)
    return tmp_path / name


def training() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    shapes = ((7, 6), (0, 4), (), (1,), (2, 0, 3))
    state = {
        f"{dtype} {shape}": random_torch(dtype, shape, i)
        for i, dtype in enumerate(TORCH_DTYPES)
        for shape in shapes
        if not (dtype == torch.float4_e2m1fn_x2 and shape == ())
    }
    check(saved(tmp_path, state))


def test_a_training_with_its_optimizer(tmp_path: pathlib.Path) -> None:
    loaded = check(saved(tmp_path, training()))
    assert isinstance(loaded["model"], collections.OrderedDict)
    assert set(loaded["optimizer"]["state"]) == set(range(6))  # integers, as they were
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(120.0)
    return {
        "base": base,
        "middle": base[7:60],
        "steps": base[::3],
        "transposed": base.view(10, 12).t(),
        "permuted": base.view(2, 3, 4, 5).permute(3, 0, 2, 1),
        "columns": base.view(10, 12)[:, 3:7],
        "column": base.view(10, 12)[:, 5],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.arange(3.0).view(3, 1).expand(3, 50),
        "expanded twice": torch.tensor(2.5).expand(4, 5),
        "windows": base.unfold(0, 10, 3),
        "empty of a view": base.view(10, 12)[3:3],
        "one": base[7],
        "half": torch.arange(24, dtype=torch.float16).view(4, 6).t(),
        "double": torch.randn(300, 200, dtype=torch.float64).t(),
    }


def test_views_come_back_as_what_they_show(tmp_path: pathlib.Path) -> None:
    check(saved(tmp_path, views()))


def test_R151_views_are_written_anew_and_exported(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, views() | {"long": "x" * 9000, "bytes": b"\xff" * 9000})
    run("reshard", path, tmp_path / "run", "--world", "3")
    assert "every byte is as it was written" in run("verify", tmp_path / "run").stderr
    assert "equal, bit for bit" in run("diff", path, tmp_path / "run").stderr
    run("export", path, tmp_path / "x.safetensors")
    exported = safetensors.torch.load_file(tmp_path / "x.safetensors")
    expected = torch.load(path)
    assert all(same(tensor, expected[name].contiguous()) for name, tensor in exported.items())
    assert set(exported) == {name for name, value in expected.items() if isinstance(value, torch.Tensor)}


def test_a_transposed_tensor_larger_than_a_slab_is_exported(tmp_path: pathlib.Path) -> None:
    """Slabs are 32 MiB: each takes its part of every row of the file. C128 is split between its two numbers."""
    state = {
        "a": torch.arange(3, dtype=torch.float64),
        "b": torch.randn(1500, 1700, dtype=torch.complex128).t(),
        "c": torch.randn(3, 1100, 1300, dtype=torch.float64).permute(2, 0, 1),
    }
    path = saved(tmp_path, state)
    run("export", path, tmp_path / "x.safetensors")
    exported = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert torch.equal(torch.view_as_complex(exported["b"]), state["b"])
    assert torch.equal(exported["c"], state["c"]) and torch.equal(exported["a"], state["a"])
    check(path)


def test_a_part_of_a_transposed_tensor_is_read(tmp_path: pathlib.Path) -> None:
    whole = torch.arange(5000.0).view(50, 100).t()
    path = saved(tmp_path, {"w": whole})
    part = torch.zeros(30, 20)
    pawl.load(path, state={"w": pawl.Shard(part, (100, 50), (60, 17))})
    assert torch.equal(part, whole[60:90, 17:37])
    live = torch.zeros(50, 100).t()  # into memory that is not in order either
    pawl.load(path, state={"w": live})
    assert torch.equal(live, whole)


def test_what_shares_memory_is_tied(tmp_path: pathlib.Path) -> None:
    a = torch.randn(4, 3)
    path = saved(tmp_path, {"a": a, "b": [a, a.view(4, 3)], "t": a.t(), "other": a.clone()})
    loaded = check(path)
    assert loaded["a"].data_ptr() == loaded["b"][0].data_ptr() == loaded["b"][1].data_ptr()
    assert loaded["t"].data_ptr() != loaded["a"].data_ptr()
    shown = run("show", path).stdout
    assert "tied to a" in shown
    assert {row["name"] for row in run_json("show", path)["tensors"]} == {"a", "t", "other"}


def test_values_of_every_kind(tmp_path: pathlib.Path) -> None:
    state = {
        "int": 7,
        "big": 2**70,
        "negative": -(2**70),
        "edges": [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 255, 256, 65535, 65536, -1, 0],
        "float": [1.5, float("inf"), -0.0],
        "bool": [True, False],
        "none": None,
        "str": "é\n",
        "long": "é" * 10_000,
        "bytes": b"\0\xff",
        "long bytes": bytes(range(256)) * 40,
        "tuple": (1, (2.0, "3"), ()),
        "nested": [[], {}, [{"a": ({},)}]],
        "ordered": collections.OrderedDict(b=1, a=2),
        1: "whole number",
        -5: 1,
        2.5: "float",
        b"k": "bytes",
        None: 1,
        "a/b%c": {"": 0},
    }
    check(saved(tmp_path, state))


def test_a_size_is_a_tuple(tmp_path: pathlib.Path) -> None:
    assert pawl.load(saved(tmp_path, {"s": torch.Size([2, 3]), "e": torch.Size([])})) == {"s": (2, 3), "e": ()}


def test_parameters_and_gradients_come_back_as_such(tmp_path: pathlib.Path) -> None:
    state = {
        "p": torch.nn.Parameter(torch.randn(3)),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "grad": torch.randn(2, requires_grad=True),
        "f8": torch.nn.Parameter(torch.zeros(4, dtype=torch.float8_e4m3fn), requires_grad=False),
    }
    with_notes = torch.nn.Parameter(torch.randn(2))
    with_notes.note = "left out"  # type: ignore[attr-defined]
    tensor = torch.randn(2)
    tensor.note = [1]  # type: ignore[attr-defined]
    loaded = check(saved(tmp_path, state | {"n": with_notes, "t": tensor, "buffer": torch.nn.Buffer(torch.ones(2))}))
    assert isinstance(loaded["p"], torch.nn.Parameter) and isinstance(loaded["n"], torch.nn.Parameter)
    assert not isinstance(loaded["grad"], torch.nn.Parameter) and loaded["grad"].requires_grad


@pytest.mark.parametrize("root", [torch.arange(3), [1, torch.ones(2)], (torch.zeros(1),), "text", 5, {}, []])
def test_the_root_may_be_anything(tmp_path: pathlib.Path, root: Any) -> None:
    check(saved(tmp_path, root))


def test_by_any_name_and_from_a_stream(tmp_path: pathlib.Path) -> None:
    stream = io.BytesIO()
    torch.save(training(), stream)
    for name in ("a.pth", "pytorch_model.bin", "last.ckpt", "0f1e2d3c", "é (1).pt"):
        (tmp_path / name).write_bytes(stream.getvalue())
        check(tmp_path / name)
    (tmp_path / "link.pt").symlink_to(tmp_path / "last.ckpt")
    check(tmp_path / "link.pt")


def test_a_file_of_before_torch_1_6_is_refused_with_what_to_do(tmp_path: pathlib.Path) -> None:
    for name in ("old.pt", "old.bin"):
        path = saved(tmp_path, training(), name, _use_new_zipfile_serialization=False)
        with pytest.raises(pawl.UnsupportedError, match=f"{name}.*load it with torch.load and save it again"):
            pawl.load(path)


def test_live_tensors_are_filled_in_place(tmp_path: pathlib.Path) -> None:
    there, here = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    path = saved(tmp_path, there.state_dict())
    pawl.load(path, state=here)
    assert all(torch.equal(a, b) for a, b in zip(there.parameters(), here.parameters(), strict=True))
    assert same(dict(pawl.load(path, ["weight"])), {"weight": there.weight.detach()})
    with pytest.raises(pawl.MismatchError, match="bias"):
        pawl.load(path, state={"weight": torch.zeros(20, 30)})


def test_a_file_as_a_checkpoint(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, training())
    found = pawl.Checkpoint(path)
    expected = torch.load(path)
    assert same({name: found.to_dict()[name] for name in expected}, expected) and found.get_metadata() == {}
    with pytest.raises(pawl.UsageError, match="only reads"):
        found.set_metadata({})
    folder = found.to_directory(tmp_path / "folder")
    assert same(pawl.load(folder), expected)
    with found.as_directory() as folder:
        assert same(pawl.load(folder), expected)


def test_the_commands_take_a_file(tmp_path: pathlib.Path) -> None:
    """R150: without loading tensors."""
    path = saved(tmp_path, training())
    shown = run("show", path).stdout
    assert "torch.save" in shown and "param_groups" in shown and "F32 [7, 10]" in shown
    assert run_json("show", path)["checkpoint"]["format"] == "torch.save"
    assert "every part with a CRC" in run("verify", path).stderr
    assert "program" in run("restore", path, tmp_path / "y", status=2).stderr
    assert "program" in run("repair", path, status=2).stderr
    other = training()
    other["model"]["0.bias"][2] += 1
    (row,) = run_json("diff", path, saved(tmp_path, other, "y.pt"), status=1)["rows"]
    assert (row["path"], row["change"]) == ("model/0.bias", "changed")


@pytest.mark.parametrize("alignment", [1, 4096, 32768])
def test_storages_may_be_aligned_to_anything(tmp_path: pathlib.Path, alignment: int) -> None:
    previous = config.save.storage_alignment
    config.save.storage_alignment = alignment
    try:
        path = saved(tmp_path, {"a": torch.arange(3), "b": torch.randn(7)})
    finally:
        config.save.storage_alignment = previous
    check(path)
    assert "readable" in run("verify", path).stdout


def flip(path: pathlib.Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def storage_at(path: pathlib.Path, number: int) -> int:
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f"/data/{number}")]
        header = archive.getinfo(name).header_offset
    data = path.read_bytes()
    lengths = struct.unpack_from("<HH", data, header + 26)
    return header + 30 + sum(lengths)


def test_P1_a_flipped_bit_of_a_tensor_is_found(tmp_path: pathlib.Path) -> None:
    """By the archive's own CRC, which torch.load does not check; not where torch wrote none."""
    state = {"a": torch.zeros(10), "b": torch.zeros(3_000_000), "c": torch.zeros(5)}
    path = saved(tmp_path, state)
    assert "readable" in run("verify", path).stdout
    flip(path, storage_at(path, 1) + 9_000_000)
    torch.load(path)  # says nothing
    with pytest.raises(pawl.CorruptError, match=r"tensor b.*CRC"):
        pawl.load(path)
    assert same(pawl.load(path, ["a", "c"]), {"a": state["a"], "c": state["c"]})
    found = run("verify", path, status=4).stdout
    assert "corrupt" in found and "CRC" in found and "b" in found
    previous = config.save.compute_crc32
    config.save.compute_crc32 = False
    try:
        path = saved(tmp_path, state, "without.pt")
    finally:
        config.save.compute_crc32 = previous
    check(path)
    assert "readable" in run("verify", path).stdout
    flip(path, storage_at(path, 1) + 9_000_000)
    assert pawl.load(path)["b"].count_nonzero() == 1


def test_P1_a_flipped_bit_of_the_object_is_found(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, {"key": 1})
    flip(path, path.read_bytes().index(b"key"))
    with pytest.raises(pawl.CorruptError, match="data.pkl"):
        pawl.load(path)


class Call:
    """Unpickled, it calls something."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, Any]:
        return self.call


def test_R148_arrays_of_numpy_times_and_versions_are_read(tmp_path: pathlib.Path) -> None:
    """What trainers save in addition to tensors: the state of numpy's generator, lengths of time, the version of torch."""
    base = np.arange(12, dtype=np.int32).reshape(3, 4)
    arrays: dict[str, Any] = {
        "rows": base,
        "same": base,
        "columns": np.asfortranarray(base.astype(np.float64)),
        "turned": base.T,
        "cut": base[:, 1:3],
        "empty": np.zeros((0, 3)),
        "point": np.array(3.5),
        "scalar": np.float64(2.5),
        "yes": np.bool_(True),
        "complex": base.astype(np.complex128),
        "half": base.astype(np.float16),
    }
    state = {**arrays, "time": datetime.timedelta(days=1, seconds=2, microseconds=500_000), "torch": torch.__version__}
    state |= {"rng": np.random.RandomState(3).get_state(), "weights": torch.ones(3), "none": b""}
    path = tmp_path / "x.pt"
    torch.save(state, path)
    tree = pawl.load(path)
    for name, array in arrays.items():
        assert type(tree[name]) is type(array) and tree[name].dtype == array.dtype
        assert np.array_equal(tree[name], array)
    assert tree["rows"] is tree["same"]
    assert tree["time"] == 86402.5 and tree["torch"] == str(torch.__version__) and type(tree["torch"]) is str
    generator = np.random.RandomState()
    generator.set_state(tree["rng"])
    assert generator.random() == np.random.RandomState(3).random()
    assert torch.equal(tree["weights"], torch.ones(3)) and tree["none"] == b""


class FalseArray:
    """Pickled as an array with a state of the attacker's choice."""

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments = np.zeros(1).__reduce__()[:2]
        return make, arguments, self.state


def test_P17_arrays_of_numpy_that_are_none_are_refused(tmp_path: pathlib.Path) -> None:
    f8 = np.dtype("f8")
    cases: dict[str, FalseArray] = {
        "too few bytes": FalseArray(1, (1000,), f8, False, b"x" * 16),
        "too many": FalseArray(1, (1,), f8, False, b"x" * 16),
        "a shape beyond 64 bits": FalseArray(1, (2**62, 2**62), f8, False, b"x" * 16),
        "a negative shape": FalseArray(1, (-1,), f8, False, b"x" * 8),
        "no dtype": FalseArray(1, (1,), 8, False, b"x" * 8),
        "no bytes": FalseArray(1, (1,), f8, False, ["x"]),
        "no order": FalseArray(1, (1,), f8, 0, b"x" * 8),
        "no state": FalseArray(1),
    }
    for name, false in cases.items():
        torch.save({"k": false}, tmp_path / "x.pt")
        with pytest.raises((pawl.CorruptError, pawl.LimitError), match=r"k: "):
            pawl.load(tmp_path / "x.pt")
            raise AssertionError(name)
    torch.save({"k": FalseArray(1, (2,), f8, False, np.arange(2.0).tobytes())}, tmp_path / "x.pt")  # and one that is
    assert np.array_equal(pawl.load(tmp_path / "x.pt")["k"], np.arange(2.0))


def test_R149_what_cannot_be_held_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    """P17: and nothing is run."""
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    cases: dict[str, tuple[Any, str]] = {
        "array of texts": ({"a": np.array(["x"])}, "a: an array of numpy of dtype <U1"),
        "array of objects": ({"a": np.array([None])}, r"a: an array of numpy of dtype \|O8"),
        "array of dates": ({"a": np.array([1], dtype="M8[s]")}, "a: an array of numpy of dtype <M8"),
        "big-endian array": ({"a": np.array([1], dtype=">i4")}, "a: an array of numpy of dtype >i4"),
        "date": ({"d": datetime.date(2000, 1, 1)}, "datetime.date"),
        "sparse": ({"s": {"x": torch.ones(2, 2).to_sparse()}}, "s/x: a sparse tensor"),
        "sparse rows": ({"s": torch.ones(2, 2).to_sparse_csr()}, "s: a sparse tensor"),
        "quantised": ({"q": quantised}, "q: a quantised tensor"),
        "meta": ({"m": torch.ones(2, device="meta")}, "m: a meta tensor"),
        "conjugate": ({"c": torch.ones(2, dtype=torch.complex64).conj()}, "c: a tensor with flags"),
        "negative": ({"n": torch.ones(2, dtype=torch.complex64).conj().imag}, "n: a tensor with flags"),
        "half complex": ({"h": torch.zeros(2, dtype=torch.complex32)}, "h: a tensor of torch.complex32"),
        "dtype": ({"d": torch.float32}, "d: torch.float32"),
        "device": ({"d": torch.device("cpu")}, "torch.device"),
        "set": ({"s": {1, 2}}, "set"),
        "complex": ({"c": 1j}, "complex"),
        "a module": ({"m": torch.nn.Linear(1, 1)}, "torch.nn"),
        "a class": ({"p": pathlib.PurePath("x")}, "pathlib|plain value"),
        "a storage": ({"s": torch.ones(2).untyped_storage()}, "s: a storage without a tensor"),
        "tuple key": ({(1, 2): 3}, "key that is a tuple"),
        "a call": ({"x": Call(os.system, f"touch {tmp_path}/called")}, "posix.system"),
        "an innocent call": ({"x": Call(print, "called")}, "builtin.*print"),
    }
    for name, (state, message) in cases.items():
        path = saved(tmp_path, state, f"{name}.pt")
        with pytest.raises(pawl.UnsupportedError, match=message):
            pawl.load(path)
        assert f"{name}.pt" in run("show", path, status=1).stderr, name
        run("verify", path, status=1)
    assert not (tmp_path / "called").exists()


def test_other_archives_are_told_apart(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), program)
    with pytest.raises(pawl.UnsupportedError, match="TorchScript"):
        pawl.load(program)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a/b", "c")
    with pytest.raises(pawl.UnsupportedError, match=r"without data\.pkl"):
        pawl.load(tmp_path / "other.zip")
    np.savez(tmp_path / "arrays.npz", a=np.arange(3))
    assert list(pawl.load(tmp_path / "arrays.npz")) == ["a"]
    (tmp_path / "text.pt").write_text("nothing of torch's")
    with pytest.raises(pawl.CorruptError, match=r"expected a zip archive as torch\.save writes it"):
        pawl.load(tmp_path / "text.pt")


def test_a_big_endian_file_is_refused(tmp_path: pathlib.Path) -> None:
    members = {"x/data.pkl": pickle.dumps({}, 2), "x/byteorder": b"big"}
    with zipfile.ZipFile(tmp_path / "big.pt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(pawl.UnsupportedError, match="big-endian"):
        pawl.load(tmp_path / "big.pt")


def packed(path: pathlib.Path, stream: bytes, storages: dict[str, bytes] | None = None) -> pathlib.Path:
    """An archive with this pickle, and storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", stream)
        for key, data in (storages or {}).items():
            archive.writestr(f"x/data/{key}", data)
    return path


def tensor(key: bytes = b"0", numel: int = 4, offset: int = 0, shape: str = "4", strides: str = "1") -> bytes:
    """The pickle of a float tensor, in text where numbers are concerned."""

    def numbers(text: str) -> bytes:
        return b"(" + b"".join(b"I%s\n" % word.encode() for word in text.split()) + b"t"

    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nU"
        + bytes([len(key)])
        + key
        + b"U\x03cpuI%d\ntQI%d\n" % (numel, offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )


def test_P17_views_that_do_not_lie_in_their_storage_are_refused(tmp_path: pathlib.Path) -> None:
    good = struct.pack("<4f", 1, 2, 3, 4)
    path = packed(tmp_path / "good.pt", tensor(), {"0": good})
    assert torch.equal(pawl.load(path), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    cases = {
        "the size lies": tensor(numel=5),
        "the size lies downwards": tensor(numel=3),
        "the size overflows": tensor(numel=2**62),
        "a negative size": tensor(numel=-4),
        "another storage": tensor(b"1"),
        "a storage elsewhere": tensor(b"../data/0"),
        "a storage of no name": tensor(b""),
        "a storage with a NUL in its name": tensor(b"0\0x"),
        "an offset": tensor(offset=1),
        "a negative offset": tensor(offset=-1),
        "an offset that overflows": tensor(offset=2**63 - 1),
        "a longer shape": tensor(shape="5"),
        "a negative shape": tensor(shape="-1"),
        "a shape that overflows": tensor(shape="4294967296 4294967296 4294967296", strides="0 0 0"),
        "a stride": tensor(strides="2"),
        "a negative stride": tensor(strides="-1"),
        "a stride that overflows": tensor(shape="3", strides="9223372036854775807"),
        "more strides": tensor(strides="1 1"),
        "too many dimensions": tensor(shape="1 " * 65, strides="1 " * 65),
        "a bomb of one element": tensor(shape="2147483648", strides="0"),
        "windows without end": tensor(shape="3 1000000 1000000", strides="1 0 0"),
    }
    for name, stream in cases.items():
        path = packed(tmp_path / f"{name}.pt", stream, {"0": good})
        with pytest.raises((pawl.CorruptError, pawl.UnsupportedError, pawl.PawlError), match=name):
            pawl.load(path)


def test_P16_bombs_of_the_memo_are_refused(tmp_path: pathlib.Path) -> None:
    """A list of lists of lists .. by reference; a text that stands in a thousand places; a list that holds itself."""
    doubling = b"(K\x01l" + b"".join(b"q%c(h%ch%cl" % (i, i, i) for i in range(1, 60)) + b"."
    text = b"(X\0\0\x20\0" + b"x" * (2 << 20) + b"q\x01" + b"h\x01" * 2000 + b"l."
    circle = b"]q\x01h\x01a."
    deep = b"]" * 5000 + b"a" * 4999 + b"."
    for name, stream in {"doubling": doubling, "text": text, "circle": circle, "deep": deep}.items():
        path = packed(tmp_path / f"{name}.pt", stream)
        with pytest.raises(pawl.PawlError, match=name):
            pawl.load(path)
        assert "corrupt" in run("verify", path, status=4).stdout, name


def test_P17_a_file_cut_anywhere_is_refused(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, {"a": torch.arange(3.0), "b": [1, "x"]})
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        with pytest.raises(pawl.PawlError):
            pawl.load(path)
    path.write_bytes(data)
    check(path)


def test_P17_bytes_flipped_anywhere_do_no_harm(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, {"a": torch.arange(3.0).view(1, 3).t(), "b": [1, "x"]})
    data = path.read_bytes()
    refused = 0
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            pawl.load(path)
        except pawl.PawlError:
            refused += 1
    assert refused > 100


def test_P17_members_that_overlap_are_refused(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path, {"a": torch.arange(100.0), "b": torch.arange(100.0)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        one, two = (archive.getinfo(f"x/data/{n}").header_offset for n in (0, 1))
    at = data.rindex(b"x/data/1") - 4  # the offset of its header in the directory
    assert struct.unpack_from("<I", data, at) == (two,)
    struct.pack_into("<I", data, at, one)
    path.write_bytes(data)
    with pytest.raises(pawl.CorruptError, match="overlaps|do not agree|another name"):
        pawl.load(path)


def test_many_tensors_open_soon(tmp_path: pathlib.Path) -> None:
    state = {f"layer{i}.weight": torch.full((3,), float(i)) for i in range(20_000)}
    path = saved(tmp_path, state)
    assert same(pawl.load(path), state)


def test_beyond_four_gibibytes(tmp_path: pathlib.Path) -> None:
    """Sizes and places that need 64 bits (sparse, by zeros that are not written)."""
    path = tmp_path / "huge.pt"
    huge = torch.empty(0)
    storage = torch.UntypedStorage.from_file(str(tmp_path / "zeros"), shared=True, nbytes=(4 << 30) + 4096)
    huge.set_(storage.untyped() if hasattr(storage, "untyped") else storage)  # type: ignore[call-overload]
    with torch.serialization.skip_data():
        torch.save({"huge": huge, "after": torch.zeros(5)}, path)
    assert path.stat().st_blocks * 512 < 1 << 20 and path.stat().st_size > 4 << 30
    rows = {row["name"]: row for row in run_json("show", path)["tensors"]}
    assert rows["huge"]["shape"] == [(4 << 28) + 1024] and set(rows) == {"huge", "after"}
    assert torch.equal(pawl.load(path, ["after"])["after"], torch.zeros(5))


def test_dcp_reads_a_file_of_torch_save(tmp_path: pathlib.Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = training()["model"]
    path = saved(tmp_path, dict(state))
    live = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(live, storage_reader=pawl.torch.StorageReader(path))
    assert all(torch.equal(live[name], value) for name, value in state.items())
