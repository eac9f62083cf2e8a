# SPDX-License-Identifier: Apache-2.0
"""What a test needs beyond this package. It is marked with it (pyproject.toml lists the marks), and `make test` leaves it
out. Helpers that start such things ask for the mark, so that a test which lacks it fails in `make test`. Programs that
are not tests, such as the benchmarks, may start everything."""

from __future__ import annotations

_marks: set[str] = set()
_in_tests = False


def begin(marks: set[str]) -> None:
    """A test begins that has these."""
    global _in_tests
    _in_tests = True
    _marks.clear()
    _marks.update(marks)


def need(mark: str) -> None:
    assert not _in_tests or mark in _marks, f"this test needs pytest.mark.{mark}: make test has no such thing"
