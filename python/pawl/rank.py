# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is."""

from __future__ import annotations

from dataclasses import dataclass

from . import _pawl


@dataclass(frozen=True)
class Rank:
    """One process of a job.

    Attributes:
        rank: Which process this is, from 0.
        world_size: Number of processes.
        local_rank: Which process of its node; None if the launcher does not report it.
        local_world_size: Number of processes of its node; None as above.
        node_rank: Which node; None as above.
        launcher: Name of the launcher; "" if there is none.
        attempt: An id that all ranks of this start of the job share, and no other start; or "".
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    launcher: str
    attempt: str


def rank_identify() -> Rank:
    """Rank and size of this process, from the environment variables of its launcher.

    The known launchers are torchrun, Open MPI, MPICH, MVAPICH, Slurm, Flux, PALS, PMI, JAX and
    Kubernetes. RANK and WORLD_SIZE work as well.

    Returns:
        The rank; 0 of 1 without a launcher.

    Raises:
        UsageError: Variables contradict each other or are not numbers; the message names them.
    """
    return Rank(**_pawl.rank_identify())
