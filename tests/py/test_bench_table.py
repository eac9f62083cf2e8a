# SPDX-License-Identifier: Apache-2.0
"""What make bench writes of its results: charts of what was measured, and of each table the machine and the date."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OLD, NEW = "date 2026-01-02, processor A", "date 2026-03-04, processor B"


def results(**samples: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    facts = {"saves bytes": 2.54e9, "restores bytes": 2.54e9}
    return {
        "samples": {name.replace("_", " "): group for name, group in samples.items()},
        "runs": {"W1 save": OLD, "frozen": NEW},
        "run": NEW,
        "versions": {"torch": "2"},
        "missing": {},
        "facts": facts,
        "scale": 1,
        "rounds": 3,
    }


@pytest.fixture(name="page")
def written_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    table = importlib.import_module("table")
    series = {
        "torch.save": {"blocked": [4.0, 5.0, 6.0], "durable": [7.0, 8.0, 9.0]},
        "pawl": {"blocked": [0.2, 0.25, 0.3], "durable": [1.0, 1.0, 1.0]},
    }
    page = tmp_path / "benchmarks.md"
    table.write_page(results(W1_save=series, frozen={"adapters in a state of 10 MB": {"times": [1.0, 1.0]}}), page)
    return page


def test_a_chart_has_a_bar_for_each_median_and_none_for_what_was_not_measured(page: pathlib.Path) -> None:
    chart = (page.parent / "blocked.svg").read_text()
    assert ">5,000</text>" in chart and ">250</text>" in chart and "one save of 2.5 GB" in chart
    assert "Orbax" not in chart
    assert ">8,000</text>" in (page.parent / "durable.svg").read_text()
    assert not (page.parent / "restore.svg").exists()  # that part was not run


def test_a_table_of_an_earlier_run_has_its_own_date_and_machine(page: pathlib.Path) -> None:
    text = page.read_text()
    assert f"Measured on: {NEW}. Versions: torch 2. W1 is" in text
    assert f"**W1 save**\n\nMeasured on: {OLD}.\n\n| |" in text
    assert "**frozen**\n\n| |" in text


def test_what_was_not_measured_is_named_with_the_reason_until_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    table = importlib.import_module("table")
    found = results() | {"missing": {"train": {"Ray Train": "not installed"}, "saves": {}}}
    assert table.markdown(found).endswith("\nNot measured: Ray Train (not installed).")
    found["missing"]["train"] = {}
    assert "Ray Train (" not in table.markdown(found)
