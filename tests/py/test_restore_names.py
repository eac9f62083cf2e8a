# SPDX-License-Identifier: Apache-2.0
"""Names and dtypes at restore: rename= and cast=."""

from __future__ import annotations

import collections
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import torch

import pawl


def saved(root: pathlib.Path, state: Any) -> str:
    with pawl.CheckpointManager(str(root)) as manager:
        manager.save(1, state).wait()
    return str(root)


def test_names_change_at_restore(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"old": {"a": torch.ones(2), "b": {"c": torch.zeros(3)}}, "step": 3})
    live = {"new": {"a": torch.zeros(2), "b": {"c": torch.ones(3)}}, "step": 0}
    with pawl.CheckpointManager(root) as manager:
        with pytest.raises(pawl.MismatchError) as caught:
            manager.restore(live)
        assert any("rename=" in note and "cast=" in note for note in caught.value.__notes__)
        assert manager.restore(live, rename=[("old/*", "new/*")])
    assert live["new"]["a"].sum() == 2 and live["new"]["b"]["c"].sum() == 0 and live["step"] == 3  # type: ignore[index]


def test_two_names_change_places(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"a": torch.ones(1), "b": torch.zeros(1)})
    found = pawl.load(root + "/latest", rename=[("a", "b"), ("b", "a")])
    assert found["a"].item() == 0 and found["b"].item() == 1


def test_two_names_of_many_change_places(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {f"w{i}": torch.full((1,), float(i)) for i in range(30)})
    found = pawl.load(root + "/latest", rename=[("w1", "w2"), ("w2", "w1")])
    assert found["w1"].item() == 2 and found["w2"].item() == 1 and len(found) == 30


def test_lists_move_with_all_that_is_around_them(tmp_path: pathlib.Path) -> None:
    state = {"net": {"layers": [torch.ones(1), {"w": torch.zeros(1)}], "t": (1, torch.ones(2)), "none": []}, "n": 1}
    root = saved(tmp_path, state)
    for rules, at in (
        ([("net/*", "other/*")], ("other",)),
        ([("*", "all/*")], ("all", "net")),
        ([("n*", "deep/n*")], ("deep", "net")),
    ):
        found = pawl.load(root + "/latest", rename=rules)
        for key in at:
            found = found[key]
        assert found["layers"][0].item() == 1 and found["layers"][1]["w"].item() == 0 and found["none"] == []
        assert type(found["t"]) is tuple and found["t"][0] == 1
    assert pawl.load(root + "/latest", rename=[("net/layers/*", "list/*")])["list"][1]["w"].item() == 0
    assert pawl.load(root + "/latest", rename=[("net/*", "*")])["t"][0] == 1


def test_names_change_inside_of_a_list(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"layers": [{"w": torch.full((1,), float(i)), "n": i} for i in range(3)]})
    found = pawl.load(root + "/latest", rename=[("layers/*/w", "layers/*/weight")])
    assert [(layer["weight"].item(), layer["n"]) for layer in found["layers"]] == [(0, 0), (1, 1), (2, 2)]


