# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per code, each also the builtin that people expect; and the module's own hygiene."""

from __future__ import annotations

import builtins
import gc
import pathlib
import pickle
import sys
import weakref
from typing import Any

import pytest
import torch
from common import run_program

import pawl
from pawl import _pawl

CLASSES = {
    pawl.UsageError: (-1, "usage", ValueError),
    pawl.OutOfMemoryError: (-2, None, MemoryError),
    pawl.NotFoundError: (-3, None, LookupError),
    pawl.ExistsError: (-4, None, FileExistsError),
    pawl.BusyError: (-5, "busy", Exception),
    pawl.ConflictError: (-6, "conflict", Exception),
    pawl.NoSpaceError: (-7, None, OSError),
    pawl.StorageError: (-8, None, OSError),
    pawl.TransientError: (-9, "transient", OSError),
    pawl.AccessError: (-10, None, PermissionError),
    pawl.CorruptError: (-11, "corrupt", Exception),
    pawl.VersionError: (-12, "version", Exception),
    pawl.TimeoutError: (-13, "timeout", builtins.TimeoutError),
    pawl.CancelledError: (-14, "cancelled", Exception),
    pawl.MismatchError: (-15, "mismatch", ValueError),
    pawl.LimitError: (-16, "limit", ValueError),
    pawl.UnsupportedError: (-17, "unsupported", TypeError),
    pawl.ReadOnlyError: (-18, None, PermissionError),
    pawl.InternalError: (-19, "internal", RuntimeError),
    pawl.DeviceError: (-20, "device", RuntimeError),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda k: k.__name__)
def test_every_code_has_a_class_that_is_also_a_builtin(kind: type[pawl.PawlError]) -> None:
    code, name, builtin = CLASSES[kind]
    error = kind("text")
    assert isinstance(error, pawl.PawlError)
    assert isinstance(error, builtin)
    assert (error.code, str(error)) == (code, "text")
    assert name is None or error.code_name == name
    assert kind.__module__ == "pawl"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, "text")


def test_errors_of_the_system_carry_its_number(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(pawl.PawlError) as caught:
        pawl.CheckpointManager(tmp_path / "file" / "run")
    assert str(tmp_path) in str(caught.value)
    with (
        pytest.raises(pawl.NoSpaceError) as space,
        pawl.CheckpointManager(tmp_path / "run", io=pawl.IO(fault=("write", 1, -7, False))) as manager,
    ):
        manager.save(0, {"w": torch.ones(5)}, wait=True)
    assert isinstance(space.value, OSError)


def test_versions_agree() -> None:
    assert pawl.__version__ == _pawl.version()
    assert set(pawl.__all__) <= set(dir(pawl))


def test_types_of_the_extension_are_not_made_by_hand() -> None:
    for kind in (_pawl.Ticket, _pawl.Hold):
        with pytest.raises(TypeError):
            kind()
    with pytest.raises(TypeError):
        type("Mine", (_pawl.Run,), {})


def test_the_extension_holds_on_to_nothing(tmp_path: pathlib.Path) -> None:
    """After save and restore only the caller refers to its objects."""

    class Owner(torch.nn.Linear):
        pass

    model = Owner(3, 3)
    keys = [f"key{i}" for i in range(3)]
    state: dict[str, Any] = {"model": model, "big": [10**40], **{k: torch.ones(2) for k in keys}}
    counts = [sys.getrefcount(x) for x in (model, state, *state.values(), model.weight)]
    with pawl.CheckpointManager(tmp_path) as manager:
        for step in range(5):
            manager.save(step, state, metrics={"a": step}, metadata={"b": step}, progress={"epoch": step})
            manager.save(step, state, lazy=True)
            manager.before_step()
            manager.restore(state)
            with pytest.raises(pawl.MismatchError):
                manager.restore({"model": model})
            with pytest.raises(pawl.UnsupportedError):
                manager.save(step, {"a": state, "b": ...})
        manager.wait_until_finished()
    del manager
    gc.collect()
    assert [sys.getrefcount(x) for x in (model, state, *state.values(), model.weight)] == counts
    gone = weakref.ref(model)
    del model, state
    gc.collect()
    assert gone() is None


def test_long_use_does_not_grow(tmp_path: pathlib.Path) -> None:
    """Objects of Python are counted; a leak of one per call would show."""
    state = {"a": [1, 2.5, "x", b"y", None, {"b": (1, torch.ones(2))}]}
    with pawl.CheckpointManager("mem:", num_to_keep=2) as manager:

        def use() -> None:
            manager.save(0, state, metrics={"m": 1}, metadata={"k": [1]}, wait=True)
            manager.restore()
            manager.restore(state)
            manager.checkpoints()
            manager.prune(dry_run=True)

        for _ in range(5):
            use()
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(50):
            use()
        gc.collect()
        assert sys.getallocatedblocks() - before < 200


def test_two_interpreters_in_a_row_and_module_reload() -> None:
    """State hangs on the module, so a second import of it is another module that works too."""
    program = """
import sys, pawl
from pawl import _pawl
first = _pawl
for name in [n for n in sys.modules if n.split(".")[0] == "pawl"]:
    del sys.modules[name]
import pawl as again
from pawl import _pawl as second
assert first is not second and first.PawlError is not second.PawlError
assert again.Checkpoint.from_dict({"a": 1}).to_dict()["a"] == 1
assert pawl.Checkpoint.from_dict({"a": 1}).to_dict()["a"] == 1
"""
    run_program(program)
