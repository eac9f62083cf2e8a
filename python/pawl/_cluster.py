# SPDX-License-Identifier: Apache-2.0
"""``pawl.init``: where programs for Ray call ``ray.init``."""

from __future__ import annotations

from typing import Any


def init(address: str | None = None, **options: Any) -> None:
    """``pawl.init``: where programs for Ray call ``ray.init``.

    Args:
        address: Address of a Ray cluster to join. Training runs and trials then run there. Default:
            None, on this machine.
        options: More options of ``ray.init``.
    """
    from .tune import init as join

    join(address, **options)
