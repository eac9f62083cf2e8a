# SPDX-License-Identifier: Apache-2.0
"""What a test needs beyond this package. It is marked with it (pyproject.toml lists the marks), and `make test` leaves it
out. Helpers that start such things ask for the mark, so that a test which lacks it fails in `make test`. Programs that
are not tests, such as the benchmarks, may start everything."""

from __future__ import annotations

_marks: set[str] | None = None  # None: no test has begun


def begin(marks: set[str]) -> None:
    """A test begins that has these."""
    global _marks
    _marks = marks


def need(mark: str) -> None:
    assert _marks is None or mark in _marks, f"this test needs pytest.mark.{mark}: make test has no such thing"
