# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is."""

from __future__ import annotations

from dataclasses import dataclass

from . import _pawl


@dataclass(frozen=True)
class Rank:
    """One process of a job of ``world_size``.

    The three that only some launchers tell are None where they are not known. ``launcher`` is "" if there is none.
    ``attempt`` is what all ranks of this start of the job share and no other start has, or "".
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    launcher: str
    attempt: str


def rank_identify() -> Rank:
    """Rank and size of this process, from what its launcher left in the environment; 0 of 1 without a launcher.

    Known are torchrun, Open MPI, MPICH, MVAPICH, Slurm, Flux, PALS, PMI, JAX, Kubernetes, and RANK with WORLD_SIZE.
    Variables that contradict each other or are no numbers raise UsageError, which names them.
    """
    return Rank(**_pawl.rank_identify())
