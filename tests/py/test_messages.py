# SPDX-License-Identifier: Apache-2.0
"""Messages name the object, what was expected and what was found; what is printed of an object fits a line."""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import pawl

W = {"w": torch.ones(3)}
DIGITS = 1000


@pytest.fixture
def manager() -> Iterator[pawl.CheckpointManager]:
    with pawl.CheckpointManager("mem:") as opened:
        yield opened


OPTIONS: list[tuple[str, Any]] = [
    ("bandwidth", -1),
    ("bandwidth", "100MB"),
    ("arena_bytes", -1),
    ("ring_bytes", 2**64),
    ("pack_bytes", 1.5),
    ("block_bytes", None),
    ("max_bytes", -1),
    ("keep_last", True),
    ("keep_best", "3"),
    ("keep_every", -5),
    ("keep_every", 2.5),
    ("keep_seconds", float("nan")),
    ("keep_seconds", "1h"),
    ("mtbf_seconds", -1),
    ("lease_timeout", -1),
    ("grace_seconds", "soon"),
    ("recycle", -1),
    ("copy_threads", -1),
    ("io_threads", 2**32),
    ("score_attribute", 3),
    ("score_attribute", ["loss", 3]),
    ("score_order", 3),
    ("num_to_keep", -1),
]


@pytest.mark.parametrize(("option", "value"), OPTIONS, ids=lambda x: str(x))
def test_a_wrong_option_is_named_with_what_was_found(option: str, value: Any) -> None:
    with pytest.raises(pawl.UsageError) as caught:
        pawl.CheckpointManager("mem:", **({"score_attribute": "loss"} | {option: value}))
    assert isinstance(caught.value, ValueError)
    assert option in str(caught.value)
    assert repr(value) in str(caught.value)


def test_numbers_of_other_types_are_numbers() -> None:
    with pawl.CheckpointManager("mem:", keep_last=np.int64(2), keep_seconds=np.float32(0.5)) as manager:
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
        ({"loss": 10**400}, "metrics: loss is too large for a float"),
        ({3: 1.0}, "metrics: expected a name, found 3"),
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
    with pawl.CheckpointManager(root, bandwidth=8 << 20, pack_bytes=1 << 20, block_bytes=1 << 16) as manager:
        ticket = manager.save(5, {"w": torch.ones(1 << 20)})
        assert ticket is not None
        with pytest.raises(pawl.TimeoutError, match=r"the save of step 5 was not settled within 0.0123 seconds"):
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
    with pytest.raises(pawl.MismatchError, match="type: the state itself: saved a container, live a tuple"):
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
