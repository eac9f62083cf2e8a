# SPDX-License-Identifier: Apache-2.0
"""Messages name the object, what was expected and what was found; what is printed of an object fits a line."""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from gated import gated

import pawl

W = {"w": torch.ones(3)}
DIGITS = 1000


@pytest.fixture
def manager() -> Iterator[pawl.CheckpointManager]:
    with pawl.CheckpointManager("mem:") as opened:
        yield opened


WRONG: list[tuple[str, Any, str, Any]] = [
    ("io", pawl.IO, "write_bytes_per_second", -1),
    ("io", pawl.IO, "write_bytes_per_second", "100 apples"),
    ("io", pawl.IO, "read_bytes_per_second", -1),
    ("io", pawl.IO, "threads", 2**32),
    ("staging", pawl.Staging, "arena_bytes", -1),
    ("staging", pawl.Staging, "ring_bytes", 2**64),
    ("staging", pawl.Staging, "copy_threads", -1),
    ("packs", pawl.Packs, "pack_bytes", 1.5),
    ("packs", pawl.Packs, "recycle", -1),
    ("retention", pawl.Retention, "max_bytes", -1),
    ("retention", pawl.Retention, "keep_last", True),
    ("retention", pawl.Retention, "keep_best", "3"),
    ("retention", pawl.Retention, "keep_every", -5),
    ("retention", pawl.Retention, "keep_every", 2.5),
    ("retention", pawl.Retention, "keep_seconds", float("nan")),
    ("retention", pawl.Retention, "keep_daily", "a month"),
    ("retention", pawl.Retention, "keep", 3),
    ("timeouts", pawl.Timeouts, "mtbf", -1),
    ("timeouts", pawl.Timeouts, "lease", -1),
    ("timeouts", pawl.Timeouts, "lease_wait", -1),
    ("timeouts", pawl.Timeouts, "commit", timedelta(seconds=-1)),
    ("timeouts", pawl.Timeouts, "grace", "soon"),
]


@pytest.mark.parametrize(("group", "kind", "option", "value"), WRONG, ids=lambda x: str(x))
def test_a_wrong_option_of_a_group_is_named_with_what_was_found(group: str, kind: Any, option: str, value: Any) -> None:
    given = {"score_attribute": "loss", group: kind(**{option: value})}
    with pytest.raises(pawl.UsageError, match=rf"{group}\.{option}\b") as caught:
        pawl.CheckpointManager("mem:", **given)
    assert isinstance(caught.value, ValueError)
    found = value.total_seconds() if isinstance(value, timedelta) else value
    assert repr(found) in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("score_attribute", 3),
        ("score_attribute", ["loss", 3]),
        ("score_order", 3),
        ("num_to_keep", -1),
        ("save_interval", 1.5),
        ("retention", {"keep_last": 3}),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_with_what_was_found(option: str, value: Any) -> None:
    with pytest.raises(pawl.UsageError, match=option) as caught:
        pawl.CheckpointManager("mem:", **({"score_attribute": "loss"} | {option: value}))
    assert repr(value) in str(caught.value)


LARGE = {str(i): list(range(1000)) for i in range(100)}


