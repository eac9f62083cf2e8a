# SPDX-License-Identifier: Apache-2.0
"""The random generators of a process as one object of a state."""

from __future__ import annotations

import random
import sys
from typing import Any

from . import _kinds


class RngState:
    """Python's ``random``, NumPy's global generator and torch's (CPU and CUDA), as far as they are
    imported.

    Put one into the state: it is saved with the state and set on restore. Your own generators go
    into the state as separate values.
    """

    per_rank = True  # each process of a job has its own, as with pawl.PerRank

    def state_dict(self) -> dict[str, Any]:
        """The present state of all generators.

        Returns:
            States of the generators of Python, NumPy and torch, as far as they are imported.
        """
        state: dict[str, Any] = {"python": random.getstate()}
        if numpy := sys.modules.get("numpy"):
            state["numpy"] = numpy.random.get_state(legacy=False)
        if torch := sys.modules.get("torch"):
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the generators; what was not saved stays as it is.

        Args:
            state: What ``state_dict`` returned.
        """
        if "python" in state:
            random.setstate(state["python"])
        if "numpy" in state:
            import numpy

            numpy.random.set_state(_kinds.checked_numpy_state(state["numpy"]))
        if "torch" in state:
            import torch

            torch.set_rng_state(state["torch"])
            for device, generator in enumerate(state.get("cuda", ())):
                if torch.cuda.is_available() and device < torch.cuda.device_count():
                    torch.cuda.set_rng_state(generator, device)


def rng_state() -> RngState:
    """Holds the random generators of this process, to be put into a state.

    Returns:
        An object with ``state_dict`` and ``load_state_dict``.
    """
    return RngState()
