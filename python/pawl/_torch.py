# SPDX-License-Identifier: Apache-2.0
"""What restoring needs to know of a torch module. Imported only when a module is being restored."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

from torch import nn


def memory(module: nn.Module) -> set[int]:
    """Addresses of the tensors that the module itself uses: reading into these is restoring."""
    found = set()
    for tensor in chain(module.parameters(), module.buffers()):
        with suppress(RuntimeError, ValueError, AttributeError):  # not materialised yet: load_state_dict will do it
            found.add(tensor.data_ptr())
    return found


def must_load(module: nn.Module) -> bool:
    """True if load_state_dict does more for this module than copying tensors."""
    if type(module).load_state_dict is not nn.Module.load_state_dict:
        return True
    return any(
        part.__dict__.get("_load_state_dict_pre_hooks")
        or part.__dict__.get("_load_state_dict_post_hooks")
        or (
            type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
            and not type(part).__module__.startswith("torch.")
        )
        for part in module.modules()
    )