@pytest.mark.parametrize(
    "given",
    [
        {"retention": LARGE},
        {"retention": {"state": LARGE}},
        {"num_to_keep": LARGE},
        {"save_interval": [0] * 5000},
        {"mirrors": LARGE},
        {"score_attribute": LARGE},
        {"logger": LARGE},
        {"on_error": LARGE},
        {"packs": pawl.Packs(recycle=LARGE)},  # type: ignore[arg-type]
        {"io": pawl.IO(threads="x" * 5000)},  # type: ignore[arg-type]
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_large_value_is_shown_in_short(given: dict[str, Any]) -> None:
    with pytest.raises((pawl.UsageError, TypeError)) as caught:
        pawl.CheckpointManager("mem:", **given)
    assert 20 < len(str(caught.value)) < 300


def test_a_large_argument_is_shown_in_short(manager: pawl.CheckpointManager) -> None:
    text: Any = "x" * 5000
    many: Any = [1] * 5000
    calls: list[Callable[[], object]] = [
        lambda: manager.save(1, W, metrics=many),
        lambda: manager.save(1, W, metrics={tuple(many): 1}),  # type: ignore[dict-item]
        lambda: manager.save(1, W, progress=many),
        lambda: manager.save(1, W, progress={"epoch": many}),
        lambda: manager.restore(text),
        lambda: manager.restore(which=text),
        lambda: manager.restore(paths=LARGE),  # type: ignore[arg-type]
        lambda: manager.wait_until_finished(many),
        lambda: pawl.optimal_interval(many, 1),
    ]
    for call in calls:
        with pytest.raises(pawl.UsageError, match="received|found") as caught:
            call()
        assert len(str(caught.value)) < 300


def test_numbers_of_other_types_are_numbers() -> None:
    with pawl.CheckpointManager(
        "mem:", retention=pawl.Retention(keep_last=np.int64(2), keep_seconds=np.float32(0.5))
    ) as manager:
        manager.save(np.int32(7), W, progress={"epoch": np.int64(1), "fraction": np.float32(0.5)}, wait=True)
        assert manager.all_steps() == [7]


@pytest.mark.parametrize("step", ["x", 2**70, 1.5, None])
def test_a_wrong_step_is_named(manager: pawl.CheckpointManager, step: Any) -> None:
    calls: list[Callable[[], object]] = [lambda: manager.save(step, W), lambda: manager.should_save(step)]
    if step is not None:
        calls.append(lambda: manager.restore(step=step))
    for call in calls:
        with pytest.raises(pawl.UsageError, match="step") as caught:
            call()
        assert repr(step) in str(caught.value)


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        ({"epoch": "x"}, "progress: epoch .* 'x'"),
        ({"epoch": -1}, "progress: epoch .* -1"),
        ({"epoch": 1.5}, "progress: epoch .* 1.5"),
        ({"epoch": 2**63}, "progress: epoch "),
        ({"fraction": -0.5}, "progress: fraction .* -0.5"),
        ({"total_wct": float("nan")}, "progress: total_wct .* nan"),
        ({"eposh": 1}, "progress: unknown counter 'eposh'"),
        ([1], r"progress must be a dict .* \[1\]"),
    ],
)
def test_wrong_progress_is_named(manager: pawl.CheckpointManager, progress: Any, says: str) -> None:
    with pytest.raises(pawl.UsageError, match=says):
        manager.save(1, W, progress=progress)
    assert manager.all_steps() == []


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ([1], r"metrics must be a dict .* \[1\]"),
        ({3: 1.0}, "metrics: expected a name, received 3"),
    ],
)
def test_wrong_metrics_are_named(manager: pawl.CheckpointManager, metrics: Any, says: str) -> None:
    with pytest.raises(pawl.UsageError, match=says):
        manager.save(1, W, metrics=metrics)


def test_an_interval_that_needs_progress_says_that_none_was_given() -> None:
    with pawl.CheckpointManager("mem:", save_interval="1ep") as manager:
        with pytest.raises(pawl.UsageError, match="no progress was given; it needs epoch"):
            manager.save(1, W)
        with pytest.raises(pawl.UsageError, match="the progress given has no epoch"):
            manager.save(1, W, progress={"batch": 3})


def test_a_timeout_says_what_was_waited_for(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path / "run")
    with pytest.raises(pawl.TimeoutError, match=f"checkpoint after id 4 .* 0.05 seconds: .*{root}"):
        pawl.wait_for_new(root, after=4, timeout=0.05)
    root = "gated://there/run"
    manager, gate = gated()
    with manager:
        ticket = manager.save(5, {"w": torch.ones(1 << 20)})
        assert ticket is not None
        with pytest.raises(pawl.TimeoutError, match=r"the save of step 5 was not settled within 0.012 seconds"):
            ticket.wait(0.01234567)
        with pytest.raises(pawl.TimeoutError, match=f"the saves of {root} were not settled within 0 seconds"):
            manager.wait_until_finished(0)
        with pytest.raises(
            pawl.TimeoutError, match=rf"no checkpoint after id 4 came in {root} within [0-9.e-]{{1,8}} s"
        ):
            pawl.wait_for_new(root, after=4, timeout=0.01)
        for wrong in ("x", float("nan")):
            with pytest.raises(pawl.UsageError, match=f"timeout .* {wrong!r}"):
                ticket.wait(wrong)  # type: ignore[arg-type]
        gate.set()


