# SPDX-License-Identifier: Apache-2.0
"""Tensors on CUDA devices: copied by the library over the stand-in driver, never by the framework."""

from __future__ import annotations

import pathlib

from common import run_program
from s3_servers import BUILD

DRIVER = BUILD / "tests/libcuda.so.1"

CUDA = f"""
import ctypes, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
driver = ctypes.CDLL({str(DRIVER)!r}, ctypes.RTLD_GLOBAL)  # the process has a driver now, as with torch
import far_device as torch
import numpy as np, pawl, types

u64, void_p = ctypes.c_uint64, ctypes.c_void_p
for name, result, arguments in (("fake_alloc", u64, (ctypes.c_int, ctypes.c_size_t)), ("fake_shadow", void_p, (u64,)),
                                ("fake_stream", u64, (ctypes.c_int,)), ("fake_reset", None, (u64, ctypes.c_bool)),
                                ("fake_misuse", ctypes.c_char_p, ()), ("fake_run", None, ()),
                                ("fake_hold", None, (u64, ctypes.c_bool)), ("fake_wait_registered", None, (ctypes.c_size_t,)),
                                ("fake_launch", None, (ctypes.c_int, u64, void_p, void_p))):
    getattr(driver, name).restype, getattr(driver, name).argtypes = result, arguments
driver.fake_reset(1, True)
streams = [driver.fake_stream(i) for i in range(3)]
torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda i: streams[i])
torch.version = types.SimpleNamespace(hip=None)
torch.Tensor.is_cuda = False
WORK = ctypes.CFUNCTYPE(None, void_p)
kept = []

class Cuda(torch.Tensor):
    pass

def cuda(array, device=1):
    t = torch.Tensor(array)
    pointer = driver.fake_alloc(device, max(array.nbytes, 1))
    shadow = (ctypes.c_char * max(array.nbytes, 1)).from_address(driver.fake_shadow(pointer))
    t.array = np.ndarray(array.shape, array.dtype, shadow, strides=array.strides)
    t.array[...] = array
    t.is_cuda, t.get_device, t.data_ptr = True, lambda: device, lambda: pointer
    t._version, t.shadow = 0, t.array
    t.contiguous = t.detach = None  # the framework must not be asked
    return t

def launch(tensor, value):
    def work(_):
        tensor.array[...] = value
    kept.append(WORK(work))
    tensor._version += 1
    device = tensor.get_device()
    driver.fake_launch(device, streams[device], ctypes.cast(kept[-1], void_p), None)

def check():
    driver.fake_run()
    assert driver.fake_misuse() is None, driver.fake_misuse()
"""


def test_tensors_are_copied_by_the_driver(tmp_path: pathlib.Path) -> None:
    run_program(
        CUDA
        + f"""
rng = np.random.default_rng(0)
wide = rng.random((50, 40)).astype("f4")
state = {{"a": cuda(rng.random((300, 70)).astype("f4")), "t": cuda(wide.T), "b": cuda(np.arange(9), 2),
         "empty": cuda(np.zeros((0, 3), "f4")), "near": torch.Tensor(np.arange(5), True)}}
state["tied"] = state["a"]
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    for lazy, mode in ((False, 0), (True, 0), (False, 2), (False, 3)):
        launch(state["b"], mode)
        manager._run.save(1, state, lazy=lazy, mode=mode).wait()
        launch(state["b"], 77)
        live = {{k: torch.Tensor(np.zeros_like(v.array), True) if v.is_cpu else cuda(np.zeros_like(v.array))
                for k, v in state.items() if k != "tied"}}
        live["tied"] = live["a"]
        restored = manager.restore(live)
        driver.fake_run()
        for key, tensor in state.items():
            expected = np.full(9, mode) if key == "b" else tensor.array
            assert np.array_equal(live[key].array, expected), (key, live[key].array)
            assert restored.state[key] is live[key]
check()
"""
    )


def test_a_cast_fills_tensors_on_a_device(tmp_path: pathlib.Path) -> None:
    run_program(
        CUDA
        + f"""
rng = np.random.default_rng(0)
state = {{"a": cuda(rng.random((300, 700)).astype("f4")), "t": cuda(rng.random((50, 40)).astype("f4").T),
         "b": cuda(rng.random(9).astype("f4"), 2)}}
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(1, state, wait=True)
    live = {{k: cuda(np.zeros_like(v.array, "f8"), v.get_device()) for k, v in state.items()}}
    restored = manager.restore(live, cast="float64")
    driver.fake_run()
    for key, tensor in state.items():
        assert np.array_equal(live[key].array, tensor.array.astype("f8")), key
        assert restored.state[key] is live[key]
check()
"""
    )


LAZY = """
class Optimizer:
    pass

def parameters(value):
    weight = cuda(np.full(3 << 20, value, "f4"))
    optimizer = {"state": {0: {"exp_avg": weight}}, "param_groups": [{"params": [0]}]}
    return weight, {"optimizer": optimizer, "mean": cuda(np.full(100, value, "f4"))}

def until_registered():
    driver.fake_wait_registered(pawl._pawl.arena_bytes())
"""


def test_before_step_does_not_wait_on_the_host(tmp_path: pathlib.Path) -> None:
    """The stream is held: a host thread that waited for the device would never return."""
    run_program(
        CUDA
        + LAZY
        + f"""
weight, state = parameters(1)
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(0, state, wait=True)
    until_registered()
    launch(weight, 2)
    driver.fake_hold(streams[1], True)
    ticket = manager.save(1, state, lazy=True)
    launch(state["mean"], 5)
    manager.before_step()
    launch(weight, 3)
    assert weight.array[0] == 1
    driver.fake_hold(streams[1], False)
    manager.wait_until_finished()
    restored = manager.restore().state
    assert (restored["optimizer"]["state"][0]["exp_avg"].array == 2).all()
    assert (restored["mean"].array == 1).all()
check()
assert weight.array[0] == 3
"""
    )


