# SPDX-License-Identifier: Apache-2.0
"""The random generators of the process continue where they were."""

from __future__ import annotations

import pathlib
import random

import numpy as np
import pytest
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


def test_generators_may_be_in_a_value_per_rank() -> None:
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"mine": pawl.PerRank({"rng": pawl.rng_state(), "n": 1})}, wait=True)
        wanted = draw()
        manager.restore({"mine": pawl.PerRank({"rng": pawl.rng_state(), "n": 0})})
        assert draw() == wanted


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


@pytest.mark.parametrize(("pos", "buffer_pos"), [(10**8, -(10**8)), (625, -1), (-1, 5)])
def test_a_state_of_a_numpy_generator_with_an_index_out_of_range_is_never_set(
    tmp_path: pathlib.Path, pos: int, buffer_pos: int
) -> None:
    """NumPy would read memory outside of its arrays."""
    program = f"""
import numpy as np, pawl
legacy = np.random.RandomState(1)
state = legacy.get_state(legacy=False)
state["state"]["pos"] = {pos}
legacy.set_state(state)
modern = np.random.Generator(np.random.MT19937(1))
modern.bit_generator.state = {{"bit_generator": "MT19937", "state": state["state"]}}
philox = np.random.Generator(np.random.Philox(1))
philox.bit_generator.state = {{**philox.bit_generator.state, "buffer_pos": {buffer_pos}}}
saved = {{"legacy": legacy, "modern": modern, "philox": philox, "all": pawl.rng_state()}}
live = {{
    "legacy": np.random.RandomState(2),
    "modern": np.random.Generator(np.random.MT19937(2)),
    "philox": np.random.Generator(np.random.Philox(2)),
    "all": pawl.rng_state(),
}}
for name, generator in saved.items():
    path = {str(tmp_path)!r} + "/" + name
    np.random.set_state(state)
    pawl.save({{"g": generator}}, path)
    np.random.seed(2)
    assert type(pawl.load(path)["g"]) is dict
    try:
        pawl.load(path, state={{"g": live[name]}})
    except ValueError as error:
        assert "pos=" in str(error)
        print(name)
    (np.random if name == "all" else live[name]).random()
"""
    assert run_program(program).split() == ["legacy", "modern", "philox", "all"]
