# SPDX-License-Identifier: Apache-2.0
"""How tests wait: for events, never for a time in which something should have happened.

HANG_SECONDS is the one limit. Only what hangs reaches it, however slow the machine is; no test asserts anything by it.
"""

from __future__ import annotations

import pathlib
import subprocess
import time
from collections.abc import Callable

HANG_SECONDS = 1800


def wait_until(is_so: Callable[[], object], what: str = "", process: subprocess.Popen[str] | None = None) -> None:
    """Returns once is_so() is true. process: fails at once if this one ends before."""
    deadline = time.monotonic() + HANG_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain{what and ' for '}{what}"
        if process is not None and process.poll() is not None and not is_so():
            raise AssertionError(f"the process has ended with status {process.returncode}: {process.communicate()}")
        time.sleep(0.01)


def exists(path: pathlib.Path) -> None:
    """Waits for a file or folder."""
    wait_until(path.exists, str(path))
