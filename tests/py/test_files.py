# SPDX-License-Identifier: Apache-2.0
"""Single files that pawl writes: torch.load and safetensors read them as what was saved; the file before stays (P4)."""

from __future__ import annotations

import collections
import errno
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from common import TORCH_DTYPES, interpreter, random_torch, same
from waiting import HANG_SECONDS, wait_until

import pawl
from pawl import _files


def training() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
    }


def plain(state: Any) -> Any:
    """The same with every ordered dict as it is and every tensor dense, as a file holds it."""
    if isinstance(state, torch.Tensor):
        return state.detach().contiguous()
    if isinstance(state, dict):
        return type(state)((key, plain(value)) for key, value in state.items())
    return type(state)(plain(value) for value in state) if isinstance(state, list | tuple) else state


def both_ways(path: pathlib.Path, expected: Any) -> Any:
    """What torch loads, in its safe way and in the other, and what pawl loads, is what was saved."""
    loaded = torch.load(path, weights_only=True)
    assert same(loaded, expected)
    assert same(torch.load(path, weights_only=False), expected)
    assert same(pawl.load(path), expected)
    return loaded


def test_R148_torch_loads_every_dtype_and_shape(tmp_path: pathlib.Path) -> None:
    shapes = ((7, 6), (0, 4), (), (1,), (2, 0, 4))
    state = {
        f"{dtype} {shape}": random_torch(dtype, shape, i)
        for i, dtype in enumerate(TORCH_DTYPES)
        for shape in shapes
        if shape or dtype != torch.float4_e2m1fn_x2
    }
    pawl.save(state, tmp_path / "x.pt")
    both_ways(tmp_path / "x.pt", state)