def test_an_error_about_a_file_of_a_run_has_its_complete_path(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, W, wait=True)
    file = tmp_path / "run.json"
    file.write_text('{"pawl_run": 99}')
    with pytest.raises(pawl.VersionError, match=re.escape(f"{file}: written in format version 99")):
        pawl.CheckpointManager(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(pawl.ExistsError, match=re.escape(f"{file}: is a folder")):
        pawl.CheckpointManager(tmp_path)


def test_no_paths_at_all_are_refused(tmp_path: pathlib.Path) -> None:
    pawl.save(W, tmp_path / "one")
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(1, W, wait=True)
        with pytest.raises(
            pawl.UsageError, match="paths is empty, which would restore nothing; None restores everything"
        ):
            manager.restore(paths=[])
    with pytest.raises(pawl.UsageError, match="paths is empty"):
        pawl.load(tmp_path / "one", paths=())
    with pytest.raises(pawl.UsageError, match="paths must be"):
        pawl.load(tmp_path / "one", paths=[3])  # type: ignore[list-item]


def test_a_difference_at_the_root_is_about_the_state_itself(manager: pawl.CheckpointManager) -> None:
    manager.save(1, {"a": 1, "t": torch.ones(1)}, wait=True)
    with pytest.raises(pawl.MismatchError, match="type: the state itself: saved a dict, live a tuple"):
        manager.restore((1, torch.ones(1)))


def test_the_folder_to_write_to_is_there_already(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "taken"
    pawl.save(W, target)
    with pytest.raises(pawl.ExistsError, match=re.escape(str(target))) as caught:
        pawl.Checkpoint.from_dict({"a": 1}).to_directory(target)
    assert "overwrite" not in str(caught.value)


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ({"a": {"b": [1, {2}]}}, "'a/b/1': a set"),
        ({"a": {(1, 2): 3}}, "'a': a key that is a tuple"),
        ({"t": torch.ones(1)}, "'t': a Tensor"),
    ],
)
def test_notes_that_are_no_json_are_named(tmp_path: pathlib.Path, notes: Any, says: str) -> None:
    pawl.save(W, tmp_path / "one")
    for checkpoint in (pawl.Checkpoint(tmp_path / "one"), pawl.Checkpoint.from_dict({"a": 1})):
        with pytest.raises(pawl.UnsupportedError, match=says) as caught:
            checkpoint.set_metadata(notes)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("in_key", [False, True])
def test_an_integer_that_python_does_not_convert_is_named(tmp_path: pathlib.Path, in_key: bool) -> None:
    before = sys.get_int_max_str_digits()
    number = 10 ** (DIGITS - 1)
    pawl.save({"a": [0, {number: 1} if in_key else number]}, tmp_path / "one", metadata={"n": number})
    try:
        sys.set_int_max_str_digits(640)
        for state in (None, {"a": [0, {1: 1} if in_key else 1]}):
            with pytest.raises(pawl.LimitError, match=rf"'a/1': .* {DIGITS} digits.*sys.set_int_max_str_digits"):
                pawl.load(tmp_path / "one", state=state)
        with pytest.raises(pawl.LimitError, match=f"'n': .* {DIGITS} digits"):
            pawl.Checkpoint(tmp_path / "one").get_metadata()
        sys.set_int_max_str_digits(DIGITS)
        loaded = pawl.load(tmp_path / "one")["a"][1]
        assert (next(iter(loaded)) if in_key else loaded) == number
    finally:
        sys.set_int_max_str_digits(before)


HELD = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def test_dtypes_are_held_or_refused_by_name_as_documented(manager: pawl.CheckpointManager) -> None:
    for name in dir(ml_dtypes):
        kind = getattr(ml_dtypes, name)
        if not isinstance(kind, type) or name in ("finfo", "iinfo"):
            continue
        if name in HELD:
            manager.save(1, {"a": np.zeros(4, kind)})
            continue
        with pytest.raises(pawl.UnsupportedError, match=f"'a': a numpy array of dtype {name} cannot be held"):
            manager.save(1, {"a": np.zeros(4, kind)})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            np.array(["2020"], "datetime64[D]"),
            "datetime64[D] cannot be held in a state; convert it with .astype('int64')",
        ),
        (np.array([1, "a"], object), "object cannot be held in a state; convert it with .tolist()"),
        (np.array(["a"]), "<U1 cannot be held in a state; convert it with .tolist()"),
        (np.zeros(2, [("a", "f4")]), "cannot be held in a state; save its fields in a dict"),
        (
            np.zeros(2, ">i4"),
            ">i4 cannot be held in a state; convert it with .astype() to a dtype in native byte order",
        ),
        (torch.ones(2, 2).to_sparse(), "its layout is not dense; convert it with .to_dense()"),
        (torch.zeros(2, dtype=torch.uint1), "torch.uint1 cannot be held in a state; convert it with .to(dtype)"),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_what_cannot_be_held_comes_with_what_to_do(manager: pawl.CheckpointManager, value: Any, says: str) -> None:
    with pytest.raises(pawl.UnsupportedError, match=re.escape(says)):
        manager.save(1, {"a": value})


