# SPDX-License-Identifier: Apache-2.0
"""Values that are neither plain nor tensors: they come back as themselves, or as the plain value of their kind."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import random
import subprocess
import sys
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree as torch_tree

import pawl
from pawl import _kinds


class Color(enum.Enum):
    RED = "r"
    BLUE = (0, 0, 255)


class Level(enum.IntEnum):
    LOW = 1


class Rate(enum.Enum):
    SLOW = np.float64(0.5)
    FAST = np.float64(2.5)


class Moments(NamedTuple):
    mu: Any
    count: int


@dataclasses.dataclass
class Config:
    lr: float
    path: pathlib.Path
    color: Color = Color.RED


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: Any
    step: int = 0


class Pair:
    """Registered as a pytree of torch, without names."""

    def __init__(self, left: Any, right: Any, note: str) -> None:
        self.left, self.right, self.note = left, right, note


torch_tree.register_pytree_node(
    Pair, lambda pair: ([pair.left, pair.right], pair.note), lambda children, note: Pair(*children, note)
)

VALUES: list[Any] = [
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.datetime(2024, 3, 31, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),  # the clocks skip it
    datetime.datetime(2024, 3, 31, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.date(1, 1, 1),
    datetime.time(23, 59, 59, 999999),
    datetime.time(12, tzinfo=datetime.UTC),
    datetime.time(12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.timedelta.max,
    datetime.UTC,
    datetime.timezone(datetime.timedelta(hours=-3), "here"),
    zoneinfo.ZoneInfo("Europe/Berlin"),
    datetime.timedelta(-1, 3, 7),
    decimal.Decimal("1.10"),
    fractions.Fraction(-1, 3),
    uuid.UUID(int=7),
    complex(-0.0, 2),
    range(3, 100, 7),
    bytearray(b"\0\1"),
    {3, "a", (1, 2)},
    frozenset({frozenset({1}), frozenset()}),
    set(),
    collections.Counter("abba"),
    collections.deque([1, {"a": 2}]),
    collections.deque([1, 2], maxlen=3),
    collections.defaultdict(list, {1: [2]}),
    argparse.Namespace(lr=0.1, nested=argparse.Namespace(path=pathlib.Path("x"))),
    types.SimpleNamespace(a=1),
    pathlib.Path("a/b"),
    torch.float8_e4m3fn,
    torch.device("cuda:1"),
    np.dtype("<f4"),
    np.dtype(">i2"),
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
        return False
    if isinstance(a, datetime.datetime) and (a.tzinfo != b.tzinfo or a.utcoffset() != b.utcoffset()):
        return False
    return type(a) is type(b) and bool(a == b) and repr(a) == repr(b)


def saved(root: pathlib.Path, state: Any) -> str:
    with pawl.CheckpointManager(str(root)) as manager:
        manager.save(1, state).wait()
    return str(root)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_of_the_standard_library_comes_back_as_itself(tmp_path: pathlib.Path, value: Any) -> None:
    root = saved(tmp_path, {"v": value, "w": torch.ones(2)})
    assert same(pawl.load(f"{root}/latest")["v"], value)
    live = {"v": value, "w": torch.zeros(2)}
    with pawl.CheckpointManager(root) as manager:
        found = manager.restore(live)
        assert found and same(found.state["v"], value) and same(live["v"], value)
        other = {"v": None, "w": torch.zeros(2)}
        assert manager.restore(other) and same(other["v"], value)


def test_containers_that_can_change_are_changed_in_place(tmp_path: pathlib.Path) -> None:
    root = saved(
        tmp_path,
        {
            "set": {1, 2},
            "deque": collections.deque([1, 2], 4),
            "counter": collections.Counter("aab"),
            "default": collections.defaultdict(list, a=[1]),
            "config": Config(0.5, pathlib.Path("new"), Color.BLUE),
            "args": argparse.Namespace(x=1),
        },
    )
    live = {
        "set": {9},
        "deque": collections.deque([7, 7, 7], 4),
        "counter": collections.Counter("zz"),
        "default": collections.defaultdict(lambda: 3),
        "config": Config(0.1, pathlib.Path("old")),
        "args": argparse.Namespace(y=2),
    }
    before = dict(live)
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live)
    assert all(live[key] is before[key] for key in live)
    assert live["set"] == {1, 2} and list(live["deque"]) == [1, 2] and live["counter"] == collections.Counter("aab")
    assert live["default"] == {"a": [1]} and live["default"]["new"] == 3
    assert live["config"] == Config(0.5, pathlib.Path("new"), Color.BLUE) and live["args"] == argparse.Namespace(x=1)


def objects(fill: float) -> dict[str, Any]:
    def weight() -> torch.Tensor:
        return torch.full((3,), fill)

    return {
        "named": Moments(weight(), int(fill)),
        "frozen": Frozen(weight(), int(fill)),
        "pair": Pair(weight(), Moments(weight(), int(fill)), "kept"),
        "colors": [Color.RED, Color.BLUE] if fill else [Color.BLUE, Color.RED],
        "level": Level.LOW,
    }


def test_objects_with_tensors_come_back_in_live_ones(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, objects(3))
    live = objects(0)
    memory = live["named"].mu
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live)
    assert live["named"].mu is memory and memory.tolist() == [3, 3, 3] and live["named"].count == 3
    assert type(live["frozen"]) is Frozen and live["frozen"].step == 3 and live["frozen"].weight.sum() == 9
    assert type(live["pair"]) is Pair and live["pair"].note == "kept" and live["pair"].right.count == 3
    assert live["colors"] == [Color.RED, Color.BLUE]


def test_without_a_live_object_the_plain_value_comes_back(tmp_path: pathlib.Path) -> None:
    found = pawl.load(saved(tmp_path, objects(3)) + "/latest")
    assert found["named"]["count"] == 3 and found["frozen"]["step"] == 3 and found["pair"][1]["count"] == 3
    assert found["colors"] == ["r", "BLUE"]


def test_no_class_is_needed_to_read_what_was_saved(tmp_path: pathlib.Path) -> None:
    """A program that has none of the classes reads the values; nothing of the file is run."""
    root = saved(tmp_path, {"config": Config(0.5, pathlib.Path("x")), "numbers": {2, 1}})
    program = (
        "import sys, pawl; s = pawl.load(sys.argv[1] + chr(47) + 'latest'); print(s['config'], sorted(s['numbers']))"
    )
    out = subprocess.run([sys.executable, "-c", program, root], check=True, capture_output=True, text=True).stdout
    assert "'lr': 0.5" in out and "PosixPath('x')" in out and out.rstrip().endswith("[1, 2]")


def test_keys_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"m": Moments(torch.ones(2), 1)})
    with pawl.CheckpointManager(root) as manager:
        with pytest.raises(pawl.MismatchError, match="missing: m/weight"):
            manager.restore({"m": Frozen(torch.ones(2))})
        with pytest.raises(pawl.MismatchError, match="shape: m/mu"):
            manager.restore({"m": Moments(torch.ones(3), 1)})


def test_a_member_that_no_longer_exists_is_named(tmp_path: pathlib.Path) -> None:
    class Other(enum.Enum):
        GREEN = "g"

    root = saved(tmp_path, {"color": Color.RED})
    with (
        pawl.CheckpointManager(root) as manager,
        pytest.raises(
            pawl.MismatchError,
            match="checkpoint_000001 does not fit the state, 1 difference: type: color: saved 'r', "
            r"which is not a member of .*Other \(expected 'g'\)",
        ),
    ):
        manager.restore({"color": Other.GREEN})


def test_a_member_that_no_longer_exists_stays_as_it_is_without_strict(tmp_path: pathlib.Path) -> None:
    class Other(enum.Enum):
        GREEN = (0, 1, 0)

    root = saved(tmp_path, {"color": Color.BLUE, "w": torch.ones(2)})
    live = {"color": Other.GREEN, "w": torch.zeros(2)}
    with pawl.CheckpointManager(root) as manager:
        with pytest.raises(pawl.MismatchError, match=r"color: saved 'BLUE', .*Other \(expected GREEN\)"):
            manager.restore(live)
        assert live["w"].sum() == 0
        found = manager.restore(live, strict=False)
    assert found and live["color"] is Other.GREEN and live["w"].sum() == 2
    assert len(found.report) == 1 and "type: color: saved 'BLUE'" in found.report[0]


def test_a_member_whose_value_is_a_scalar_of_NumPy_comes_back(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, {"rate": Rate.FAST})
    live = {"rate": Rate.SLOW}
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live) and live["rate"] is Rate.FAST


def test_a_dtype_of_arrays_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UnsupportedError, match="cannot be held in a state"):
        pawl.save({"d": np.dtype((np.float32, (3,)))}, tmp_path / "ck")


@pytest.mark.parametrize(
    ("value", "live", "says"),
    [
        ({1, 2}, torch.ones(1), "v: saved a set, live a Tensor"),
        ({"a": torch.ones(1)}, Level.LOW, "v: saved a dict, live a Level"),
        ([torch.ones(1)], Color.RED, "v: saved a list, live a Color"),
        (Level.LOW, torch.ones(1), "v: saved an enum, live a Tensor"),
        (5, torch.ones(1), "v: saved a value, live a Tensor"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_types_are_called_by_their_kind(
    tmp_path: pathlib.Path, value: Any, live: Any, says: str
) -> None:
    root = saved(tmp_path, {"v": value})
    with pawl.CheckpointManager(root) as manager, pytest.raises(pawl.MismatchError, match=says):
        manager.restore({"v": live})


@pytest.mark.parametrize("kind", ["torch", "numpy", "MT19937", "legacy", "python"])
def test_random_generators_continue(tmp_path: pathlib.Path, kind: str) -> None:
    def make(seed: int) -> Any:
        return {
            "torch": lambda: torch.Generator().manual_seed(seed),
            "numpy": lambda: np.random.default_rng(seed),
            "MT19937": lambda: np.random.Generator(np.random.MT19937(seed)),
            "legacy": lambda: np.random.RandomState(seed),  # noqa: NPY002
            "python": lambda: random.Random(seed),
        }[kind]()

    def draw(generator: Any) -> list[float]:
        if kind == "torch":
            return torch.rand(4, generator=generator).tolist()
        return [generator.random() for _ in range(4)]

    generator = make(1)
    draw(generator)
    root = saved(tmp_path, {"generator": generator, "own": pawl.PerRank({"generator": generator})})
    expected = draw(generator)
    live = {"generator": make(2), "own": pawl.PerRank({"generator": make(3)})}
    given = live["generator"]
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live)
    assert live["generator"] is given and draw(given) == expected
    assert draw(live["own"].value["generator"]) == expected
    assert draw(pawl.load(f"{root}/latest")["generator"]) == expected


def test_a_set_is_saved_in_one_order(tmp_path: pathlib.Path) -> None:
    program = (
        "import sys, pawl\n"
        "with pawl.CheckpointManager(sys.argv[1]) as m: m.save(1, {'s': {f'k{i}' for i in range(99)}}).wait()"
    )
    trees = []
    for seed in ("1", "2"):
        root = tmp_path / seed
        env = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin"}
        subprocess.run([sys.executable, "-c", program, str(root)], check=True, env=env)
        shown = subprocess.run(["pawl", "show", str(root), "--json"], check=True, capture_output=True, text=True).stdout
        trees.append(json.loads(shown)["state"])
    assert trees[0] == trees[1] and trees[0]["s"]["as"] == "set"


def test_a_partial_restore_changes_the_selected_values_only(tmp_path: pathlib.Path) -> None:
    root = saved(tmp_path, objects(3) | {"when": datetime.date(2026, 1, 1), "path": pathlib.Path("new")})
    live = objects(0) | {"when": datetime.date(1999, 1, 1), "path": "a text"}
    with pawl.CheckpointManager(root) as manager:
        assert manager.restore(live, paths=["frozen/weight"])
    assert live["frozen"].weight.sum() == 9 and live["frozen"].step == 0
    assert live["when"] == datetime.date(1999, 1, 1) and live["path"] == "a text" and live["named"].count == 0


def test_the_state_dict_of_a_fresh_optimizer_takes_the_saved_state(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fresh() -> tuple[Any, torch.optim.Optimizer, dict[str, Any]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(3)).sum().backward()
        optimizer.step()

    model, optimizer, _ = fresh()
    step(model, optimizer)
    root = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)
    other, restarted, state = fresh()
    with pawl.CheckpointManager(root) as manager:
        found = manager.restore(state)
    assert found
    text = "optimizer/state: was empty; pass the restored dict to load_state_dict()"
    assert found.report == [f"added: {text}"] and text in caplog.text
    restarted.load_state_dict(state["optimizer"])
    step(other, restarted)
    assert torch.equal(other.weight, model.weight)


def test_metadata_holds_such_values(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(str(tmp_path)) as manager:
        manager.save(
            1, {"w": torch.ones(1)}, metadata={"at": datetime.date(2026, 1, 1), "c": Config(1.0, pathlib.Path())}
        ).wait()
        found = manager.restore()
    assert found and found.metadata["at"] == datetime.date(2026, 1, 1) and found.metadata["c"]["lr"] == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (print, "'a/v': a builtins.builtin_function_or_method cannot be held in a state .it is code; save its name"),
        (
            object(),
            "'a/v': a builtins.object cannot be held in a state .save its values in a dict, or give it state_dict",
        ),
    ],
)
def test_what_cannot_be_saved_is_named_with_the_way_out(tmp_path: pathlib.Path, value: Any, text: str) -> None:
    with pawl.CheckpointManager(str(tmp_path)) as manager, pytest.raises(pawl.UnsupportedError, match=text):
        manager.save(1, {"a": {"v": value}})


def test_an_unknown_kind_is_its_plain_value() -> None:
    """A kind of a later pawl, or one whose value does not fit: the plain value."""
    assert _kinds.make("of-tomorrow", [1]) == [1] and _kinds.make("date", "not a date") == "not a date"
    assert _kinds.make("numpy.generator", {"bit_generator": "seed"}) == {"bit_generator": "seed"}
    assert [_kinds.make("zoneinfo", key) for key in ("Europe", "of-no/place")] == ["Europe", "of-no/place"]


RANK = """
import collections, datetime, sys, torch, pawl
rank = int(sys.argv[2])
generator = torch.Generator().manual_seed(rank)
Pair = collections.namedtuple("Pair", "a b")
with pawl.CheckpointManager(sys.argv[1], ranks=pawl.Ranks(rank=rank, world_size=2)) as manager:
    state = {"g": generator, "p": Pair(torch.ones(2), rank), "d": datetime.date(2026, 1, 1 + rank), "s": {1, 2}}
    manager.save(1, state).wait()
    live = {"g": torch.Generator(), "p": Pair(torch.zeros(2), 7), "d": datetime.date(1999, 1, 1), "s": set()}
    assert manager.restore(live)
    assert live["g"].initial_seed() == rank and live["d"] == state["d"] and live["s"] == {1, 2}, live
    assert type(live["p"]) is Pair and live["p"].b == rank and live["p"].a.sum() == 2, live
