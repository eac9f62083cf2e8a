# SPDX-License-Identifier: Apache-2.0
"""Hooks are called on the caller's thread, and the logger "pawl" has a line for what happens to a checkpoint."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import HANG_SECONDS

import pawl

STATE = {"w": np.arange(1000.0)}


class Seen:
    """Hooks that note what they are called with."""

    def __init__(self) -> None:
        self.events: list[pawl.Event] = []
        self.threads: set[int] = set()

    def __call__(self, event: pawl.Event) -> None:
        self.events.append(event)
        self.threads.add(threading.get_ident())

    def steps(self, kind: str) -> list[int | None]:
        return [event.step for event in self.events if event.kind == kind]


def hooks(seen: Seen) -> dict[str, Any]:
    return dict.fromkeys(("on_durable", "on_uploaded", "on_deleted", "on_error"), seen)


def test_hooks_are_called_by_the_next_call_on_its_thread(tmp_path: Path) -> None:
    seen = Seen()
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1, **hooks(seen)) as manager:
        manager.save(1, STATE, wait=True)
        assert seen.steps("saved") == [1]
        ticket = manager.save(2, STATE)
        assert ticket is not None
        ticket.wait()
        assert seen.steps("saved") == [1]  # no call of the manager since
        manager.poll()
        assert seen.steps("saved") == [1, 2] and seen.steps("deleted") == [1]
        manager.save(3, STATE)
    assert seen.steps("saved") == [1, 2, 3] and seen.steps("deleted") == [1, 2]  # close waits, and calls them
    assert seen.threads == {threading.get_ident()}
    deleted = next(event for event in seen.events if event.kind == "deleted")
    assert deleted.reason == "not among the newest 1" and deleted.name == "checkpoint_000001"
    assert abs(deleted.time - datetime.now(UTC)) < timedelta(days=1)
    assert next(event for event in seen.events if event.kind == "saved").nbytes >= 8000


def test_uploads_have_a_hook(tmp_path: Path) -> None:
    seen = Seen()
    with pawl.CheckpointManager(tmp_path / "run", mirrors=tmp_path / "far", on_uploaded=seen) as manager:
        manager.save(7, STATE, wait=True)
        manager.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert [(event.step, event.mirror) for event in seen.events] == [(7, str(tmp_path / "far"))]
        manager.save(8, STATE)
    assert seen.steps("uploaded") == [7, 8]


def test_a_failed_save_has_a_hook_and_is_raised_as_before(tmp_path: Path) -> None:
    seen = Seen()
    manager = pawl.CheckpointManager(tmp_path, io=pawl.IO(fault=("publish", 1, -8, False)), on_error=seen)
    manager.save(1, STATE)
    with pytest.raises(pawl.StorageError):
        manager.close()
    assert seen.steps("failed") == [1] and seen.events[0].error


def test_an_error_of_a_hook_is_the_callers_and_the_run_is_closed(tmp_path: Path) -> None:
    def fails(event: pawl.Event) -> None:
        raise RuntimeError(f"no room for step {event.step}")

    manager = pawl.CheckpointManager(tmp_path, on_durable=fails)
    manager.save(1, STATE)
    with pytest.raises(RuntimeError, match="no room for step 1"):
        manager.close()
    with pawl.CheckpointManager(tmp_path) as again:
        assert again.all_steps() == [1]


def test_closing_raises_the_error_of_a_save_before_that_of_a_hook(tmp_path: Path) -> None:
    def fails(event: pawl.Event) -> None:
        raise RuntimeError(f"no room for step {event.step}")

    fault = pawl.IO(fault=("publish", 1, -8, False))
    manager = pawl.CheckpointManager(tmp_path, io=fault, on_error=fails)
    manager.save(1, STATE)
    with pytest.raises(pawl.StorageError) as raised:
        manager.close()
    assert any("a hook has failed: RuntimeError: no room for step 1" in note for note in raised.value.__notes__)
    pawl.CheckpointManager(tmp_path).close()  # the lease is free


@pytest.mark.parametrize("part", ["manager", "run"])
def test_closing_tells_of_a_failed_save_and_of_a_failed_upload(tmp_path: Path, part: str) -> None:
    far = tmp_path / "far"
    fault = pawl.IO(fault=("publish", 2, -8, False))
    manager = pawl.CheckpointManager(tmp_path / "run", io=fault, mirrors=far)
    shutil.rmtree(far, ignore_errors=True)
    far.write_text("not a folder")
    manager.save(1, STATE).wait()
    manager.save(2, STATE)
    with pytest.raises(pawl.StorageError, match="publish") as raised:
        (manager if part == "manager" else manager._run).close()
    assert any("far/run.json" in note for note in raised.value.__notes__)
    manager.close()


def test_the_log_has_a_line_for_each_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pawl"):
        with pawl.CheckpointManager(tmp_path, num_to_keep=1) as manager:
            for step in (1, 2):
                manager.save(step, STATE, wait=True)
            manager.restore()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for expected in (
        r"saved step 1 in [\d.]+ m?s, [\d.]+ KiB, blocked [\d.]+ m?s",
        r"deleted step 1 \(not among the newest 1\)",
        r"saved step 2 in ",
        r"resumed from step 2 \(checkpoint_000002\)",
    ):
        assert any(re.match(re.escape(f"{tmp_path}: ") + expected, line) for line in lines), (expected, lines)


def test_without_a_level_nothing_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, STATE, wait=True)
        manager.restore()
    assert caplog.records == []


def test_a_rule_of_ones_own_keeps_what_it_names(tmp_path: Path) -> None:
    def odd(candidates: list[pawl.Candidate]) -> list[int]:
        assert all(c.time.tzinfo is UTC and c.metrics == {"loss": c.step} for c in candidates)
        return [c.id for c in candidates if c.step % 2]

    with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=odd)) as manager:
        for step in range(1, 7):
            manager.save(step, STATE, metrics={"loss": step}, wait=True)
        assert manager.all_steps() == [1, 3, 5, 6]
        reasons = {row.id: row.reason for row in manager.prune(dry_run=True)}
        assert reasons[1] == "kept by the caller's rule" and reasons[6] == "latest"


def test_a_rule_that_raises_deletes_nothing(tmp_path: Path) -> None:
    def broken(candidates: list[pawl.Candidate]) -> list[int]:
        raise RuntimeError("no idea")

    with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=broken)) as manager:
        for step in (1, 2, 3):
            manager.save(step, STATE, wait=True)
        with pytest.raises(pawl.UsageError, match=r"the rule of retention has raised RuntimeError: no idea"):
            manager.prune()
        assert manager.all_steps() == [1, 2, 3]


def test_a_reader_of_a_run_with_mirrors_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mirrors = tmp_path / "far"
    with pawl.CheckpointManager(tmp_path / "run", mirrors=mirrors) as manager:
        manager.save(1, STATE)
    with caplog.at_level(logging.INFO, "pawl"):
        with pawl.CheckpointManager(tmp_path / "run", mirrors=mirrors, read_only=True) as reader:
            assert reader.restore()


def test_a_rule_that_raises_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(candidates: list[pawl.Candidate]) -> list[int]:
        raise RuntimeError("no idea")

    with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=broken)) as manager:
        for step in (1, 2, 3):
            manager.save(step, STATE, wait=True)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"{tmp_path}: the rule of retention has raised RuntimeError: no idea")
    ]


def test_a_warning_of_the_last_save_is_logged_when_the_run_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()

    def broken(candidates: list[pawl.Candidate]) -> list[int]:
        asked.wait(HANG_SECONDS)
        raise RuntimeError("no idea")

    manager = pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=broken))
    manager.save(1, STATE)
    assert caplog.records == []
    asked.set()
    manager.close()
    assert "the rule of retention has raised RuntimeError: no idea" in caplog.text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda candidates: candidates, "expected ids of candidates, received Candidate"),
        (lambda candidates: None, "expected a list of ids of candidates, received None"),
        (lambda candidates: [candidates[0].id, 99], "expected ids of candidates, received 99"),
        (lambda candidates: ["1"], "expected ids of candidates, received '1'"),
    ],
)
def test_a_rule_that_returns_no_ids_is_answered(tmp_path: Path, rule: Any, says: str) -> None:
    with pawl.CheckpointManager(tmp_path, retention=pawl.Retention(keep=rule)) as manager:
        manager.save(1, STATE, wait=True)
        manager.save(2, STATE, wait=True)
        with pytest.raises(pawl.UsageError, match=f"has raised UsageError: retention.keep: {says}"):
            manager.prune()
        assert manager.all_steps() == [1, 2]


@pytest.mark.parametrize("name", ["on_durable", "on_uploaded", "on_deleted", "on_error"])
def test_a_hook_that_is_not_a_function_is_refused_when_the_run_is_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(pawl.UsageError, match=f"{name} must be a function of a pawl.Event, received 3"):
        pawl.CheckpointManager(tmp_path / "run", **{name: 3})
    assert not (tmp_path / "run").exists()