def test_all_values_that_cannot_be_held_are_named(manager: pawl.CheckpointManager) -> None:
    state = {"a": {"w": torch.ones(1), "x": object()}, "l": [1, {2: print}], "s": torch.ones(2).to_sparse(), "n": 1}
    with pytest.raises(pawl.UnsupportedError) as caught:
        manager.save(1, state)
    assert str(caught.value) == (
        "'a/x': a builtins.object cannot be held in a state (save its values in a dict, or give it state_dict() "
        "and load_state_dict()); 2 more cannot be saved: l/1/2, s"
    )
    with pytest.raises(
        pawl.UnsupportedError, match=r"^'k0': .*; 14 more cannot be saved: k1, .*, k10, ... and 4 more$"
    ):
        manager.save(1, {f"k{i}": pawl.PerRank(object()) if i % 2 else object() for i in range(15)})
    with pytest.raises(pawl.UnsupportedError, match=r"'k0': .*; 1 more cannot be saved: k1"):
        manager.save(1, {}, metadata={"k0": object(), "k1": object()})
    manager.save(1, {"n": 1}, wait=True)
    assert manager.all_steps() == [1]


def test_a_key_that_python_does_not_convert_is_refused(manager: pawl.CheckpointManager) -> None:
    with pytest.raises(pawl.PawlError, match="'a/[?]': .*4300 digits"):
        manager.save(1, {"a": {10**5000: 1}})


def test_messages_can_be_printed_whatever_the_key(manager: pawl.CheckpointManager) -> None:
    with pytest.raises(pawl.UnsupportedError) as caught:
        manager.save(1, {"a\ud800": {1}})
    assert "a\\ud800" in str(caught.value).encode("utf-8").decode("utf-8")


def test_what_is_shown_of_a_ticket_and_of_a_restore_is_short(manager: pawl.CheckpointManager) -> None:
    ticket = manager.save(3, {"w": torch.ones(5000), "l": list(range(5000))}, wait=True)
    assert repr(ticket) == "Ticket(step=3, stage='settled')"
    restored = manager.restore()
    assert re.fullmatch(r"Restored\(step=3, id=1, path='.*', state=dict of 2\)", repr(restored))


NO_PATHS: list[Any] = [b"x", None, 3, "a\0b", "a\ud800"]


@pytest.mark.parametrize("place", NO_PATHS, ids=repr)
def test_what_is_no_path_is_named(place: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("root", lambda: pawl.CheckpointManager(place)),
        ("root", lambda: pawl.wait_for_new(place)),
        ("root", lambda: pawl.hold(place, 1).__enter__()),
        ("path", lambda: pawl.load(place)),
        ("path", lambda: pawl.save({}, place)),
        ("path", lambda: pawl.Checkpoint(place)),
    ]
    for name, call in calls:
        with pytest.raises(pawl.UsageError, match=f"{name} must be a path"):
            call()
    if place is not None:
        with pytest.raises(pawl.UsageError, match="path must be a path"):
            pawl.Checkpoint.from_dict({}).to_directory(place)


@pytest.mark.parametrize("number", [-1, 2**64, 2**64 + 1, 1.5, "1", None], ids=repr)
def test_ids_that_are_none_are_named(tmp_path: pathlib.Path, number: Any) -> None:
    """None of them may wrap to the number of another checkpoint."""
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, W, wait=True)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("after", lambda: pawl.wait_for_new(tmp_path, after=number, timeout=0)),
            ("id", lambda: pawl.hold(tmp_path, number).__enter__()),
        ]
        if number is not None:
            calls += [("id", lambda: manager.restore(id=number)), ("id", lambda: manager.pin(id=number))]
        for name, call in calls:
            with pytest.raises(pawl.UsageError, match=f"{name} must be") as caught:
                call()
            assert repr(number) in str(caught.value)


