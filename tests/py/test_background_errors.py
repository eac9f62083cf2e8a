# SPDX-License-Identifier: Apache-2.0
"""An error of a background save is reported: by the next call, or at the end by the log."""

from __future__ import annotations

import gc
import logging
import pathlib
from typing import Any

import pytest
import torch
from common import interpreter
from waiting import HANG_SECONDS

import pawl

LOST = ("publish", 1, -3, True)


def failing(root: pathlib.Path, **options: Any) -> pawl.CheckpointManager:
    """A manager whose save has failed, and no call has raised the error."""
    manager = pawl.CheckpointManager(root, io=pawl.IO(fault=LOST), **options)
    ticket = manager.save(1, {"w": torch.ones(3)}, force=True)
    assert ticket is not None
    while not ticket.done():
        pass
    return manager


def ends(root: pathlib.Path, rest: str) -> tuple[int | None, str]:
    """The exit status and the complaints of a program that saves, which fails, and continues with the rest."""
    program = f"""
import pawl
manager = pawl.CheckpointManager({str(root)!r}, io=pawl.IO(fault={LOST!r}))
manager.save(1, {{"w": [1.0]}})
{rest}
"""
    process = interpreter(program)
    _, err = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, err


def test_a_script_that_just_ends_says_what_was_lost(tmp_path: pathlib.Path) -> None:
    """No save fails in silence."""
    _, err = ends(tmp_path / "run", "")
    assert str(tmp_path / "run") in err
    assert "failed in the background, and no call raised the error" in err


def test_a_script_that_ends_by_an_exception_says_both(tmp_path: pathlib.Path) -> None:
    status, err = ends(tmp_path / "run", "raise RuntimeError('the training broke')")
    assert status == 1
    assert "the training broke" in err
    assert "no call raised the error" in err


def test_what_was_seen_is_not_said_again(tmp_path: pathlib.Path) -> None:
    seen = "\ntry: manager.wait_until_finished()\nexcept pawl.PawlError: pass"
    assert ends(tmp_path / "run", seen) == (0, "")


def test_a_manager_left_open_at_the_end_waits_for_its_save(tmp_path: pathlib.Path) -> None:
    program = f"""
import pawl
manager = pawl.CheckpointManager({str(tmp_path)!r}, io=pawl.IO(write_bytes_per_second=1 << 20))
manager.save(1, {{"w": b"x" * (1 << 18)}})
"""
    process = interpreter(program)
    assert process.communicate(timeout=HANG_SECONDS)[1] == ""
    assert process.returncode == 0
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == [1]


def test_a_manager_that_is_dropped_says_what_was_lost(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = failing(tmp_path)
    with caplog.at_level(logging.ERROR, "pawl"):
        del manager
        gc.collect()
    assert [record.name for record in caplog.records] == ["pawl"]
    assert str(tmp_path) in caplog.text


def test_a_manager_that_is_closed_says_nothing_more(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = failing(tmp_path)
    with pytest.raises(pawl.NotFoundError):
        manager.close()
    del manager
    gc.collect()
    assert caplog.records == []


def test_should_save_raises_what_is_pending_once(tmp_path: pathlib.Path) -> None:
    manager = failing(tmp_path, save_interval="100ba")
    with pytest.raises(pawl.NotFoundError):
        manager.should_save(2)
    assert manager.should_save(2) is False
    manager.close()


def test_a_save_that_is_not_due_raises_what_is_pending(tmp_path: pathlib.Path) -> None:
    manager = failing(tmp_path, save_interval="100ba")
    with pytest.raises(pawl.NotFoundError):
        manager.save(2, {"w": torch.ones(3)})
    assert manager.save(2, {"w": torch.ones(3)}) is None
    manager.close()


def test_before_step_raises_what_is_pending_once(tmp_path: pathlib.Path) -> None:
    manager = failing(tmp_path)
    with pytest.raises(pawl.NotFoundError):
        manager.before_step()
    manager.before_step()
    manager.close()


def damaged(root: pathlib.Path) -> None:
    with pawl.CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, {"w": torch.full((3,), float(step))}, wait=True)
        latest = pathlib.Path(manager.checkpoint().path or "")
    (latest / "manifest.json").write_text("{}")


def test_a_fallback_is_in_the_log(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """R137: an older checkpoint is never taken in silence."""
    damaged(tmp_path)
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        restored = manager.restore()
        assert restored is not None
        assert restored.step == 1
    assert [(record.name, record.levelname) for record in caplog.records] == [("pawl", "WARNING")]
    assert "checkpoint_000002" in caplog.text
    assert "checkpoint_000001" in caplog.text
    assert restored.fallbacks[0] in caplog.text


RESTORE = """
import pawl
with pawl.CheckpointManager({root!r}) as manager:
    manager.restore()
"""
FAIL = """
import pawl
manager = pawl.CheckpointManager({root!r}, io=pawl.IO(fault=("finish", 1, -3, True)), on_error=lambda event: None)
try:
    manager.save(1, {{"w": b"x"}}, wait=True)
except pawl.PawlError:
    pass
try:
    manager.poll()
except pawl.PawlError:
    pass
try:
    manager.close()
except pawl.PawlError:
    pass
"""


@pytest.mark.parametrize(
    ("setting", "program", "shown"),
    [
        ("", RESTORE, "restored checkpoint_000001, since a newer checkpoint was skipped"),
        ('logging.basicConfig(format="LOG %(message)s")', RESTORE, "LOG "),
        ('logging.getLogger("pawl").setLevel("CRITICAL")', RESTORE, None),
        ('logging.getLogger("pawl").addHandler(logging.NullHandler())', RESTORE, None),
        ("", FAIL, None),
        ('logging.basicConfig(level="INFO", format="LOG %(message)s")', FAIL, "LOG "),
    ],
)
def test_a_program_without_logging_sees_only_what_no_call_raises(
    tmp_path: pathlib.Path, setting: str, program: str, shown: str | None
) -> None:
    damaged(tmp_path)
    process = interpreter(f"import logging\n{setting}\n{program.format(root=str(tmp_path))}")
    text = process.communicate(timeout=HANG_SECONDS)[1]
    assert process.returncode == 0, text
    assert (len(text.splitlines()) == 1 and shown in text) if shown else text == "", text


def test_a_restore_of_the_latest_logs_nothing(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"w": torch.ones(3)}, wait=True)
        manager.restore()
    assert caplog.records == []
