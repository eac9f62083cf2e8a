# SPDX-License-Identifier: Apache-2.0
"""The command in everyday use: models for other programs, what is the best, folders of runs, messages that help."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from common import same
from safetensors.torch import load_file

import pawl
from cli import PAWL, environment, run, run_json
from pawl.composer import CheckpointSaver


def model(seed: int = 0) -> torch.nn.Module:
    """With a buffer of no dimension and two names for one tensor."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 8, bias=False)
    )
    net[3].weight = net[0].weight
    return net


def fill(root: pathlib.Path, losses: list[float], **options: Any) -> pathlib.Path:
    with pawl.CheckpointManager(root, **options) as manager:
        for step, loss in enumerate(losses):
            manager.save(step, {"w": np.arange(4.0)}, metrics={"loss": loss, "acc": 1 - loss}, wait=True)
    return root


# ---- export


def test_the_suffix_decides_what_is_exported(tmp_path: pathlib.Path) -> None:
    root = fill(tmp_path / "run", [0.5])
    for name in ("m.pt", "m.pth", "m.npz", "m.npy", "m.safetensors", "m"):
        run("export", root, tmp_path / name)
    expected = torch.arange(4, dtype=torch.float64)
    for name in ("m.pt", "m.pth"):
        assert torch.equal(torch.load(tmp_path / name, weights_only=True)["w"], expected)
    assert np.array_equal(np.load(tmp_path / "m.npz")["w"], np.arange(4.0))
    assert np.array_equal(np.load(tmp_path / "m.npy"), np.arange(4.0))
    for name in ("m.safetensors", "m"):
        (length,) = np.frombuffer((tmp_path / name).read_bytes()[:8], "<u8")
        assert "w" in json.loads((tmp_path / name).read_bytes()[8 : 8 + int(length)])
    assert "m.bin: no format has this suffix" in run("export", root, tmp_path / "m.bin", status=2).stderr
    assert not (tmp_path / "m.bin").exists()


@pytest.mark.parametrize("place", ["model", "state/model", "state_dict", "model_state_dict", "module", ""])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_an_exported_model_is_what_load_state_dict_takes(tmp_path: pathlib.Path, place: str, suffix: str) -> None:
    net = model()
    state: Any = net.state_dict()
    if place:
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        state = net.state_dict()
        for key in reversed(place.split("/")):
            state = {key: state, "optimizer": optimizer.state_dict(), "ema": {"w": torch.ones(2)}, "step": 1}
    pawl.save(state, tmp_path / "c")
    run("export", tmp_path / "c", tmp_path / f"m.{suffix}", "--model")
    again = model(1)
    if suffix == "pt":
        again.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    else:
        from safetensors.torch import load_model

        load_model(again, tmp_path / "m.safetensors")
    for name, tensor in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_state_without_a_model_is_not_exported_as_one(tmp_path: pathlib.Path) -> None:
    pawl.save({"optimizer": {"exp_avg": torch.ones(3)}, "model": {"deep": {"w": torch.ones(3)}}}, tmp_path / "c")
    done = run("export", tmp_path / "c", tmp_path / "m.pt", "--model", status=3)
    assert "no state dict of a model found" in done.stderr and "'model_state_dict'" in done.stderr
    assert "include and rename choose other paths" in done.stderr
    assert not (tmp_path / "m.pt").exists()


