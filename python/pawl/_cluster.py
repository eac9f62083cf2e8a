# SPDX-License-Identifier: Apache-2.0
"""``pawl.init``: where programs for Ray call ``ray.init``."""

from __future__ import annotations

from typing import Any


def init(address: str | None = None, **options: Any) -> None:
    """``address=None``: trainings and trials run on this machine, as they do without this call. An address: joins that
    Ray cluster, as ``ray.init`` does, and they run there."""
    from .tune import init as join

    join(address, **options)
