# SPDX-License-Identifier: Apache-2.0
"""Keywords of CheckpointManager and options of the library belong together."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import pawl
from pawl import _options

ROOT = Path(__file__).resolve().parents[2]


# What a manager has no keyword for: it opens runs of its own, and counts what it is given.
WITHOUT_KEYWORD = {"root", "single", "maintenance", "retention.n_scores", "mirrors.n_urls"}


def test_each_option_of_the_library_has_a_keyword() -> None:
    keywords = inspect.signature(pawl.CheckpointManager).parameters
    _, _, options = _options.read({**{name: row.default for name, row in keywords.items()}, "root": "mem:"})
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.]+)` \| (?!C only)", page, re.MULTILINE))
    assert set(_options._TABLE) < set(keywords)
    assert listed - set(options) == WITHOUT_KEYWORD


def test_an_option_is_refused_by_its_keyword_or_by_the_library(tmp_path: Path) -> None:
    with pytest.raises(pawl.UsageError, match=r"^recycle must be a whole number of 0 or more, received -1"):
        pawl.CheckpointManager(tmp_path / "run", recycle=-1)
    with pytest.raises(pawl.UsageError, match=r"packs\.recycle: expected 0 to 1000, found 1001"):
        pawl.CheckpointManager(tmp_path / "run", recycle=1001)
    with pawl.CheckpointManager(tmp_path / "run", recycle=1000) as manager:
        assert manager.latest_step() is None
