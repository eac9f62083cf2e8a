# SPDX-License-Identifier: Apache-2.0
"""For all Python tests: what they need is known to their helpers, and long files begin first."""

from __future__ import annotations

import os
import signal

import needs
import pytest

# A shell starts what it runs in the background with Ctrl+C ignored, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A transfer that stands still with the machine is not given up.
os.environ.setdefault("PAWL_STALL_SECONDS", "3600")

# Files of few tests that take long: begun first, so that none of them runs alone at the end.
LONG_FIRST = (
    "test_ray.py",
    "test_loggers.py",
    "test_huggingface.py",
    "test_lightning.py",
    "test_ray_engine.py",
    "test_ranks.py",
    "test_train_launched.py",
    "test_bucket_writers.py",
    "test_train_failures.py",
    "test_s3.py",
    "test_model.py",
    "test_direct.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs.begin({mark.name for mark in item.iter_markers()})
