# SPDX-License-Identifier: Apache-2.0
"""States of Optax, Flax and Equinox: saved, killed and resumed, bit for bit; arrays on another mesh of devices."""

from __future__ import annotations

import pathlib

import pytest
from frameworks import run

pytestmark = pytest.mark.framework

WORKER = "jax_peers_worker.py"


@pytest.mark.parametrize("library", ["optax", "linen", "nnx", "equinox"])
def test_a_killed_training_ends_as_one_that_never_was(tmp_path: pathlib.Path, library: str) -> None:
    expected = run("jax", WORKER, library, tmp_path / "straight", 0, 8)
    run("jax", WORKER, library, tmp_path / "killed", 0, 3, expect=9)
    assert run("jax", WORKER, library, tmp_path / "killed", 3, 8) == expected


def test_a_live_nnx_module_is_changed_in_place(tmp_path: pathlib.Path) -> None:
    assert run("jax", WORKER, "module", tmp_path) == "same\n"


@pytest.mark.parametrize(("rows", "columns"), [(2, 4), (8, 1), (1, 8)])
def test_arrays_are_restored_on_another_mesh(tmp_path: pathlib.Path, rows: int, columns: int) -> None:
    run("jax", WORKER, "sharded", tmp_path, 4, 2, "save")
    assert run("jax", WORKER, "sharded", tmp_path, rows, columns, "load") == "same\n"
