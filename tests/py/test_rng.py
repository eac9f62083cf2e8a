# SPDX-License-Identifier: Apache-2.0
"""The random generators of the process continue where they were."""

from __future__ import annotations

import pathlib
import random

import numpy as np
import torch
from common import run_program

import pawl


def draw() -> tuple[object, ...]:
    return (
        [random.random() for _ in range(3)],
        random.gauss(0, 1),
        np.random.rand(3).tolist(),
        float(np.random.randn()),
        torch.rand(3).tolist(),
    )


def test_all_generators_repeat_what_came_after_the_save() -> None:
    draw()  # an odd number of gaussians: half a pair is stored
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"rng": pawl.rng_state()}, wait=True)
        wanted = draw()
        draw()
        manager.restore({"rng": pawl.rng_state()})
        assert draw() == wanted
        assert draw() != wanted


def test_what_was_not_saved_stays_as_it_is() -> None:
    state = pawl.rng_state()
    saved = state.state_dict()
    del saved["torch"], saved["numpy"]
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    state.load_state_dict(saved)
    assert torch.equal(torch.rand(2), expected)


def test_only_imported_frameworks_are_touched(tmp_path: pathlib.Path) -> None:
    program = f"""
import random, sys, pawl
random.seed(3)
pawl.save({{"rng": pawl.rng_state()}}, {str(tmp_path / "one")!r})
first = random.random()
pawl.load({str(tmp_path / "one")!r}, state={{"rng": pawl.rng_state()}})
assert random.random() == first
assert "numpy" not in sys.modules and "torch" not in sys.modules
"""
    run_program(program)


def test_a_state_saved_with_frameworks_is_restored_in_a_process_that_has_not_imported_them(
    tmp_path: pathlib.Path,
) -> None:
    pawl.save({"rng": pawl.rng_state()}, tmp_path / "one")
    wanted = (np.random.rand(2).tolist(), torch.rand(2).tolist())
    program = f"""
import pawl
pawl.load({str(tmp_path / "one")!r}, state={{"rng": pawl.rng_state()}})
import numpy, torch
print((numpy.random.rand(2).tolist(), torch.rand(2).tolist()))
"""
    assert run_program(program).strip() == str(wanted)