"""


def test_each_rank_gets_its_own_values(tmp_path: pathlib.Path) -> None:
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path / "run"), str(rank)]) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    found = pawl.load(f"{tmp_path}/run/latest", paths=["p/a", "d", "s*"])
    assert found["d"] == datetime.date(2026, 1, 1) and found["p"]["a"].sum() == 2 and found["s"] == {1, 2}


@pytest.mark.parametrize(
    ("saved", "empty"),
    [
        (collections.deque([torch.ones(2)], maxlen=7), collections.deque(maxlen=7)),
        (collections.defaultdict(list, {"a": torch.ones(2)}), collections.defaultdict(list)),
        (argparse.Namespace(a=torch.ones(2)), argparse.Namespace()),
        (types.SimpleNamespace(a=torch.ones(2)), types.SimpleNamespace()),
    ],
)
def test_an_empty_container_of_a_kind_takes_what_was_saved(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, saved: Any, empty: Any
) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"v": saved, "w": torch.zeros(1)}, wait=True)
        live = {"v": empty, "w": torch.ones(1)}
        manager.restore(live)
    held = vars(empty) if hasattr(empty, "__dict__") else empty
    found = list(held.values()) if isinstance(held, dict) else list(held)
    assert live["v"] is empty and len(found) == 1 and torch.equal(found[0], torch.ones(2))
    assert caplog.records == []
