# SPDX-License-Identifier: Apache-2.0
"""Marks the part of a state that one of several processes holds: a piece of a tensor, or its own
value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _pawl


@dataclass(frozen=True, eq=False)
class Shard:
    """The box of a global tensor that this process holds.

    It may be used in a state wherever a tensor may. A save records where the box is. A restore
    reads exactly this box, however the tensor was divided when it was saved. The boxes of all ranks
    must fill the tensor exactly once.

    Attributes:
        tensor: The tensor or array with the elements of the box; its shape is that of the box.
        global_shape: Shape of the complete tensor.
        offsets: Where the box begins, one index for each dimension.
        writer: Of several ranks with the same box, one has "here" and the others "elsewhere".
            Default: "auto", for boxes that only one rank has.
    """

    tensor: object
    global_shape: Sequence[int]
    offsets: Sequence[int]
    writer: Literal["auto", "here", "elsewhere"] = "auto"


class PerRank:
    """A value of which every rank of a job has its own: a position in the data, a generator's
    state.

    It may be used in a state wherever its ``value`` may. A save keeps the values of all ranks. A
    restore gives each rank its own value, in ``value``. (``pawl.rng_state()`` behaves like this by
    itself.)

    Args:
        value: A value of a state.
    """

    __slots__ = {"value": "The value; after a restore the one of this rank."}

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"


_pawl.set_shard(Shard)
_pawl.set_per_rank(PerRank)
