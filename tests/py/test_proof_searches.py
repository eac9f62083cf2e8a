# SPDX-License-Identifier: Apache-2.0
"""A thinned run of `make proof-searches`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

from cli import BUILD, ROOT

pytestmark = pytest.mark.long


def test_R128_R130_P3_searches_that_are_killed_anywhere_come_to_the_same() -> None:
    """Each kind of kill of each kind of search once, and all controls."""
    command = [sys.executable, str(ROOT / "tests" / "proof" / "searches.py"), "--build", str(BUILD), "--kills", "15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("found out") == 2 and "mended" in done.stdout and "NOT" not in done.stdout
    total = re.search(r"^together +(\d+) +0 ", done.stdout, re.MULTILINE)
    assert total and int(total[1]) in (12, 15)  # a full disk can only be had where a file system may be mounted
