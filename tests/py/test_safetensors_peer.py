# SPDX-License-Identifier: Apache-2.0
"""What pawl's encoder writes opens with the safetensors package bit for bit, and the other way round; and on what both
refuse and accept they agree, but for what pawl refuses on purpose (P1, P17)."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from waiting import HANG_SECONDS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build")) / "tests" / "st_tool"

TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
NUMPY = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "C64": np.complex64,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOOL), *arguments], capture_output=True, text=True, timeout=HANG_SECONDS)


def read(path: pathlib.Path) -> dict[str, Any]:
    done = tool("read", str(path))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def accepts(data: bytes, folder: pathlib.Path) -> tuple[bool, bool]:
    """Whether pawl and the reference open these bytes."""
    path = folder / "judged.safetensors"
    path.write_bytes(data)
    done = tool("read", str(path))
    assert done.returncode in (0, 1), done.stderr  # refused, never crashed
    try:
        safetensors.deserialize(data)
        return done.returncode == 0, True
    except safetensors.SafetensorError:
        return done.returncode == 0, False


def raw(tensor: torch.Tensor) -> str:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()).hex() if tensor.numel() else ""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("peer") / "ours.safetensors"
    assert tool("write", str(path)).returncode == 0
    return path


def test_the_reference_sees_the_table_and_the_bytes_that_we_wrote(written: pathlib.Path) -> None:
    ours = {row["name"]: row for row in read(written)["tensors"]}
    theirs = dict(safetensors.deserialize(written.read_bytes()))
    assert ours.keys() == theirs.keys()
    assert len(ours) == 25
    for name, row in theirs.items():
        assert ours[name]["dtype"] == row["dtype"]
        assert ours[name]["shape"] == list(row["shape"])
        assert ours[name]["data"] == bytes(row["data"]).hex()


def test_torch_loads_what_we_wrote_bit_for_bit(written: pathlib.Path) -> None:
    ours = {row["name"]: row for row in read(written)["tensors"]}
    with safetensors.safe_open(written, "pt") as file:
        assert file.metadata() == {"format": "pt", "note": 'café "\n'}
        for name, dtype in TORCH.items():
            tensor = file.get_tensor(f"all/{name}")
            assert tensor.dtype == dtype
            assert list(tensor.shape) == [4, 4]
            assert raw(tensor) == ours[f"all/{name}"]["data"]
        assert list(file.get_tensor("scalar").shape) == []
        assert list(file.get_tensor("empty €").shape) == [0, 5]
        assert torch.view_as_complex(file.get_tensor("complex128")).dtype == torch.complex128


def test_numpy_loads_what_we_wrote_bit_for_bit(written: pathlib.Path) -> None:
    ours = {row["name"]: row for row in read(written)["tensors"]}
    with safetensors.safe_open(written, "np") as file:
        for name, dtype in NUMPY.items():
            array = file.get_tensor(f"all/{name}")
            assert array.dtype == dtype
            assert array.tobytes().hex() == ours[f"all/{name}"]["data"]


def test_data_begins_at_a_page(written: pathlib.Path) -> None:
    (length,) = struct.unpack("<Q", written.read_bytes()[:8])
    assert (8 + length) % 4096 == 0


def test_our_order_is_that_of_the_reference_writer(written: pathlib.Path) -> None:
    with safetensors.safe_open(written, "pt") as file:
        names = [name for name in file.keys() if "F6" not in name]  # noqa: SIM118
        theirs = safetensors.torch.save({name: file.get_tensor(name) for name in names})
    (length,) = struct.unpack("<Q", theirs[:8])
    header = json.loads(theirs[8 : 8 + length])
    expected = sorted(header, key=lambda name: header[name]["data_offsets"])
    ours = [row["name"] for row in read(written)["tensors"] if row["name"] in header]
    assert len(ours) >= 20
    assert ours == expected


@pytest.mark.parametrize("name", TORCH)
def test_we_read_what_torch_wrote_bit_for_bit(name: str, tmp_path: pathlib.Path) -> None:
    dtype = TORCH[name]
    generator = torch.Generator().manual_seed(7)
    width = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 2 if name == "BOOL" else 256, (6 * width,), dtype=torch.uint8, generator=generator)
    tensors = {
        "a/b": data.view(dtype).reshape(2, 3),
        "scalar": data[:width].clone().view(dtype).reshape(()),
        "empty": torch.empty((0, 4), dtype=dtype),
    }
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"k": "v ü"})
    found = read(path)
    assert found["metadata"] == {"k": "v ü"}
    rows = {row["name"]: row for row in found["tensors"]}
    assert rows.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert rows[key]["dtype"] == name
        assert rows[key]["shape"] == list(tensor.shape)
        assert rows[key]["data"] == raw(tensor)


def test_half_bytes_go_both_ways(written: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """torch counts pairs of 4-bit floats, the header counts elements."""
    ours = {row["name"]: row for row in read(written)["tensors"]}
    with safetensors.safe_open(written, "pt") as file:
        tensor = file.get_tensor("all/F4")
    assert (tensor.dtype, list(tensor.shape)) == (torch.float4_e2m1fn_x2, [4, 2])
    assert bytes(tensor.view(torch.uint8).flatten().tolist()).hex() == ours["all/F4"]["data"]
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file({"x": tensor}, path)
    (row,) = read(path)["tensors"]
    assert (row["dtype"], row["shape"], row["data"]) == ("F4", [4, 4], ours["all/F4"]["data"])


@pytest.mark.parametrize("name", NUMPY)
def test_we_read_what_numpy_wrote_bit_for_bit(name: str, tmp_path: pathlib.Path) -> None:
    width = np.dtype(NUMPY[name]).itemsize
    data = (np.arange(12 * width) % (2 if name == "BOOL" else 251)).astype(np.uint8)
    array = data.view(NUMPY[name]).reshape(3, 4)
    path = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file({"x": array}, path)
    (row,) = read(path)["tensors"]
    assert (row["dtype"], row["shape"], row["data"]) == (name, [3, 4], array.tobytes().hex())


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + data


ENTRY = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
BOTH_ACCEPT = {
    "no tensors": file_of("{}"),
    "unpadded": file_of(f'{{"a":{ENTRY}}}', b"xx"),
    "leading spaces": file_of(f'   {{"a":{ENTRY}}}', b"xx"),
    "unsorted": file_of(
        '{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"xx",
    ),
    "unknown member": file_of('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}}', b"xx"),
    "empty": file_of('{"a":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]}}'),
    "scalar": file_of('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"x"),
    "bool above 1": file_of('{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}', b"\xff"),
    "half bytes that fit": file_of('{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}', b"x"),
}
BOTH_REFUSE = {
    "hole": file_of('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"xx"),
    "overlap": file_of(f'{{"a":{ENTRY},"b":{ENTRY}}}', b"xx"),
    "trailing data": file_of(f'{{"a":{ENTRY}}}', b"xxx"),
    "short data": file_of(f'{{"a":{ENTRY}}}', b"x"),
    "other size": file_of('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}', b"xx"),
    "backwards": file_of('{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}}', b"xx"),
    "unknown dtype": file_of('{"a":{"dtype":"C128","shape":[],"data_offsets":[0,16]}}', b"x" * 16),
    "negative": file_of('{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', b"xx"),
    "minus zero": file_of('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'),
    "float": file_of('{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}', b"xx"),
    "overflow": file_of('{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    "metadata": file_of('{"__metadata__":{"a":1}}'),
    "nul": file_of(b"{}\0"),
    "bad utf-8": file_of(b'{"\xff":' + ENTRY.encode() + b"}", b"xx"),
    "half bytes": file_of('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', b"xx"),
    "length beyond the file": struct.pack("<Q", 100) + b"{}",
    "length beyond the limit": struct.pack("<Q", 100_000_001) + b"{}",
    "no header": b"",
    "half a length": b"\x02\0\0\0",
}
ONLY_WE_REFUSE = {  # the format forbids it, but the reference lets the last one win
    "duplicate name": file_of(f'{{"a":{ENTRY},"a":{ENTRY}}}', b"xx"),
}


@pytest.mark.parametrize("case", BOTH_ACCEPT)
def test_both_accept(case: str, tmp_path: pathlib.Path) -> None:
    assert accepts(BOTH_ACCEPT[case], tmp_path) == (True, True)


@pytest.mark.parametrize("case", BOTH_REFUSE)
def test_P17_both_refuse(case: str, tmp_path: pathlib.Path) -> None:
    assert accepts(BOTH_REFUSE[case], tmp_path) == (False, False)


@pytest.mark.parametrize("case", ONLY_WE_REFUSE)
def test_P17_only_we_refuse(case: str, tmp_path: pathlib.Path) -> None:
    assert accepts(ONLY_WE_REFUSE[case], tmp_path) == (False, True)


def test_P17_what_we_accept_of_damaged_headers_the_reference_accepts_too(
    written: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A flipped bit in a header may make another valid header; it never makes one that only we would take."""
    good = written.read_bytes()
    generator = np.random.default_rng(3)
    text_end = good.index(b"}}  ")
    accepted = 0
    for _ in range(300):
        bad = bytearray(good)
        bad[generator.integers(8, text_end)] ^= 1 << generator.integers(8)
        ours, theirs = accepts(bytes(bad), tmp_path)
        assert theirs or not ours
        accepted += ours
    assert accepted < 300