class Scaled(torch.nn.Linear):
    """With a state that is not a tensor, as layers of fp8 have."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def scaled(key: str, extra: Any = None) -> tuple[torch.nn.Module, Scaled]:
    """A model with a layer whose extra state has that key."""
    layer = Scaled(4, 2)
    layer.extra = extra
    model = layer if key == "_extra_state" else torch.nn.Sequential(torch.nn.Linear(4, 4), layer)
    assert key in model.state_dict()
    return model, layer


LONG = "a recipe " * 1000
EXTRAS = {
    "dict": {"scale": 2.0, "history": torch.ones(2), "names": [LONG, "b", ("c", None)], "more": {1: LONG.encode()}},
    "list": [torch.full((3,), 0.5), torch.arange(2)],
    "text, then a tensor": {"text": LONG, "after": torch.arange(5.0)},
    "tensor": torch.arange(3),
    "text": "e4m3",
    "number": 7,
    "empty": {},
    "none": None,
}


@pytest.mark.parametrize("key", ["_extra_state", "1._extra_state"])
@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_a_model_is_exported_with_its_extra_state(tmp_path: pathlib.Path, key: str, extra: Any) -> None:
    (saved, _), (loaded, layer) = scaled(key, extra), scaled(key)
    pawl.save({"model": saved.state_dict(), "step": 1, "note": LONG}, tmp_path / "c")
    run("export", tmp_path / "c", tmp_path / "m.pt", "--model")
    loaded.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert same(layer.extra, extra)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), loaded.parameters(), strict=True))


def test_an_extra_state_keeps_its_dtypes_and_ties_and_can_be_renamed_or_left_out(tmp_path: pathlib.Path) -> None:
    net, layer = scaled("1._extra_state")
    layer.extra = {"history": torch.ones(2), "tied": layer.weight.detach(), "twice": [torch.zeros(1)] * 2}
    pawl.save({"model": net.state_dict()}, tmp_path / "c")
    report = pawl.convert(tmp_path / "c", tmp_path / "m.pt", model=True, dtype="bf16", rename=[("1.*", "head.*")])
    assert report.n_tensors == 7
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert set(loaded) == {"0.weight", "0.bias", "head.weight", "head.bias", "head._extra_state"}
    extra = loaded["head._extra_state"]
    assert extra["history"].dtype == torch.float32 and loaded["0.weight"].dtype == torch.bfloat16
    assert torch.equal(extra["tied"], layer.weight) and extra["tied"].dtype == torch.float32
    assert extra["twice"][0].data_ptr() == extra["twice"][1].data_ptr()
    pawl.convert(tmp_path / "c", tmp_path / "same.pt", model=True)
    loaded = torch.load(tmp_path / "same.pt", weights_only=True)
    assert loaded["1._extra_state"]["tied"].data_ptr() == loaded["1.weight"].data_ptr()
    for i, alone in enumerate((torch.full((2,), 1 / 3), layer.weight.detach())):  # a tensor, which every format holds
        layer.extra = alone
        pawl.save({"model": net.state_dict()}, tmp_path / f"d{i}")
        for target, read in ((f"{i}.pt", torch.load), (f"{i}.safetensors", load_file)):
            pawl.convert(tmp_path / f"d{i}", tmp_path / target, model=True, dtype="bf16")
            loaded = read(tmp_path / target)
            assert torch.equal(loaded["1._extra_state"], alone) and loaded["1.weight"].dtype == torch.bfloat16
    for target in ("n.pt", "n.safetensors", "folder"):
        run("export", tmp_path / "c", tmp_path / target, "--model", "-x", "*_extra_state*")
    missing, unexpected = net.load_state_dict(torch.load(tmp_path / "n.pt", weights_only=True), strict=False)
    assert missing == ["1._extra_state"] and not unexpected


def test_an_extra_state_that_a_format_cannot_hold_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    net, _ = scaled("1._extra_state", {"scale": 2.0})
    pawl.save({"model": net.state_dict()}, tmp_path / "c")
    done = run("export", tmp_path / "c", tmp_path / "m.safetensors", "--model", status=3)
    assert "has '1._extra_state'" in done.stderr and "only a .pt file holds it" in done.stderr
    net, _ = scaled("_extra_state", {"seen": {1, 2}})
    pawl.save({"model": net.state_dict()}, tmp_path / "d")
    done = run("export", tmp_path / "d", tmp_path / "m.pt", "--model", status=1)
    assert "'_extra_state' has a value of the kind set" in done.stderr and "--exclude" in done.stderr
    assert not list(tmp_path.glob("m.*"))


# ---- the best


def test_best_is_shown_and_restored_only_where_a_score_was_asked_for(tmp_path: pathlib.Path) -> None:
    root = fill(tmp_path / "run", [0.5, 0.2, 0.9])
    marks = [c["marks"] for c in json.loads(run("ls", root, "--json").stdout)["checkpoints"]]
    assert marks == [[], [], ["latest"]] and not (root / "best").is_symlink()
    for command in (("show", f"{root}@best"), ("restore", f"{root}@best", tmp_path / "x")):
        assert "the run has no score" in run(*command, status=3).stderr
    assert not (tmp_path / "x").exists()
    with pawl.CheckpointManager(root, read_only=True) as manager:
        assert manager.best_step() is None and manager.latest_step() == 2
        with pytest.raises(pawl.NotFoundError, match="there is no best checkpoint"):
            manager.restore(which="best")
    shown = json.loads(run("show", f"{root}@best", "--by", "loss", "--order", "min", "--json").stdout)
    assert shown["checkpoint"]["step"] == 1

    scored = fill(tmp_path / "scored", [0.5, 0.2, 0.9], score_attribute="loss", score_order="min")
    assert (scored / "best").is_symlink()
    marks = [c["marks"] for c in json.loads(run("ls", scored, "--json").stdout)["checkpoints"]]
    assert marks == [[], ["best"], ["latest"]]


@pytest.mark.parametrize("command", ["ls", "show", "prune", "export"])
def test_a_metric_that_no_checkpoint_has_is_an_error_that_lists_those_there_are(
    tmp_path: pathlib.Path, command: str
) -> None:
    root = fill(tmp_path / "run", [0.5, 0.2])
    more = {"show": [f"{root}@best"], "export": [f"{root}@best", tmp_path / "m"]}.get(command, [root])
    more += ["--keep-best", "1", "-n"] if command == "prune" else []
    done = run(command, *more, "--by", "los", status=2)
    assert "los" in done.stderr and "loss" in done.stderr and "acc" in done.stderr
    assert not done.stdout


def test_a_long_list_of_metrics_is_cut_with_a_count(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2):
            manager.save(step, {"w": np.arange(4.0)}, metrics={f"m{i:02}": 1 for i in range(13)}, wait=True)
    said = run("ls", tmp_path / "run", "--by", "loss", status=2).stderr
    assert "there are: m00, " in said and ", m09, ... and 3 more\n" in said and "m10" not in said


# ---- folders


def test_ls_of_a_folder_lists_the_runs_in_it_by_name(tmp_path: pathlib.Path) -> None:
    for name in ("b10", "b9", "a", "deep/er/run", "deep/run"):
        fill(tmp_path / name, [0.5, 0.2])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert run("ls", tmp_path, "--names").stdout.split() == ["a", "b9", "b10", "broken"]
    assert run("ls", "-r", tmp_path, "--names").stdout.split() == [
        "a",
        "b9",
        "b10",
        "broken",
        "deep/er/run",
        "deep/run",
    ]
    rows = [line.split() for line in run("ls", tmp_path).stdout.splitlines()]
    assert rows[0][:3] == ["run", "checkpoints", "step"]
    assert [row[:3] for row in rows[1:4]] == [["a", "2", "1"], ["b9", "2", "1"], ["b10", "2", "1"]]
    found = json.loads(run("ls", "-r", tmp_path, "--json").stdout)
    assert [r["checkpoints"] for r in found["runs"]] == [2, 2, 2, 0, 2, 2]
    assert found["runs"][0]["latest"]["step"] == 1 and found["files"] == []
    (tmp_path / "empty").mkdir()
    assert "no run and no checkpoint here" in run("ls", tmp_path / "empty", status=3).stderr


def test_ls_of_a_folder_lists_only_the_newest_runs_if_asked(tmp_path: pathlib.Path) -> None:
    """By their last saves; in the order of their names."""
    for name in ("b", "c", "a"):
        fill(tmp_path / name, [0.5])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert run("ls", tmp_path, "--names", "--last", 2).stdout.split() == ["a", "c"]
    assert [pathlib.Path(r["run"]).name for r in run_json("ls", "--last", 1, tmp_path)["runs"]] == ["a"]
    assert run("ls", tmp_path, "--names", "--last", 9).stdout.split() == ["a", "b", "broken", "c"]


def test_ls_of_composers_folder_lists_its_files_in_the_order_of_the_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with CheckpointSaver(save_interval="1ba") as saver:
        for batch in (2, 9, 10, 100):
            at = {"run_name": "run", "epoch": batch // 10, "batch": batch}
            saver.step(at, lambda: {"state": {"model": {"w": torch.ones(2)}}})
    names = [f"ep{b // 10}-ba{b}-rank0.pt" for b in (2, 9, 10, 100)]
    assert run("ls", "run/checkpoints", "--names").stdout.split() == names
    assert run("ls", "run", "--names").stdout.split() == [f"checkpoints/{name}" for name in names]
    files = json.loads(run("ls", "run/checkpoints", "--json").stdout)["files"]
    assert [(f["epoch"], f["batch"]) for f in files] == [(0, 2), (0, 9), (1, 10), (10, 100)]
    assert [f.get("links") for f in files] == [None, None, None, "latest-rank0.pt"]
    last = run("ls", "run/checkpoints", "--last", "1").stdout.splitlines()
    assert len(last) == 2 and last[1].split()[:3] == [names[-1], "10", "100"]
    assert run("ls", "-r", ".", "--names").stdout.split() == [f"run/checkpoints/{name}" for name in names]


# ---- messages


def test_a_lease_that_cannot_be_made_is_named_with_its_path_and_the_reason(tmp_path: pathlib.Path) -> None:
    root = fill(tmp_path / "run", [0.5])
    (root / ".lease").unlink(missing_ok=True)
    code = f"""
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
os.execv({PAWL!r}, ["pawl", "prune", {str(root)!r}, "--keep-last", "1"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 1 and f"error: {root}/.lease: " in done.stderr and "File too large" in done.stderr


def test_a_limit_of_the_size_of_files_is_an_error_and_ends_no_process(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.CheckpointManager(root) as manager:
        manager.save(1, {"w": np.zeros(1 << 20)}, wait=True)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))

    for command in (
        ["cp", root, tmp_path / "copy"],
        ["export", root, tmp_path / "m.pt"],
        ["restore", root, tmp_path / "r"],
    ):
        done = subprocess.run([PAWL, *map(str, command)], capture_output=True, text=True, preexec_fn=limited)
        assert done.returncode == 1 and "File too large" in done.stderr, (command, done)
    code = f"""
import signal, sys, numpy, pawl
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
with pawl.CheckpointManager({str(root)!r}) as manager:
    for lazy in (False, True):
        try:
            manager.save(2, {{"w": numpy.ones(1 << 20)}}, wait=True, lazy=lazy)
        except pawl.PawlError as error:
            assert "File too large" in str(error), error
        else:
            sys.exit("it was saved")
    assert manager.all_steps() == [1]
try:
    pawl.save({{"w": numpy.ones(1 << 20)}}, {str(tmp_path / "s")!r})
except pawl.PawlError as error:
    print("refused:", error)
"""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=limited, env=env)
    assert done.returncode == 0 and "refused:" in done.stdout, done


