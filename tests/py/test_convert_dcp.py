# SPDX-License-Identifier: Apache-2.0
"""pawl convert --to dcp and --to pawl: folders that torch.distributed.checkpoint loads, and checkpoints of pawl's own, out of
every other format and back."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from common import random_torch, same
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import pawl
import pawl.torch
from cli import run, run_json

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.uint16,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def training() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    return {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "dtypes": {str(d).removeprefix("torch."): random_torch(d, (3, 5), i) for i, d in enumerate(DTYPES)},
        "shapes": {"none": torch.zeros(0, 4), "scalar": torch.tensor(2.5), "large": torch.arange(300_000)},
        "a.b": {"c/d": torch.ones(2)},
        "step": 7,
        "rates": [0.5, 0.25],
        "name": "ä",
        "raw": b"\x00\xff",
        "nothing": None,
    }


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


def test_R151_torch_loads_a_folder_that_was_a_file(tmp_path: pathlib.Path) -> None:
    state = training()
    torch.save(state, tmp_path / "s.pt")
    run("convert", tmp_path / "s.pt", tmp_path / "folder", "--to", "dcp")
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == [".metadata", "__0_0.distcp"]
    dcp_to_torch_save(tmp_path / "folder", tmp_path / "back.pt")  # nested again
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert back["a.b"]["c/d"].tolist() == [1, 1]
    for part in ("model", "dtypes", "shapes"):
        for name, expected in state[part].items():
            found = back[part][name]
            assert (found.dtype, found.shape, bits(found)) == (expected.dtype, expected.shape, bits(expected))
    moments = state["optimizer"]["state"][0]["exp_avg"]
    assert torch.equal(back["optimizer"]["state"]["0"]["exp_avg"], moments)
    assert back["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    plain = ("step", "rates", "name", "raw", "nothing")
    assert {k: back[k] for k in plain} == {k: state[k] for k in plain}


def test_R151_a_live_state_is_filled_from_it(tmp_path: pathlib.Path) -> None:
    state = training()
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"model": state["model"], "step": 7, "rates": [0.5, 0.25]}).wait()
    run("convert", tmp_path / "run", tmp_path / "folder", "--to", "dcp", "--max-shard-size", "2KB")
    assert (tmp_path / "folder" / "__0_1.distcp").exists()
    live = {"model": {k: torch.zeros_like(v) for k, v in state["model"].items()}, "step": 0, "rates": []}
    dcp.load(live, checkpoint_id=str(tmp_path / "folder"), no_dist=True)
    assert torch.equal(live["model"]["weight"], state["model"]["weight"])
    assert (live["step"], live["rates"]) == (7, [0.5, 0.25])
    assert run("verify", tmp_path / "folder").returncode == 0


def test_R151_chosen_cast_and_renamed(tmp_path: pathlib.Path) -> None:
    state = training()
    torch.save(state, tmp_path / "s.pt")
    words = ("-i", "model/*", "-i", "step", "--dtype", "bf16")
    run("convert", tmp_path / "s.pt", tmp_path / "chosen", "--to", "dcp", *words)
    loaded = pawl.load(tmp_path / "chosen")
    assert set(loaded) == {"model", "step"}
    assert torch.equal(loaded["model"]["bias"], state["model"]["bias"].bfloat16())
    done = run("convert", tmp_path / "s.pt", tmp_path / "flat", "--to", "dcp", *words, "-r", "model/*=net.{1}")
    assert "left out 1 value that is not a tensor" in done.stderr
    assert set(pawl.load(tmp_path / "flat")) == {"net.weight", "net.bias"}
    run("convert", tmp_path / "s.pt", tmp_path / "flat", "--to", "dcp", *words, status=7)
    run("convert", tmp_path / "s.pt", tmp_path / "flat", "--to", "dcp", *words, "--overwrite")
    assert set(pawl.load(tmp_path / "flat")) == {"model", "step"}


def sources(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The same tensors in every format that is read."""
    tensors = {f"w{i}": random_torch(torch.float32, (40, 30), i) for i in range(4)}
    torch.save(tensors, folder / "a.pt")
    safetensors.torch.save_file(tensors, folder / "a.safetensors")
    np.savez(folder / "a.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    np.savez_compressed(folder / "packed.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    dcp.save(tensors, checkpoint_id=str(folder / "dcp"), no_dist=True)
    run("convert", folder / "a.pt", folder / "hf", "--to", "hf", "--max-shard-size", "6KB")
    pawl.save(tensors, folder / "own")
    return {n: folder / n for n in ("a.pt", "a.safetensors", "a.npz", "packed.npz", "dcp", "hf", "own")}


def test_R151_every_source_becomes_every_folder(tmp_path: pathlib.Path) -> None:
    found = sources(tmp_path)
    for name, source in found.items():
        for to in ("dcp", "pawl", "hf"):
            target = tmp_path / f"{name}-as-{to}"
            run("convert", source, target, "--to", to)
            assert run("verify", target).returncode == 0
            assert run_json("diff", found["a.pt"], target)["equal"], (name, to)


def test_R151_a_checkpoint_of_pawl_keeps_the_whole_state(tmp_path: pathlib.Path) -> None:
    state = training()
    torch.save(state, tmp_path / "s.pt")
    run("convert", tmp_path / "s.pt", tmp_path / "own", "--to", "pawl")
    assert same(pawl.load(tmp_path / "own"), pawl.load(tmp_path / "s.pt"))
    done = run("convert", tmp_path / "s.pt", tmp_path / "cast", "--to", "pawl", "--dtype", "fp16", status=2)
    assert "written completely" in done.stderr
    run("convert", tmp_path / "s.pt", tmp_path / "own", "--to", "pawl", status=7)


def test_a_tensor_that_dcp_saved_in_pieces_is_refused_with_what_joins_it(tmp_path: pathlib.Path) -> None:
    pieces = {None: [4, 2], "0,0": torch.ones(2, 2), "2,0": torch.zeros(2, 2)}
    note = {"torch.distributed.checkpoint": {"checkpoint_id": None}}
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"m": {"w": pieces}, "v": torch.ones(3)}, metadata=note, wait=True)
    for target, to in ((tmp_path / "a.pt", None), (tmp_path / "a", "dcp")):
        with pytest.raises(pawl.UnsupportedError, match=r"'m/w': .* in pieces.*; pawl\.torch\.export_dcp joins"):
            pawl.convert(tmp_path / "run", target, to=to, select="latest")
    pawl.convert(tmp_path / "run", tmp_path / "rest.pt", exclude="m/w/*", select="latest")
    assert torch.load(tmp_path / "rest.pt").keys() == {"v"}
    with pawl.CheckpointManager(tmp_path / "other") as manager:
        manager.save(1, {"model": {"w": torch.ones(3)}, "m": {"w": pieces}}, metadata=note, wait=True)
    pawl.convert(tmp_path / "other", tmp_path / "model.pt", model=True, select="latest")
    assert torch.load(tmp_path / "model.pt").keys() == {"w"}
    pawl.torch.export_dcp(tmp_path / "run", tmp_path / "dcp")
    pawl.convert(tmp_path / "dcp", tmp_path / "all.pt")
    joined = torch.load(tmp_path / "all.pt")["m/w"]
    assert torch.equal(joined, torch.cat([torch.ones(2, 2), torch.zeros(2, 2)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.pt", "dcp", "model.pt", "other", "rest.pt", "run"]


def test_P2_a_failure_leaves_nothing(tmp_path: pathlib.Path) -> None:
    torch.save({"w": torch.arange(100_000)}, tmp_path / "s.pt")
    run("convert", tmp_path / "s.pt", tmp_path / "good", "--to", "dcp")
    data = bytearray((tmp_path / "s.pt").read_bytes())
    data[400_000] ^= 1
    (tmp_path / "s.pt").write_bytes(data)
    run("convert", tmp_path / "s.pt", tmp_path / "bad", "--to", "dcp", status=4)
    assert not (tmp_path / "bad").exists()
    with pytest.raises(pawl.CorruptError):
        pawl.load(tmp_path / "s.pt")
