# SPDX-License-Identifier: Apache-2.0
"""Folders that torch.distributed.checkpoint wrote, on 1, 2 and 4 real gloo ranks, opened by pawl: equal to what dcp.load
gives, or refused."""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from common import TORCH_DTYPES, random_torch, same
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from waiting import HANG_SECONDS

import pawl
import pawl.torch
from cli import run, run_json

WORKER = pathlib.Path(__file__).parent / "dcp_folder_worker.py"

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:.*weights_only.*")


def as_torch_loads(folder: pathlib.Path) -> Any:
    """The nested state of a folder, by torch alone."""
    state: dict[str, Any] = {}
    _load_state_dict(
        state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    return state


@pytest.fixture(scope="module", params=[1, 2, 4])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp(f"ranks{request.param}")
    launcher = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(request.param), str(root)],
        env=launcher | {"PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return root


@pytest.mark.parametrize("name", ["rows", "columns", "training", "mixed"])
def test_R151_what_ranks_saved_comes_back_as_dcp_gives_it(folders: pathlib.Path, name: str) -> None:
    loaded = pawl.load(folders / name)
    expected = as_torch_loads(folders / name)
    assert same(loaded, expected)
    files = len(list((folders / name).glob("*.distcp")))
    info = run_json("show", folders / name)["checkpoint"]
    assert info["format"] == "torch.distributed.checkpoint" and info["files"] >= files
    assert "every part with a CRC" in run("verify", folders / name).stderr


def test_R151_R160_it_is_written_anew_for_any_number_of_ranks(folders: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("rows", "mixed"):
        run("reshard", folders / name, tmp_path / name, "--world", "3")
        assert "every byte is as it was written" in run("verify", tmp_path / name).stderr
        assert "equal, bit for bit" in run("diff", folders / name, tmp_path / name).stderr
        assert same(pawl.load(tmp_path / name), as_torch_loads(folders / name))
    run("export", folders / "training", tmp_path / "model.safetensors", "-i", "model/*", "--strip-prefix", "model/")
    exported = pawl.load(tmp_path / "model.safetensors")
    assert same(dict(sorted(exported.items())), dict(sorted(pawl.load(folders / "training")["model"].items())))


def test_live_tensors_and_parts_of_them_are_filled(folders: pathlib.Path) -> None:
    expected = as_torch_loads(folders / "rows")["model"]["rows"]
    live = {"model": {"rows": torch.zeros(13, 5)}}
    pawl.load(folders / "rows", state=live, strict=False)
    assert torch.equal(live["model"]["rows"], expected)
    part = torch.zeros(6, 3)
    shard = {"model": {"rows": pawl.Shard(part, (13, 5), (4, 1))}}
    pawl.load(folders / "rows", state=shard, strict=False)
    assert torch.equal(part, expected[4:10, 1:4])


def test_dcp_reads_it_through_pawl(folders: pathlib.Path) -> None:
    expected = as_torch_loads(folders / "rows")
    live = {
        "model": {name: torch.zeros_like(value) for name, value in expected["model"].items()},
        "values": {"step": 0},
    }
    dcp.load(live, storage_reader=pawl.torch.StorageReader(folders / "rows"))
    assert same(live["model"], expected["model"]) and live["values"]["step"] == 7


def saved(folder: pathlib.Path, state: dict[str, Any]) -> pathlib.Path:
    dcp.save(state, checkpoint_id=folder)
    return folder


def test_every_dtype_and_strides(tmp_path: pathlib.Path) -> None:
    state = {f"{dtype} {shape}": random_torch(dtype, shape) for dtype in TORCH_DTYPES for shape in ((3, 4), (0, 2))}
    state |= {"transposed": torch.arange(600.0).view(20, 30).t(), "tied": {"a": torch.ones(3)}}
    state["tied"]["b"] = state["tied"]["a"]
    folder = saved(tmp_path / "all", state)
    assert same(pawl.load(folder), as_torch_loads(folder))


def test_a_folder_as_a_checkpoint(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path / "ck", {"w": torch.ones(3), "step": 5})
    found = pawl.Checkpoint(folder)
    assert found.get_metadata() == {} and found.to_dict()["step"] == 5
    with pytest.raises(pawl.UsageError, match="only reads"):
        found.set_metadata({})
    assert same(pawl.load(found.to_directory(tmp_path / "own")), {"w": torch.ones(3), "step": 5})
    with found.as_directory() as other:
        assert same(pawl.load(other), {"w": torch.ones(3), "step": 5})
    assert sorted(os.listdir(folder)) == [".metadata", "__0_0.distcp"]  # as it was
    assert "program" in run("restore", folder, tmp_path / "x", status=2).stderr
    assert "program" in run("repair", folder, status=2).stderr


def test_P1_damage_is_found(tmp_path: pathlib.Path) -> None:
    state = {"a": torch.zeros(5), "b": torch.zeros(100_000), "c": 7}
    folder = saved(tmp_path / "ck", state)
    data = (folder / "__0_0.distcp").read_bytes()
    at = data.index(bytes(300_000)) + 200_001
    (folder / "__0_0.distcp").write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.raises(pawl.CorruptError, match="tensor b.*CRC"):
        pawl.load(folder)
    assert "corrupt" in run("verify", folder, status=4).stdout
    (folder / "__0_0.distcp").write_bytes(data[:-1])
    with pytest.raises(pawl.CorruptError, match="beyond its end"):
        pawl.load(folder)
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(pawl.CorruptError, match="missing"):
        pawl.load(folder)


def test_without_its_metadata_a_folder_is_none(tmp_path: pathlib.Path) -> None:
    folder = saved(tmp_path / "ck", {"a": torch.zeros(5)})
    (folder / ".metadata").unlink()
    with pytest.raises(pawl.NotFoundError):
        pawl.load(folder)
    run("show", folder, status=3)


def test_pawl_s_own_manifest_goes_first(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "ck"
    pawl.save({"x": 1}, folder)
    (folder / ".metadata").write_bytes(b"something else")
    assert pawl.load(folder) == {"x": 1}


def altered(tmp_path: pathlib.Path, alter: Callable[[Any], None]) -> pathlib.Path:
    """A folder whose metadata says something else."""
    folder = tmp_path / "ck"
    shutil.rmtree(folder, ignore_errors=True)
    saved(folder, {"m": {"w": torch.arange(12.0).view(3, 4), "b": torch.ones(2)}, "v": 7, "l": [torch.ones(1)]})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    alter(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def of(metadata: Metadata, name: str) -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def grow(metadata: Metadata) -> None:
    metadata.state_dict_metadata["m.w"].size = torch.Size([4, 4])


def bigger_chunk(metadata: Metadata) -> None:
    metadata.state_dict_metadata["m.w"].chunks[0].sizes = torch.Size([4, 4])


def twice(metadata: Metadata) -> None:
    metadata.state_dict_metadata["m.w"].chunks *= 2


def other_dtype(metadata: Metadata) -> None:
    metadata.state_dict_metadata["m.w"].properties.dtype = torch.int32


def escape(path: str) -> Callable[[Metadata], None]:
    def alter(metadata: Metadata) -> None:
        of(metadata, "m.w").relative_path = path

    return alter


def move(offset: int, length: int) -> Callable[[Metadata], None]:
    def alter(metadata: Metadata) -> None:
        of(metadata, "m.w").offset += offset
        of(metadata, "m.w").length += length

    return alter


def swap(metadata: Metadata) -> None:
    a, b = of(metadata, "m.w"), of(metadata, "m.b")
    a.offset, a.length, b.offset, b.length = b.offset, b.length, a.offset, a.length


def forget(metadata: Metadata) -> None:
    del metadata.storage_data[next(index for index in metadata.storage_data if index.fqn == "m.w")]


def path_to(*keys: Any) -> Callable[[Metadata], None]:
    def alter(metadata: Metadata) -> None:
        metadata.planner_data["m.w"] = keys

    return alter


def transformed(metadata: Metadata) -> None:
    of(metadata, "v").transform_descriptors = ["zstd"]


def as_value(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("v")] = of(metadata, "m.w")


def padded(metadata: Metadata) -> None:
    """With more attributes than torch writes, which every row of the file could name again."""
    vars(of(metadata, "m.w")).update({f"x{i}": i for i in range(129)})


def offset_of_many(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("x", torch.Size([0] * 65))] = of(metadata, "v")


def long_name(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex("x" * 4097)] = of(metadata, "v")


HOSTILE: dict[str, tuple[Callable[[Metadata], None], str]] = {
    "a larger tensor": (grow, "do not fill"),
    "a piece outside": (bigger_chunk, "outside"),
    "a piece twice": (twice, "do not fill|overlap"),
    "another dtype": (other_dtype, r"differs from what \.metadata says"),
    "a path upwards": (escape("../../etc/passwd"), "not a safe name"),
    "an absolute path": (escape("/etc/passwd"), "not a safe name"),
    "a hidden file": (escape(".metadata"), "not a safe name"),
    "a path below": (escape("sub/file"), "not a safe name"),
    "a path of nothing": (escape(""), "safe name"),
    "a path with a NUL": (escape("a\0b"), "safe name"),
    "a file that is not there": (escape("__9_9.distcp"), "missing"),
    "a range moved": (move(1, 0), "m.w"),
    "a range cut": (move(0, -1), "m.w"),
    "a range beyond": (move(0, 1 << 40), "beyond its end"),
    "a negative range": (move(-(1 << 40), 0), "damaged"),
    "swapped ranges": (swap, "m.b|m.w"),
    "a range that is missing": (forget, "does not say where it is stored"),
    "an empty path": (path_to(), "path is not a tuple"),
    "a path of numbers": (path_to(0, "x"), "neither a key nor an index"),
    "a negative place": (path_to("l", -1), "neither a key nor an index"),
    "a path through a value": (path_to("v", "x"), "another value|not a container"),
    "a path of another": (path_to("m", "b"), "another value|not a container"),
    "a key in a list": (path_to("l", "x"), "another value|not a container"),
    "a place far off": (path_to("l", 2_000_000), "that were not saved"),
    "a place beyond numbers": (path_to("l", 1 << 80), "neither a key nor an index"),
    "a deep path": (path_to(*["x"] * 1000), "nested deeper"),
    "a path of 1,001 keys": (path_to(*["x"] * 1001), "nested deeper than 1000"),
    "a key of 4,097 bytes": (path_to("x" * 4097), "a name of 4097 bytes, at most 4096"),
    "129 attributes": (padded, r"an object of \d+ attributes, at most 128"),
    "an offset of 65 numbers": (offset_of_many, "'x' has 65 dimensions, at most 64"),
    "a name of 4,097 bytes": (long_name, "a name of 4097 bytes, at most 4096"),
    "transformed": (transformed, "transformed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_P17_hostile_metadata_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    alter, message = HOSTILE[name]
    folder = altered(tmp_path, alter)
    with pytest.raises((pawl.CorruptError, pawl.LimitError, pawl.UnsupportedError), match=message):
        pawl.load(folder)
    run("show", folder, status=1 if name == "transformed" else 4)


def test_a_gap_in_a_list_is_none(tmp_path: pathlib.Path) -> None:
    folder = altered(tmp_path, path_to("l", 3))
    loaded = pawl.load(folder)["l"]
    assert loaded[1:3] == [None, None] and torch.equal(loaded[3], torch.arange(12.0).view(3, 4))


def test_names_that_were_not_nested_are_keys(tmp_path: pathlib.Path) -> None:
    def flat(metadata: Metadata) -> None:
        metadata.planner_data = None

    assert set(pawl.load(altered(tmp_path, flat))) == {"m.w", "m.b", "v", "l.0"}


def test_other_versions_of_the_metadata(tmp_path: pathlib.Path) -> None:
    def later(metadata: Metadata) -> None:
        metadata.version = "9.9"
        metadata.something_new = {"a": 1}  # type: ignore[attr-defined]

    def earlier(metadata: Metadata) -> None:
        del metadata.version, metadata.storage_meta

    for alter in (later, earlier):
        assert pawl.load(altered(tmp_path, alter))["v"] == 7


class Call:
    """Unpickled, it calls something."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, Any]:
        return self.call


def test_R149_nothing_is_run(tmp_path: pathlib.Path) -> None:
    def call(metadata: Metadata) -> None:
        metadata.storage_meta = Call(os.system, f"touch {tmp_path}/called")  # type: ignore[assignment]

    folder = altered(tmp_path, call)
    with pytest.raises(pawl.UnsupportedError, match="posix.system"):
        pawl.load(folder)
    folder = saved(tmp_path / "value", {"x": {"call": Call(os.system, f"touch {tmp_path}/called")}})
    with pytest.raises(pawl.UnsupportedError, match="posix.system"):
        pawl.load(folder)
    folder = saved(tmp_path / "numpy", {"x": {"rng": (np.arange(3), 1), "texts": (np.array(["a"]), 1)}})
    with pytest.raises(pawl.UnsupportedError, match=r"x/texts.*numpy"):
        pawl.load(folder)
    folder = saved(tmp_path / "arrays", {"x": {"rng": (np.arange(3), 1)}})
    assert np.array_equal(pawl.load(folder)["x"]["rng"][0], np.arange(3))
    assert not (tmp_path / "called").exists()


def test_P17_metadata_cut_or_flipped_anywhere(tmp_path: pathlib.Path) -> None:
    folder = altered(tmp_path, lambda metadata: None)
    expected = pawl.load(folder)
    data = (folder / ".metadata").read_bytes()
    for end in range(0, len(data), 11):
        (folder / ".metadata").write_bytes(data[:end])
        with pytest.raises(pawl.PawlError):
            pawl.load(folder)
    refused = 0
    for at in range(0, len(data), 5):
        (folder / ".metadata").write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        try:
            pawl.load(folder)
        except pawl.PawlError:
            refused += 1
    assert refused > 50
    (folder / ".metadata").write_bytes(data)
    assert same(pawl.load(folder), expected)


def test_many_pieces_open_soon(tmp_path: pathlib.Path) -> None:
    state = {f"layer{i}.weight": torch.full((3,), float(i)) for i in range(5000)}
    folder = saved(tmp_path / "many", state)
    assert same(pawl.load(folder), state)
