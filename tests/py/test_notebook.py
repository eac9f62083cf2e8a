# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of pawl's objects."""

from __future__ import annotations

import pathlib
import re
import sys
import types
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import numpy as np
import pytest

import pawl


def cells(html: str) -> list[list[str]]:
    """The rows of the table; the text is well-formed."""
    [table] = ElementTree.fromstring(f"<x>{html}</x>").iter("table")
    return [["".join(cell.itertext()) for cell in row] for row in table]


@pytest.fixture(name="run")
def saved_run(tmp_path: pathlib.Path) -> pathlib.Path:
    with pawl.CheckpointManager(tmp_path / "<run>", score_attribute="acc") as manager:
        for step in range(60):
            manager.save(step, {"w": np.full(3, step)}, metrics={"acc": step / 100}).wait()
    return tmp_path / "<run>"


def test_lists_managers_differences_and_restored_states_are_tables(run: pathlib.Path) -> None:
    with pawl.CheckpointManager(run, read_only=True, score_attribute="acc") as manager:
        rows = manager.checkpoints()
        head, *body = cells(rows._repr_html_())
        assert head[:3] == ["id", "step", "metrics"] and len(body) == 50 and body[-1][1:3] == ["59", "acc 0.59"]
        assert "10 more before these" in rows._repr_html_() and body[-1][head.index("best")] == "yes"
        assert cells(manager._repr_html_()) == [head, *body] and "&lt;run&gt;" in manager._repr_html_()
        restored = manager.restore()
        assert restored is not None and ["step", "59"] in cells(restored._repr_html_())
    assert "closed" in manager._repr_html_()
    changed = pawl.diff(f"{run}@1", f"{run}@2")
    assert cells(changed._repr_html_())[1][:2] == ["w", "changed"]
    assert pawl.verify(f"{run}@1")._repr_html_() == "<i>none</i>"


def test_tables_show_sizes_times_and_the_step_0_for_people(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {"w": np.zeros(1 << 18)}, metrics={"loss": 1 / 3}, wait=True)
        head, row = cells(manager.checkpoints()._repr_html_())
        assert re.fullmatch(r"2\.00 MiB", row[head.index("nbytes")]), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", row[head.index("time")]), row
        restored = manager.restore()
        assert restored is not None
    found = cells(restored._repr_html_())
    assert ["step", "0"] in found and ["metrics", "loss 0.333333"] in found


CELL = """
manager = pawl.CheckpointManager(root)
manager.save(0 if manager.latest_step() is None else manager.latest_step() + 1, {"a": 1})
"""


def test_a_cell_that_runs_twice_says_what_to_do_and_then_works(tmp_path: pathlib.Path) -> None:
    names = {"pawl": pawl, "root": tmp_path}
    exec(CELL, names)
    with pytest.raises(
        pawl.BusyError, match=r"this process has the run open already; close it first \(manager.close\(\)"
    ):
        exec(CELL, names)
    names["manager"].close()  # type: ignore[attr-defined]
    exec(CELL, names)
    names["manager"].close()  # type: ignore[attr-defined]
    with pawl.CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == [0, 1]


def test_a_list_becomes_a_dataframe(run: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[tuple[list[list[object]], list[str]]] = []
    pandas = types.SimpleNamespace(DataFrame=lambda rows, columns: frames.append((rows, columns)))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    with pawl.CheckpointManager(run, read_only=True) as manager:
        manager.checkpoints().to_pandas()
    [(rows, columns)] = frames
    assert len(rows) == 60 and rows[7][columns.index("step")] == 7 and "world_size" in columns


def test_the_time_of_a_checkpoint_is_a_datetime(run: pathlib.Path) -> None:
    with pawl.CheckpointManager(run, read_only=True) as manager:
        time = manager.checkpoints()[-1].time
    assert time.tzinfo is UTC and abs(datetime.now(UTC) - time) < timedelta(days=1)
