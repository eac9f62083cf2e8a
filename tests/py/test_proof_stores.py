# SPDX-License-Identifier: Apache-2.0
"""A thinned run of `make proof-stores`: rows 24 to 28 of the fault model, for saves, restores and uploads."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

from cli import BUILD, ROOT

pytestmark = pytest.mark.long

PROGRAM = [sys.executable, str(ROOT / "tests" / "proof" / "stores.py"), "--build", str(BUILD)]


def test_P15_rows_24_to_28_any_request_of_any_session_may_fail(tmp_path: pathlib.Path) -> None:
    """Each fault at some requests of each session, both controls, and a second start that does nothing again."""
    state = tmp_path / "state"
    command = [*PROGRAM, "--every", "97", "--passes", "1", "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    assert len(rows) == 5 and sum(row["cases"] for row in rows) >= 20 and all(row["bad"] == 0 for row in rows)
    assert done.stdout.count("found out") == 6 and "NOT FOUND" not in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert again.returncode == 0 and len(state.read_text().splitlines()) == 5
    total = re.search(r"^together +(\d+) +0 ", again.stdout, re.MULTILINE)
    assert total and int(total[1]) == sum(row["cases"] for row in rows)
