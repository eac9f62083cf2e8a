# SPDX-License-Identifier: Apache-2.0
"""pawl restore --rename and --cast: a checkpoint with other names and dtypes, as pawl.load gives it by the same rules."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import pawl
from cli import PACK, checkpoint, flip, make, run, run_json, tree_of

RULES = [("model/layer*", "net/l*"), ("epoch", "at/epoch")]
OPTIONS = [text for old, new in RULES for text in ("--rename", f"{old}={new}")]


@pytest.fixture(name="demo")
def demo_run(tmp_path: pathlib.Path) -> pathlib.Path:
    return make("run", tmp_path / "demo", 3)


def same(a: Any, b: Any) -> bool:
    """Of the same types, keys and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and sorted(a) == sorted(b) and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "dtype"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes())
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize("cast", ["fp16", "float64", "model/*=fp16"])
def test_names_and_dtypes_are_those_that_load_gives(demo: pathlib.Path, tmp_path: pathlib.Path, cast: str) -> None:
    run("restore", f"{demo}@200", tmp_path / "new", *OPTIONS, "--cast", cast)
    glob, dtype = cast.split("=") if "=" in cast else ("*", cast)
    expected = pawl.load(f"{demo}@200", rename=RULES, cast={glob: dtype})
    assert expected["at"]["epoch"] == 2 and "layer.weight" not in expected["model"]
    assert same(pawl.load(tmp_path / "new"), expected)
    names = [tensor["name"] for tensor in run_json("show", tmp_path / "new")["tensors"]]
    assert "net/l.weight" in names and "model/layer.weight" not in names
    run("verify", tmp_path / "new")
    assert "tied to model/embed.weight" in run("show", tmp_path / "new").stdout
    checkpoint_of = run_json("show", tmp_path / "new")["checkpoint"]
    assert checkpoint_of["step"] == 200 and checkpoint_of["metrics"]["accuracy"] == 0.75


def test_elements_that_a_buffer_cuts_are_cast_right(tmp_path: pathlib.Path) -> None:
    """Three bytes before them, and more than one buffer of them."""
    numbers = np.random.default_rng(0).normal(size=3_000_001)
    pawl.save({"a": np.arange(3, dtype=np.uint8), "w": numbers, "z": numbers[:5].astype(np.float32)}, tmp_path / "one")
    run("restore", tmp_path / "one", tmp_path / "new", "--cast", "fp32")
    new = pawl.load(tmp_path / "new")
    assert same(new["w"], numbers.astype(np.float32)) and same(new["a"], np.arange(3, dtype=np.uint8))
    run("restore", tmp_path / "new", tmp_path / "wide", "--cast", "w=fp64")
    assert same(pawl.load(tmp_path / "wide")["w"], numbers.astype(np.float32).astype(np.float64))
    run("verify", tmp_path / "wide")


def test_what_a_cast_makes_infinite_is_flagged(tmp_path: pathlib.Path) -> None:
    """70,000 is more than a half can hold; what was flagged stays so."""
    pawl.save({"w": np.array([1.0, 70_000.0]), "n": np.array([70_000])}, tmp_path / "one")
    for dtype, flagged in (("fp32", False), ("bf16", False), ("fp16", True)):
        run("restore", tmp_path / "one", tmp_path / dtype, "--cast", dtype)
        assert run_json("show", tmp_path / dtype)["checkpoint"]["state"] == ("nonfinite" if flagged else "saved")
    assert np.isinf(pawl.load(tmp_path / "fp16")["w"]).tolist() == [False, True]
    run("restore", tmp_path / "fp16", tmp_path / "wide", "--cast", "fp32")
    assert run_json("show", tmp_path / "wide")["checkpoint"]["state"] == "nonfinite"


def test_an_older_one_is_taken_where_the_latest_is_damaged(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flip(checkpoint(demo, 3) / PACK, 4100)
    report = run_json("restore", demo, tmp_path / "a" / "new", "--cast", "fp16")
    assert report["checkpoint"]["step"] == 200 and len(report["fallbacks"]) == 1
    run("restore", f"{demo}@300", tmp_path / "b", "--cast", "fp16", status=4)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--cast", "int8"], 2, "cast of '*' to 'int8': expected float16"),
        (["--rename", "model"], 2, "'model'"),
        (["--rename", "model/*=one"], 7, "that path exists"),
        (["--rename", "optimizer/betas/0=x"], 2, "an element of a list or tuple keeps its place"),
    ],
)
def test_wrong_rules_leave_nothing(
    demo: pathlib.Path, tmp_path: pathlib.Path, options: list[str], status: int, message: str
) -> None:
    before = tree_of(demo / "checkpoints")
    assert message in run("restore", demo, tmp_path / "new", *options, status=status).stderr
    assert "not to a URL" in run("restore", demo, "s3://bucket/new", "--cast", "fp16", status=2).stderr
    assert tree_of(demo / "checkpoints") == before and [path.name for path in tmp_path.iterdir()] == ["demo"]
