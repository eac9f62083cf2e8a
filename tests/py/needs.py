# SPDX-License-Identifier: Apache-2.0
"""What a test needs beyond this package. It is marked with it (pyproject.toml lists the marks), and `make test` leaves it
out. Helpers that start such things ask for the mark, so that a test which lacks it fails in `make test`."""

from __future__ import annotations

_marks: set[str] = set()


def begin(marks: set[str]) -> None:
    """A test begins that has these."""
    _marks.clear()
    _marks.update(marks)


def need(mark: str) -> None:
    assert mark in _marks, f"this test needs pytest.mark.{mark}: make test has no such thing"
