# SPDX-License-Identifier: Apache-2.0
"""pawl.convert: what the command does, from Python. R151."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from waiting import HANG_SECONDS

import pawl
from cli import run


@pytest.fixture(name="model")
def model_file(tmp_path: pathlib.Path) -> pathlib.Path:
    weight = torch.randn(300, 40)
    torch.save({"model": {"w": weight, "b": torch.arange(7), "tied": weight}, "step": 3}, tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "npz"])
def test_R151_it_writes_what_the_command_writes(model: pathlib.Path, tmp_path: pathlib.Path, suffix: str) -> None:
    ours, theirs = (tmp_path / folder / f"a.{suffix}" for folder in ("ours", "theirs"))
    ours.parent.mkdir()
    theirs.parent.mkdir()
    options = ["--rename", "model/*=net/{1}", "--dtype", "fp64", "--exclude", "model/t*", "--dots"]
    run("convert", model, theirs, *options)
    written = pawl.convert(model, ours, rename="model/*=net/{1}", dtype="fp64", exclude=["model/t*"], dots=True)
    assert written == pawl.Converted(n_tensors=2, n_files=1, nbytes=300 * 40 * 8 + 7 * 8, n_left=1)
    assert ours.read_bytes() == theirs.read_bytes()
    assert sorted(pawl.load(ours)) == ["net.b", "net.w"]


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16])
def test_new_names_are_pairs_and_dtypes_those_of_a_framework_as_in_a_restore(
    tmp_path: pathlib.Path, dtype: object
) -> None:
    pawl.save({"old": {"w": torch.ones(3)}, "rest": torch.ones(2)}, tmp_path / "one")
    rename = [("old/*", "new/*"), "rest=last"]
    pawl.convert(tmp_path / "one", tmp_path / "a.safetensors", rename=rename, dtype=dtype)  # type: ignore[arg-type]
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert {name: value.dtype for name, value in found.items()} == dict.fromkeys(("new/w", "last"), torch.bfloat16)
    with pytest.raises(pawl.UsageError, match="rename: expected pairs of texts"):
        pawl.convert(tmp_path / "one", tmp_path / "b.safetensors", rename=[3])  # type: ignore[list-item]


def test_checkpoints_of_a_run_are_selected(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run", score_attribute="loss") as manager:
        for step, loss in ((1, 3.0), (2, 4.0), (3, 1.0)):
            manager.save(step, {"w": np.full(3, step, np.float32)}, metrics={"loss": loss})
    for select, expected in (("best", 2), ("latest", 3), ("step:1", 1)):
        pawl.convert(tmp_path / "run", tmp_path / "w.npy", select=select, overwrite=True)
        assert np.load(tmp_path / "w.npy").tolist() == [expected] * 3
    with pytest.raises(pawl.NotFoundError, match="no checkpoint has the step 9; there are 1, 2, 3"):
        pawl.convert(tmp_path / "run", tmp_path / "x.npy", select="step:9")
    with pytest.raises(pawl.NotFoundError, match="is a run; name a checkpoint, such as"):
        pawl.convert(tmp_path / "run", tmp_path / "x.npy")


def test_folders_of_others_and_back(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pawl.convert(model, tmp_path / "hub", to="hf", max_shard_bytes="1kB")
    assert len(list((tmp_path / "hub").glob("*.safetensors"))) > 1
    pawl.convert(model, tmp_path / "dcp", to="dcp")
    pawl.convert(tmp_path / "dcp", tmp_path / "whole", to="pawl")
    state = pawl.load(tmp_path / "whole")
    assert state["step"] == 3 and torch.equal(state["model"]["w"], torch.load(model)["model"]["w"])


def test_wrong_arguments_are_named(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="rename must be a list of pairs or of texts 'GLOB=TEMPLATE', received 3"):
        pawl.convert(model, tmp_path / "a.npz", rename=3)  # type: ignore[arg-type]
    with pytest.raises(pawl.UsageError, match="max_shard_bytes"):
        pawl.convert(model, tmp_path / "a", to="hf", max_shard_bytes=-1)
    with pytest.raises(pawl.UsageError, match="gguf"):
        pawl.convert(model, tmp_path / "a", to="gguf")
    (tmp_path / "a.npz").write_bytes(b"mine")
    with pytest.raises(pawl.ExistsError):
        pawl.convert(model, tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == b"mine"
    with pytest.raises(pawl.NotFoundError):
        pawl.convert(tmp_path / "none.pt", tmp_path / "b.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "m.pt"]


# A gibibyte at 512 KiB a second: it is not done before it is interrupted.
INTERRUPTED = """
import os, signal, sys, threading, time
import pawl, pawl._convert
source, folder = sys.argv[1:]
run = pawl._pawl.Run(source, single=True, read_only=True, **{"io.read_bytes_per_second": 1 << 19})

def interrupt():
    while not os.listdir(folder):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    pawl._convert.write(run, 1, folder + "/a.safetensors")
except KeyboardInterrupt:
    sys.exit(42)
"""


def test_ctrl_c_is_heard_and_nothing_stays(tmp_path: pathlib.Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 30], "data_offsets": [0, 1 << 30]}}).encode()
    with open(tmp_path / "big.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 30))
    (tmp_path / "to").mkdir()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    child = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "big.safetensors"), str(tmp_path / "to")],
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        timeout=HANG_SECONDS,
        check=False,
    )
    assert child.returncode == 42
    assert list((tmp_path / "to").iterdir()) == []


def test_safetensors_reads_the_result(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pawl.convert(model, tmp_path / "m.safetensors", include="model/w")
    (name, tensor), *_ = safetensors.torch.load_file(tmp_path / "m.safetensors").items()
    assert name == "model/w" and torch.equal(tensor, torch.load(model)["model"]["w"])
