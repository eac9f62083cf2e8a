# SPDX-License-Identifier: Apache-2.0
"""Which machines the trials run on."""

from __future__ import annotations

from typing import Any

from .._pawl import UnsupportedError


def init(address: str | None = None, **options: Any) -> None:
    """``address=None``: the trials run on this machine, as they do without this call."""
    if address is not None:
        raise UnsupportedError(
            f"init: the trials run on this machine (address=None), received {address!r}; in Ray Tune's own Tuner "
            "use pawl.ray"
        )
