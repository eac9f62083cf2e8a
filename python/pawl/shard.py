# SPDX-License-Identifier: Apache-2.0
"""What one of several processes says of its part of a state: a piece of a tensor, or a value of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _pawl


@dataclass(frozen=True, eq=False)
class Shard:
    """The box of a global tensor that this process holds.

    It stands in a state wherever a tensor may stand. Saved, it is recorded where the box is;
    restored, exactly this box is read, however the tensor was cut when it was saved. The boxes of
    all ranks must fill the tensor exactly, and only once.

    Attributes:
        tensor: The tensor or array with the elements of the box; its shape is that of the box.
        global_shape: Shape of the complete tensor.
        offsets: Where the box begins, one index for each dimension.
        writer: Of several ranks with the same box one has "here", the others "elsewhere". Default:
            "auto", which is for boxes that only one rank has.
    """

    tensor: object
    global_shape: Sequence[int]
    offsets: Sequence[int]
    writer: Literal["auto", "here", "elsewhere"] = "auto"


class PerRank:
    """A value that every rank of a job has for itself: a place in the data, a random generator's
    state.

    It stands in a state wherever its ``value`` may stand. Saved, the values of all ranks are kept;
    restored, each rank gets its own back, in ``value``. (``pawl.rng_state()`` is of this kind by
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
