# SPDX-License-Identifier: Apache-2.0
"""tools/run-tests.py: which tests that failed get one more run, and what comes of it."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from types import ModuleType

import pytest

import cli

TESTS = """
import pathlib

import pytest


def test_that_was_late_once():
    seen = pathlib.Path(__file__).with_name("seen")
    late = not seen.exists()
    seen.touch()
    assert not late


@pytest.mark.parametrize("n", [1.5])
def test_that_never_passes(n):
    assert n == 2


def test_that_does_not_run():
    pytest.skip("nothing here")
"""


@pytest.fixture(name="runner", scope="module")
def loaded_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", cli.ROOT / "tools" / "run-tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_what_failed_beside_others_runs_once_more_alone(runner: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    names = ["test_x.test_that_was_late_once", "test_x.test_that_never_passes[1.5]", "test_x.test_that_does_not_run"]
    for passes in ([], names[:1]):
        outcome = runner.Outcome("pytest", passed=7)
        for name in names:
            outcome.fail(name, "the first time")
        runner.run_again(outcome, dict(os.environ), tmp_path)
        assert [name for name, _ in outcome.again] == passes
        assert [name for name, _ in outcome.failures] == [name for name in names if name not in passes]
        assert (outcome.passed, outcome.failed) == (7 + len(passes), 3 - len(passes))
        assert all(text.startswith("the first time\n") for _, text in outcome.failures)
    assert "assert 1.5 == 2" in outcome.failures[0][1]


def test_many_that_failed_have_failed(runner: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_x.py").write_text("def test_passes(): pass\n")
    outcome = runner.Outcome("pytest")
    for _ in range(runner.MOST_AGAIN + 1):
        outcome.fail("test_x.test_passes", "the first time")
    runner.run_again(outcome, dict(os.environ), tmp_path)
    assert outcome.failed == runner.MOST_AGAIN + 1 and not outcome.again


def test_the_end_names_what_failed_and_what_passed_only_alone(
    runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = runner.Outcome("pytest", passed=3)
    outcome.again.append(("test_x.test_late", "too late"))
    assert runner.report([outcome]) == 0
    outcome.fail("test_x.test_bad", "bad")
    assert runner.report([outcome]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("passed only when run again, alone: test_x.test_late") == 2
    assert lines[-2:] == ["failed: test_x.test_bad", "3 passed, 1 failed"]
    assert "======== ONLY ALONE test_x.test_late" in lines and "too late" in lines
