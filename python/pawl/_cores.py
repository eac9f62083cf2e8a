# SPDX-License-Identifier: Apache-2.0
"""The processors that this process may use."""

from __future__ import annotations

import os


def count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