@pytest.mark.parametrize("name", ["x.pt", "x.pth", "x.y.pt"])
def test_R148_torch_loads_a_training(tmp_path: pathlib.Path, name: str) -> None:
    state = training()
    pawl.save(state, tmp_path / name)
    loaded = both_ways(
        tmp_path / name,
        plain({**state, "model": collections.OrderedDict(state["model"])}),
    )
    again = training()
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    model.load_state_dict(loaded["model"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    assert same(plain(optimizer.state_dict()), plain(again["optimizer"]))


def test_R149_values_of_every_kind_come_back(tmp_path: pathlib.Path) -> None:
    state = {
        "numbers": [
            0,
            -1,
            255,
            256,
            65535,
            65536,
            2**31 - 1,
            2**31,
            -(2**31),
            2**63 - 1,
            -(2**63),
            2**64,
            2**2000,
            -(2**999),
        ],
        "floats": [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 5e-324],
        "texts": ["", "text", "Straße \U0001f600", "x" * 300, "y" * 100000],
        "bytes": [b"", b"\x00\xff", bytes(range(256)) * 40],
        "others": (None, True, False, (), [], {}, ((1,), [2, {"a": 3}])),
        "keys": {1: "one", "1": "text", -5: 0},
        "ordered": collections.OrderedDict(b=1, a=2),
    }
    pawl.save(state, tmp_path / "x.pt")
    both_ways(tmp_path / "x.pt", state)


def test_tied_tensors_stay_tied_and_views_become_dense(tmp_path: pathlib.Path) -> None:
    whole = torch.arange(10000.0).reshape(100, 100)
    state = {
        "a": whole,
        "b": whole,
        "rows": whole[10:20],
        "steps": whole[::3, 5::7],
        "turned": whole.t(),
    }
    parameter = torch.nn.Parameter(torch.ones(3))
    state["parameter"], state["frozen"] = (
        parameter,
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
    )
    pawl.save(state, tmp_path / "x.pt")
    for weights_only in (True, False):
        loaded = torch.load(tmp_path / "x.pt", weights_only=weights_only)
        assert loaded["a"].data_ptr() == loaded["b"].data_ptr() != loaded["rows"].data_ptr()
        for key in ("a", "rows", "steps", "turned"):
            assert torch.equal(loaded[key], state[key]), key
            assert loaded[key].is_contiguous()
        for key in ("parameter", "frozen"):
            assert type(loaded[key]) is torch.nn.Parameter
            assert loaded[key].requires_grad == state[key].requires_grad


def test_safetensors_are_read_by_their_own_library(tmp_path: pathlib.Path) -> None:
    state = {
        "a": torch.randn(30, 20),
        "b": torch.arange(7),
        "c": torch.randn(6, 5).t(),
        "half": torch.ones(3).half(),
    }
    pawl.save(state, tmp_path / "x.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)
    mine = pawl.load(tmp_path / "x.safetensors")
    assert all(torch.equal(mine[key], state[key]) for key in state)


def nested() -> dict[str, Any]:
    weight = torch.randn(30, 20)
    return {
        "model": {
            "w": weight,
            "tied": weight,
            "a.b/c": torch.arange(7),
            "wave": torch.randn(3, dtype=torch.complex128),
        },
        "optimizer": {"state": {0: {"m": torch.randn(5).bfloat16()}, 1: {}}, "betas": (0.9, 0.999)},
        "text": "long " * 2000,
        "raw": b"\0\xff" * 3000,
        "epoch": 3,
        "far": 1 << 70,
        "score": float("inf"),
        "none": [None, True, [], {}, ()],
        "odd": {2.5: "x", True: [1]},
        "none at all": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_what_was_saved_as_safetensors_comes_back_as_the_tree(tmp_path: pathlib.Path, suffix: str) -> None:
    state = nested()
    path = tmp_path / ("x.safetensors" + suffix)
    pawl.save(state, path)
    loaded = pawl.load(path)
    assert same(loaded, state)
    assert loaded["model"]["w"] is loaded["model"]["tied"]
    pawl.save({"epoch": 3}, path, overwrite=True)
    assert pawl.load(path) == {"epoch": 3}
    pawl.save(torch.arange(3), path, overwrite=True)
    assert torch.equal(pawl.load(path), torch.arange(3))


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_file_keeps_everything_beside_a_value_of_its_rank(
    rank: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has the values of the process that wrote it."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    state = {"w": torch.ones(3), "epoch": 3, "own": {"t": torch.arange(2), "n": int(rank)}}
    for suffix in (".safetensors", ".pt"):
        pawl.save({**state, "own": pawl.PerRank(state["own"])}, tmp_path / f"x{suffix}")
        assert same(pawl.load(tmp_path / f"x{suffix}"), state)


def test_a_state_that_does_not_fit_its_tensors_is_left_alone(tmp_path: pathlib.Path) -> None:
    """Other tensors with the metadata of a file of pawl's: a flat dict, as ever. A state that is damaged: refused."""
    path, other = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    pawl.save({"model": {"w": torch.ones(3), "b": torch.zeros(2)}, "epoch": 3}, path)
    with safetensors.safe_open(path, "pt") as file:
        notes = file.metadata()
    tensors = safetensors.torch.load_file(path)
    changed = {name: tensor + 1 for name, tensor in tensors.items()}
    safetensors.torch.save_file(changed, other, metadata=notes)
    assert pawl.load(other)["model"]["w"].tolist() == [2, 2, 2]
    assert pawl.load(other)["epoch"] == 3
    for wrong in (
        {"model/w": tensors["model/w"]},
        tensors | {"more": torch.ones(1)},
        {"model/w": tensors["model/w"], "model/c": tensors["model/b"]},
    ):
        safetensors.torch.save_file(wrong, other, metadata=notes)
        assert pawl.load(other).keys() == wrong.keys()
    safetensors.torch.save_file(tensors, other, metadata=notes | {"pawl.checkpoint": '{"id":1}'})  # a pack
    assert pawl.load(other).keys() == tensors.keys()
    for damaged in ("{", "[1,", '{"model":{"$tensor":1}}', "[" * 100_000):
        safetensors.torch.save_file(tensors, other, metadata=notes | {"pawl.state": damaged})
        with pytest.raises((pawl.CorruptError, pawl.LimitError), match=r"y\.safetensors: pawl\.state"):
            pawl.load(other)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".lz4", ".planes", ".xz", ".zst"])
def test_R82_compressed_files_are_read_again(tmp_path: pathlib.Path, suffix: str) -> None:
    state = {"w": torch.arange(100000.0) // 1000, "epoch": 3}
    path = tmp_path / ("x.pt" + suffix)
    pawl.save(state, path)
    assert path.stat().st_size < 400000
    assert same(pawl.load(path), state)


def test_a_saver_writes_in_the_background_and_copies_first(
    tmp_path: pathlib.Path,
) -> None:
    tensor = torch.zeros(1 << 20)
    with pawl.FileSaver() as saver:
        for step in range(5):
            tensor.fill_(step)
            saver.save(tmp_path / f"{step}.pt", {"w": tensor, "step": step})
            tensor.fill_(-1)  # it has been copied
        ticket = saver.save(tmp_path / "last.pt", {"w": tensor}, wait=True)
        assert ticket.done()
        stats = ticket.stats
        assert stats["nbytes"] == (tmp_path / "last.pt").stat().st_size
        assert stats["write_seconds"] + stats["commit_seconds"] == pytest.approx(stats["total_seconds"], abs=1e-9)
        saver.wait_until_finished()
        saver.check_for_errors()
    for step in range(5):
        loaded = torch.load(tmp_path / f"{step}.pt", weights_only=True)
        assert loaded["step"] == step
        assert bool((loaded["w"] == step).all())
    with pytest.raises(pawl.UsageError, match="closed"):
        saver.check_for_errors()


@pytest.mark.parametrize("name", ["x.pt.br", "x.safetensors.br", "x.pth.zip"])
def test_a_suffix_of_an_unknown_compression_makes_no_folder(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(pawl.UsageError, match=r"expected one of .*\.zst after \."):
        pawl.save({"a": 1}, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    pawl.save({"a": 1}, tmp_path / "x.pt")
    with pytest.raises(pawl.ExistsError, match=r"x\.pt"):
        pawl.save({"a": 2}, tmp_path / "x.pt")
    pawl.save({"a": 2}, tmp_path / "x.pt", overwrite=True)
    assert torch.load(tmp_path / "x.pt") == {"a": 2}
    with pytest.raises(pawl.UsageError, match="no metadata"):
        pawl.save({"a": 1}, tmp_path / "y.pt", metadata={"b": 1})
    with pytest.raises(pawl.NotFoundError, match="nowhere"):
        pawl.save({"a": 1}, tmp_path / "nowhere" / "y.pt")
    (tmp_path / "folder.pt").mkdir()
    with pawl.FileSaver() as saver, pytest.raises(pawl.UsageError, match="is a folder"):
        saver.save(tmp_path / "folder.pt", {"a": 1})
    assert sorted(os.listdir(tmp_path)) == ["folder.pt", "x.pt"]


def test_raw_pickles_stand_for_their_object(tmp_path: pathlib.Path) -> None:
    opcodes = b"K\x05K\x06\x86"  # (5, 6)
    with pawl.FileSaver() as saver:
        saver.save(tmp_path / "x.pt", {"a": {"$pickle": opcodes}}, raw_pickle=True)
        saver.save(tmp_path / "y.pt", {"a": {"$pickle": opcodes}})
    assert torch.load(tmp_path / "x.pt", weights_only=True) == {"a": (5, 6)}
    assert torch.load(tmp_path / "y.pt", weights_only=True) == {"a": {"$pickle": opcodes}}


KILLED = """
import sys, torch, pawl
saver = pawl.FileSaver(bandwidth={bandwidth})
saver.save({path!r}, {{"w": torch.ones(8 << 20), "which": "new"}})
print("staged", flush=True)
sys.stdin.read()  # communicate() drops lines which came together with one that was read
saver.wait_until_finished()
print("done", flush=True)
"""


def hidden(folder: pathlib.Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".pawl-")]


def start(path: pathlib.Path, bandwidth: int) -> subprocess.Popen[str]:
    process = interpreter(KILLED.format(path=str(path), bandwidth=bandwidth))
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "staged"
    return process


def test_P4_a_writer_that_is_killed_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    """Killed in the middle: the old file is complete; what was written of the new one goes with the next save."""
    path = tmp_path / "x.pt"
    pawl.save({"which": "old"}, path)
    process = start(path, 1 << 10)
    wait_until(lambda: hidden(tmp_path), "the new file")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=HANG_SECONDS)
    assert torch.load(path, weights_only=True) == {"which": "old"}
    assert hidden(tmp_path)
    pawl.save({"which": "next"}, tmp_path / "y.pt")
    assert not hidden(tmp_path)
    # the control: one that is not killed ends with the new file
    process = start(path, 1 << 40)
    out, _ = process.communicate(timeout=HANG_SECONDS)
    assert out.strip() == "done"
    assert torch.load(path, weights_only=True)["which"] == "new"


FULL = """
import os, subprocess, sys, numpy, pawl
folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
path = folder + "/" + sys.argv[2]
saver = pawl.FileSaver()
saver.save(path, {"which": "old"}, wait=True)
noise = numpy.random.default_rng(0).integers(0, 255, 8 << 20, dtype=numpy.uint8)
try:
    saver.save(path, {"which": noise}, wait=True)
    print("no error")
except pawl.NoSpaceError as error:
    print("refused" if "are free" in str(error) else "failed")
print(pawl.load(path)["which"], sorted(os.listdir(folder)) == [sys.argv[2]])
saver.save(path, {"which": "fits"}, wait=True)
print(pawl.load(path)["which"])
"""


@pytest.mark.parametrize(("name", "how"), [("x.pt", "refused"), ("x.pt.zst", "failed")])
def test_P4_P5_a_full_disk_leaves_the_old_file(tmp_path: pathlib.Path, name: str, how: str) -> None:
    """Of a size that is known, before anything is written; of one that is not, when it is met."""
    program = ["unshare", "--user", "--map-root-user", "--mount"] if os.getuid() else ["unshare", "--mount"]
    done = subprocess.run(
        [*program, sys.executable, "-c", FULL, str(tmp_path), name],
        capture_output=True,
        check=False,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [how, "old True", "fits"]


def test_arrays_of_numpy_become_tensors(tmp_path: pathlib.Path) -> None:
    pawl.save({"a": np.arange(5)}, tmp_path / "x.pt")
    assert same(torch.load(tmp_path / "x.pt", weights_only=True), {"a": torch.arange(5)})


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_a_folder_is_replaced_where_two_names_cannot_be_exchanged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """If the second rename fails, the folder has its name again."""
    new, old = tmp_path / ".new.partial", tmp_path / "one"
    for folder in (new, old):
        folder.mkdir()
        (folder / "text").write_text(folder.name)
    rename = os.rename

    def refuse(a: str, b: str) -> None:
        raise OSError(errno.EINVAL, "not supported")

    def rename_once(source: str, target: str) -> None:
        if source == str(new) and target == str(old):
            if os.path.exists(old):
                raise OSError(errno.ENOTEMPTY, "not empty")
            if fails:
                raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr("pawl._pawl.exchange", refuse)
    monkeypatch.setattr(os, "rename", rename_once)
    if fails:
        with pytest.raises(pawl.PawlError):
            _files.publish(str(new), str(old))
    else:
        _files.publish(str(new), str(old))
    assert (old / "text").read_text() == ("one" if fails else ".new.partial")
    assert len(list(tmp_path.iterdir())) == 1 + fails
