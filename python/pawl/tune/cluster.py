# SPDX-License-Identifier: Apache-2.0
"""Which machines the trials run on."""

from __future__ import annotations

from typing import Any


def init(address: str | None = None, **options: Any) -> None:
    """Chooses where the trials run.

    Args:
        address: Address of a Ray cluster to join; the trials run there. Default: None, on this
            machine.
        options: More options of ``ray.init``.
    """
    if address is not None:
        from .ray_engine import connect

        connect(address, **options)
