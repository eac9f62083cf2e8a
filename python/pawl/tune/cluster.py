# SPDX-License-Identifier: Apache-2.0
"""Which machines the trials run on."""

from __future__ import annotations

from typing import Any


def init(address: str | None = None, **options: Any) -> None:
    """``address=None``: the trials run on this machine, as they do without this call. An address: joins that Ray
    cluster, as ``ray.init`` does, and the trials run there."""
    if address is not None:
        from .ray_engine import connect

        connect(address, **options)
