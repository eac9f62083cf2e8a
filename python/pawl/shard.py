# SPDX-License-Identifier: Apache-2.0
"""A piece of a tensor that is spread over several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _pawl


@dataclass(frozen=True, eq=False)
class Shard:
    """The box of a global tensor that this process holds.

    It stands in a state wherever a tensor may stand. Saved, it is recorded where the box lies; restored, exactly this
    box is read, however the tensor was cut when it was saved.
    """

    tensor: object
    global_shape: Sequence[int]
    offsets: Sequence[int]


_pawl.set_shard(Shard)