@pytest.mark.parametrize(
    "fault", [5, "finish", ("finish", 1), ("finish", 0, -3, True), ("finish", 1, 3, True), (1, 1, -3, 0)]
)
def test_a_wrong_fault_is_named(fault: Any) -> None:
    with pytest.raises(pawl.UsageError, match="fault must be"):
        pawl.CheckpointManager("mem:", io=pawl.IO(fault=fault))


def test_a_number_to_keep_that_is_too_large_is_named() -> None:
    with pytest.raises(pawl.UsageError, match=r"num_to_keep must be below 2\*\*63"):
        pawl.CheckpointManager("mem:", num_to_keep=2**63)


def test_metrics_that_are_not_kept_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with pawl.CheckpointManager("mem:") as manager:
        for step in range(3):
            manager.save(step, W, metrics={"loss": np.float32(0.5), "note": "text", "map": {}}, wait=True)
        manager.save(3, W, metrics={"note": "text", "late": None}, wait=True)
        assert manager.metrics(0) == {"loss": 0.5}
    assert [record.getMessage() for record in caplog.records if record.name == "pawl"] == [
        "mem:: metrics that are not numbers are not kept: note, map",
        "mem:: metrics that are not numbers are not kept: late",
    ]


@pytest.mark.parametrize("fraction", [-0.1, 1.01, 50, float("nan")])
def test_a_fraction_is_from_0_to_1(manager: pawl.CheckpointManager, fraction: float) -> None:
    with pytest.raises(pawl.UsageError, match="progress: fraction must be a number from 0 to 1"):
        manager.save(1, W, progress={"fraction": fraction})
    assert manager.save(1, W, progress={"fraction": 1}) is not None


def test_which_beside_a_step_or_an_id_is_refused(manager: pawl.CheckpointManager) -> None:
    manager.save(1, W, wait=True)
    with pytest.raises(pawl.UsageError, match='step and which="best" contradict each other'):
        manager.restore(step=1, which="best")
    with pytest.raises(pawl.UsageError, match='id and which="good" contradict each other'):
        manager.restore(id=1, which="good")


@pytest.mark.parametrize("place", [".", "..", "x/.."])
def test_a_checkpoint_needs_a_name_of_its_own(tmp_path: pathlib.Path, place: str) -> None:
    (tmp_path / "x").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "x")
        with pytest.raises(pawl.UsageError, match="expected a path that ends in the name of a checkpoint"):
            pawl.save({}, place, overwrite=True)


def test_messages_have_the_whole_path_and_the_right_article(manager: pawl.CheckpointManager) -> None:
    with pytest.raises(pawl.UnsupportedError, match="^/dev/null: is not a regular file"):
        pawl.load("/dev/null")
    with pytest.raises(pawl.UsageError, match="received an int"):
        pawl.Checkpoint.from_dict(3)  # type: ignore[arg-type]
    manager.save(1, {"w": torch.ones(1)}, wait=True)
    with pytest.raises(pawl.MismatchError, match="live an int"):
        manager.restore({"w": 3})
    with (
        pawl.CheckpointManager("mem:", score_attribute="a") as scored,
        pytest.raises(pawl.UsageError, match="a value that is not a number; a is 'x'"),
    ):
        scored.save(1, W, metrics={"a": "x"})


def test_a_long_list_of_differences_is_cut_in_the_middle(tmp_path: pathlib.Path) -> None:
    saved, live = ({"m": {f"{name}{i}": np.ones(2) for i in range(30)}} for name in ("old", "new"))
    pawl.save(saved, tmp_path / "one")
    with pytest.raises(pawl.MismatchError) as caught:
        pawl.load(tmp_path / "one", state=live)
    text = str(caught.value)
    assert "60 differences: unexpected: m/old0; " in text and "; ... 50 more ...; " in text
    assert text.count("missing: m/new") == 5 and text.count("unexpected: ") == 5
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, saved).wait()
        restored = manager.restore(live, strict=False)
    assert restored is not None and len(restored.report) == 60