def test_an_optimizer_moves(tmp_path: pathlib.Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    root = saved(tmp_path, {"model": model, "optimizer": optimizer})
    other = torch.nn.Linear(2, 2)
    live = torch.optim.AdamW(other.parameters())
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(
            {"all": {"model": other, "adam": live}}, rename=[("optimizer/*", "all/adam/*"), ("*", "all/*")]
        )
    assert torch.equal(other.weight, model.weight) and live.param_groups[0]["lr"] == 0.5
    assert torch.equal(live.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_what_moves_keeps_its_types(tmp_path: pathlib.Path) -> None:
    state = {"a": {3: collections.deque([1, 2], maxlen=4), "set": {1}, "o": collections.OrderedDict(x=1)}}
    root = saved(tmp_path, state | {"rng": np.random.default_rng(5), "b": {"y": 1}})
    found = pawl.load(root + "/latest", rename=[("a/*", "b/*"), ("rng/*", "b/rng/*")])
    assert found["b"] == {"y": 1, **state["a"], "rng": found["b"]["rng"]} and found["b"][3].maxlen == 4
    assert type(found["b"]["o"]) is collections.OrderedDict and "a" not in found
    assert found["b"]["rng"].random() == np.random.default_rng(5).random()


def test_two_dicts_become_one(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"a": {"x": 1, "d": {"p": [1]}}, "b": {"y": 2, "d": {"q": [2]}}, "c": {"x": 3}})
    found = pawl.load(root + "/latest", rename=[("b/*", "a/*")])
    assert found == {"a": {"x": 1, "d": {"p": [1], "q": [2]}, "y": 2}, "c": {"x": 3}}
    with pytest.raises(pawl.PawlError, match="rename: 'c' to 'a': that path exists"):
        pawl.load(root + "/latest", rename=[("c/*", "a/*")])


def test_many_flat_names_change(tmp_path: pathlib.Path) -> None:
    state = {f"module.layer{i}.weight": torch.full((1,), float(i)) for i in range(300)}
    found = pawl.load(saved(tmp_path, {"model": state}) + "/latest", rename=[("model/module.*", "model/*")])
    assert list(found["model"]) == [f"layer{i}.weight" for i in range(300)]
    assert all(found["model"][f"layer{i}.weight"].item() == i for i in range(300))


def test_wildcards_keep_their_order_or_take_another(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"h": {"w1": torch.ones(1)}, "values": {"a b": 1}})
    found = pawl.load(root + "/latest", rename=[("*/w*", "x{2}/{1}/y"), ("values/*", "deep/er/*")])
    assert list(found) == ["x1", "deep"] and found["x1"]["h"]["y"].item() == 1 and found["deep"]["er"]["a b"] == 1


def test_an_empty_key_stays_where_it_is(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"": 1, "a": 2})
    assert pawl.load(root + "/latest", rename=[("a", "b")]) == {"": 1, "b": 2}