def test_tensors_of_a_lazy_save_stay_until_they_are_copied(tmp_path: pathlib.Path) -> None:
    """The copies are held. If the memory were free, they could get other bytes."""
    run_program(
        CUDA
        + LAZY
        + f"""
import gc, weakref
weight, state = parameters(1)
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(0, state, wait=True)
    until_registered()
    driver.fake_hold(0, True)
    manager.save(1, state, lazy=True)
    manager.before_step()
    alive = weakref.ref(weight)
    del weight, state
    gc.collect()
    assert alive() is not None
    driver.fake_hold(0, False)
    manager.wait_until_finished()
    gc.collect()
    assert alive() is None
check()
"""
    )


def test_before_step_on_another_stream_waits_for_the_copy(tmp_path: pathlib.Path) -> None:
    run_program(
        CUDA
        + LAZY
        + f"""
weight, state = parameters(1)
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(1, state, lazy=True)
    streams[1] = driver.fake_stream(1)
    manager.before_step()
    launch(weight, 3)
    driver.fake_run()
    manager.wait_until_finished()
    assert (manager.restore().state["optimizer"]["state"][0]["exp_avg"].array == 1).all()
check()
"""
    )


def test_a_change_before_the_fence_fails_the_save(tmp_path: pathlib.Path) -> None:
    run_program(
        CUDA
        + LAZY
        + f"""
weight, state = parameters(1)
with pawl.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(0, state, wait=True)
    until_registered()
    driver.fake_hold(streams[1], True)
    manager.save(1, state, lazy=True)
    launch(weight, 3)
    manager.before_step()
    driver.fake_hold(streams[1], False)
    try:
        manager.wait_until_finished()
    except pawl.PawlError as error:
        assert "changed before the lazy save of step 1" in str(error), error
    else:
        raise AssertionError("no error")
    assert manager.all_steps() == [0]
check()
"""
    )


def test_with_device_staging_a_save_waits_for_no_copy(tmp_path: pathlib.Path) -> None:
    """The stream is held during the save and the next step, and neither is lazy."""
    run_program(
        CUDA
        + LAZY
        + f"""
driver.fake_set_memory.argtypes = (ctypes.c_size_t,)
driver.fake_set_memory(1 << 40)
weight, state = parameters(1)
with pawl.CheckpointManager({str(tmp_path)!r}, staging=pawl.Staging(device="auto")) as manager:
    manager.prepare(state)
    until_registered()
    launch(weight, 2)
    driver.fake_hold(streams[1], True)
    manager.save(1, state)
    launch(weight, 3)
    driver.fake_hold(streams[1], False)
    manager.wait_until_finished()
    assert (manager.restore().state["optimizer"]["state"][0]["exp_avg"].array == 2).all()
check()
"""
    )


JAX = """
class Shape(ctypes.Structure):
    _fields_ = [("data", void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", u64)]

capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ctypes.py_object, (void_p, ctypes.c_char_p, void_p)
copied = []

class Array:
    def __init__(self, array, device=1):
        self.far, self.device = cuda(array, device), device
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream):
        assert stream == 1
        n = len(self.shape)
        steps = [step // self.dtype.itemsize for step in self.far.array.strides]
        self.shown = Shape(self.far.data_ptr() - 64, 2, self.device, n, 2, self.dtype.itemsize * 8, 1,
                           (ctypes.c_int64 * n)(*self.shape), (ctypes.c_int64 * n)(*steps) if steps_shown else None, 64)
        return capsule_of(ctypes.addressof(self.shown), b"dltensor", None)

    def __array__(self, dtype=None, copy=None):
        copied.append(self)
        return np.array(self.far.array)

jax = types.ModuleType("jax")
jax.Array, jax.ShapeDtypeStruct = Array, type("Shape", (), {})
jax.numpy = types.ModuleType("jax.numpy")
jax.numpy.array = lambda array: Array(array)
sys.modules.update({"jax": jax, "jax.numpy": jax.numpy})
"""


def test_arrays_of_jax_are_copied_by_the_driver(tmp_path: pathlib.Path) -> None:
    """Of a lazy save; also transposed, and with the strides left out. Other saves and files are copied by JAX."""
    run_program(
        CUDA
        + JAX
        + f"""
values = np.random.default_rng(0).random((300, 70)).astype("f4")
wide = np.random.default_rng(0).random((50, 40)).astype("f4")
with pawl.CheckpointManager({str(tmp_path / "run")!r}) as manager:
    for step, (lazy, steps_shown) in enumerate(((True, True), (True, False), (False, False))):
        state = {{"a": Array(values + step), "b": Array(wide.T if steps_shown else wide, 2), "none": Array(values[:0])}}
        ticket = manager.save(step, state, lazy=lazy)
        manager.before_step()
        ticket.wait()
        assert len(copied) == (0 if lazy else 2)  # the third is empty
        found = manager.restore().state
        assert np.array_equal(found["a"].far.array, values + step)
        assert np.array_equal(found["b"].far.array, state["b"].far.array) and found["none"].shape == (0, 70)
    copied.clear()
    pawl.save({{"a": state["a"]}}, {str(tmp_path / "a.safetensors")!r})
    assert copied == [state["a"]]
check()
"""
    )
