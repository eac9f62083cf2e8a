# SPDX-License-Identifier: Apache-2.0
"""tools/run-tests.py: what it adds up, and what it takes for a failure."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib
from types import ModuleType

import needs
import pytest
from programs import load_program

import cli

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_that_does_not_run(): pytest.skip("nothing here")
def test_of_another_version(): pytest.skip("this torch has no such dtype")
"""


@pytest.fixture(name="runner", scope="module")
def loaded_runner() -> ModuleType:
    return load_program("tools/run-tests.py")


def run_pytest(folder: pathlib.Path, text: str) -> tuple[pathlib.Path, int]:
    (folder / "test_x.py").write_text(text)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [f"--rootdir={folder}", "-c", os.devnull, "test_x.py"]  # not that of this project
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, check=False)
    return report, done.returncode


def test_each_test_counts_once_and_only_known_reasons_excuse_a_skip(runner: ModuleType, tmp_path: pathlib.Path) -> None:
    tally = runner.Tally()
    report, status = run_pytest(tmp_path, TESTS)
    tally.read_junit(report, "pytest", status)
    assert (tally.passed, tally.skipped) == (1, 2)
    assert tally.failures == ["test_x: test_fails", "test_x: test_that_does_not_run was skipped: nothing here"]


def test_a_runner_that_dies_or_runs_nothing_has_failed(runner: ModuleType, tmp_path: pathlib.Path) -> None:
    report, status = run_pytest(tmp_path, "import os\n\ndef test_passes(): pass\n\ndef test_dies(): os._exit(7)\n")
    assert status == 7
    tally = runner.Tally()
    tally.read_junit(report, "pytest", status)
    assert tally.failures == ["pytest: exit status 7 after 0 cases"]
    report, status = run_pytest(tmp_path, "def test_passes(): pass\n")
    tally.read_junit(report, "pytest", 1)  # one that is skipped for another reason
    assert tally.passed == 1 and len(tally.failures) == 2


def test_P18_a_secret_in_what_is_left_is_found(runner: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    tally = runner.Tally()
    runner.check_secrets(tmp_path, tally)
    assert (tally.passed, tally.failures) == (2, [])
    events = tmp_path / "events.jsonl"
    events.write_text("TOKENCANARY")
    found = runner.search_secrets(tmp_path)
    events.unlink()  # else it is found after all tests, too
    assert found == (2, [f"{events}: TOKENCANARY.."])


def test_a_helper_refuses_a_test_that_is_not_marked(request: pytest.FixtureRequest) -> None:
    with pytest.raises(AssertionError, match=r"needs pytest\.mark\.server"):
        needs.need("server")
    request.node.add_marker(pytest.mark.server)
    needs.begin({mark.name for mark in request.node.iter_markers()})
    needs.need("server")
    other = [sys.executable, "-c", "import needs; needs.need('server')"]  # not a test: a benchmark, for example
    subprocess.run(other, cwd=pathlib.Path(__file__).parent, check=True)


def test_every_test_with_a_mark_is_left_out_of_make_test(runner: ModuleType) -> None:
    """The marks of the two halves are those that pyproject.toml declares."""
    text = (cli.ROOT / "pyproject.toml").read_text()
    declared = [line.partition(":")[0] for line in tomllib.loads(text)["tool"]["pytest"]["ini_options"]["markers"]]
    assert runner.MARKS["rest"].split(" or ") == declared
    assert runner.MARKS["core"] == f"not ({runner.MARKS['rest']})"