@pytest.mark.parametrize("place", ["s3:/bucket", "s3:/bucket/run", "gs:/bucket/run"])
def test_a_url_with_one_slash_is_recognised(
    tmp_path: pathlib.Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    right = place.replace(":/", "://")
    for command in (["ls", place], ["show", f"{place}@best"], ["verify", place]):
        assert right in run(*command, status=2).stderr
    with pytest.raises(pawl.UsageError, match=right):
        pawl.CheckpointManager(pathlib.Path(right))
    with pytest.raises(pawl.UsageError, match=right):
        pawl.save({"a": 1}, place)
    root = fill(tmp_path / "run", [0.5])
    assert right in run("cp", root, place, status=2).stderr
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_pin_and_unpin_say_what_they_did(tmp_path: pathlib.Path) -> None:
    root = fill(tmp_path / "run", [0.5])
    assert run("pin", f"{root}@id:1").stderr == "pinned checkpoint_000001 (step 0)\n"
    assert run("pin", f"{root}@id:1").stderr == "checkpoint_000001 (step 0) was pinned already\n"
    assert run("unpin", f"{root}@id:1").stderr == "unpinned checkpoint_000001 (step 0)\n"
    assert run("unpin", f"{root}@id:1").stderr == "checkpoint_000001 (step 0) was not pinned\n"