@pytest.mark.parametrize(
    ("rules", "kind", "text"),
    [
        ([("a", "b")], pawl.PawlError, "rename: 'a' to 'b': that path exists"),
        ([("a", "b/c")], pawl.UsageError, "rename: 'a' to 'b/c': a list, a tuple or a value is in the way"),
        ([("l/0", "c")], pawl.UsageError, "rename: 'l/0': an element of a list or tuple keeps its place"),
        ([("*a", "*")], pawl.UsageError, "rename: 'a': its new path is empty"),
        ([("a", "{1}")], pawl.UsageError, "its glob has 0 wildcards"),
        (["ab"], pawl.UsageError, "rename: expected pairs of texts"),
        (3, pawl.UsageError, "rename: expected pairs of texts, such as ('old/*', 'new/*'), found 3"),
        ([("a=b", "c")], pawl.UsageError, "a path with '=' cannot be renamed"),
    ],
)
def test_what_cannot_be_renamed_is_named(tmp_path: pathlib.Path, rules: Any, kind: type, text: str) -> None:
    root = saved(tmp_path, {"a": torch.ones(1), "b": torch.ones(1) + 1, "l": [torch.ones(1)]})
    with pytest.raises(kind, match=re.escape(text)):
        pawl.load(root + "/latest", rename=rules)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rename": [("b/*", "c/*"), ("old/*", "new/*")]}, "rename: no saved path matches 'old/*'"),
        ({"rename": [("b", "c")]}, "rename: no saved path matches 'b'; for what is below it write '/*' after both"),
        ({"cast": {"*": "float32", "old/*": "float16"}}, "cast: no saved path matches 'old/*'"),
        ({"cast": {"old/*": "float16"}}, "cast: no saved path matches 'old/*'"),
        ({"cast": {"b/y": "float16"}}, "cast: no saved path matches 'b/y'; did you mean b/x?"),
        ({"rename": [("b/y", "c")]}, "rename: no saved path matches 'b/y'; did you mean b/x?"),
        ({"cast": {"step": "float16"}}, "cast: no saved tensor matches 'step'; what it matches has no dtype"),
        ({"cast": {"st*": "float16"}}, "cast: no saved tensor matches 'st*'; what it matches has no dtype"),
    ],
)
def test_a_rule_that_matches_nothing_is_named(tmp_path: pathlib.Path, options: Any, text: str) -> None:
    root = saved(tmp_path, {"a": torch.ones(1), "b": {"x": torch.ones(1)}, "step": 1})
    with pytest.raises(pawl.MismatchError, match=re.escape(text)):
        pawl.load(root + "/latest", **options)
    with pawl.CheckpointManager(root) as manager:
        restored = manager.restore(strict=False, **options)
        assert restored and any(row.startswith(text) for row in restored.report)
        with pytest.raises(pawl.MismatchError, match=re.escape(text)):
            manager.restore(**options)


def test_a_dtype_may_be_that_of_a_framework(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"w": torch.ones(3)})
    for dtype in (torch.float16, np.float16, np.dtype("float16"), "half", "float16"):
        assert pawl.load(root + "/latest", cast=dtype)["w"].dtype is torch.float16
    assert pawl.load(saved(tmp_path / "n", {"n": 3}) + "/latest", cast="float32") == {"n": 3}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "float16"])
def test_floats_are_converted(tmp_path: pathlib.Path, name: str) -> None:
    dtype = getattr(torch, name)
    values = torch.randn(70000).bfloat16().reshape(700, 100)
    root = saved(tmp_path, {"w": values, "n": torch.arange(3), "text": "t"})
    found = pawl.load(root + "/latest", cast=name)
    assert found["w"].dtype is dtype and torch.equal(found["w"], values.to(dtype)) and found["n"].dtype is torch.int64
    live = {"w": torch.zeros(100, 700, dtype=dtype).t(), "n": torch.zeros(3, dtype=torch.int64), "text": ""}
    memory = live["w"]
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live, cast=dtype)
    assert live["w"] is memory and torch.equal(memory, values.to(dtype))


def test_globs_choose_what_is_converted(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"m": {"a": np.ones(2, "f4"), "b": np.ones(2, "f4")}, "o": np.ones(2, "f4")})
    found = pawl.load(root + "/latest", rename=[("o", "m/o")], cast={"m/a": "float16", "m/o": "float64"})
    assert [found["m"][key].dtype.str for key in "abo"] == ["<f2", "<f4", "<f8"]


def test_a_shard_is_converted(tmp_path: pathlib.Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    root = saved(tmp_path, {"w": whole})
    part = torch.zeros(2, 3, dtype=torch.float64)
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore({"w": pawl.Shard(part, (4, 6), (1, 2))}, cast="float64")
    assert torch.equal(part, whole[1:3, 2:5].double())


def test_a_module_takes_other_names_and_dtypes(tmp_path: pathlib.Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).bfloat16()
    root = saved(tmp_path, {"net": {f"module.{key}": value for key, value in model.state_dict().items()}})
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore({"model": other}, rename=[("net/module.*", "model/*")], cast="float32")
    assert torch.equal(other[0].weight, model[0].weight.float())


@pytest.mark.parametrize("cast", ["int8", {"*": "complex64"}, {"": "float32"}])
def test_other_dtypes_are_refused(tmp_path: pathlib.Path, cast: Any) -> None:
    root = saved(tmp_path, {"w": torch.ones(1)})
    with pytest.raises(
        pawl.UsageError, match="cast of .*: expected float16, bfloat16, float32 or float64|found the glob ''"
    ):
        pawl.load(root + "/latest", cast=cast)


def test_a_shape_that_differs_is_refused(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"w": torch.ones(3)})
    with pawl.CheckpointManager(root) as manager, pytest.raises(pawl.MismatchError, match="shape: w") as caught:
        manager.restore({"w": torch.ones(2)}, cast="float32")
    assert any("a tensor of another shape is never cut" in note for note in caught.value.__notes__)
    assert str(caught.value).endswith("; strict=False leaves such tensors as they are and restores the rest")


def test_a_dtype_that_differs_names_cast(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"w": torch.ones(3)})
    live = {"w": torch.zeros(3, dtype=torch.float64)}
    with pytest.raises(pawl.MismatchError, match='dtype: w: .*; cast="float32" converts floats'):
        pawl.load(root + "/latest", state=live)
    pawl.load(root + "/latest", state=live, cast={"w": "float64"})
    assert live["w"].tolist() == [1, 1, 1]
