# SPDX-License-Identifier: Apache-2.0
"""Torch modules, optimizers and schedulers: restored in place, and training continues bit for bit."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from common import same
from torch import nn

import pawl

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam_amsgrad_tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), amsgrad=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=4),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4]),
    "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.StepLR(o, 2)], [3]
    ),
}


class Trainer:
    """A small training run with everything that has a state."""

    def __init__(self, optimizer: str = "adamw", scheduler: str = "multistep", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.losses: list[float] = []
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "rng": pawl.rng_state(),
            "losses": self.losses,
        }

    def step(self) -> None:
        x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

        self.losses.append(float(self.optimizer.step(closure)))
        self.scheduler.step()

    def snapshot(self) -> Any:
        return {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizer": _clone(self.optimizer.state_dict()),
            "scheduler": _clone(self.scheduler.state_dict()),
            "losses": list(self.losses),
        }


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clone(v) for v in value]
    return tuple(_clone(v) for v in value) if isinstance(value, tuple) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [(o, "multistep") for o in OPTIMIZERS if o != "adam_amsgrad_tensor_lr"]
    + [("adam_amsgrad_tensor_lr", "multistep")]
    + [("adamw", s) for s in SCHEDULERS],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_R57_R58_training_resumes_bit_for_bit(
    tmp_path: pathlib.Path, optimizer: str, scheduler: str, fresh: bool
) -> None:
    """The same code for a fresh and a resumed run; a fresh optimizer has no tensors yet, one that ran is overwritten."""
    straight = Trainer(optimizer, scheduler)
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        assert manager.restore(straight.state) is None
        for step in range(3):
            straight.step()
            manager.save(step, straight.state)
    for _ in range(3):
        straight.step()

    resumed = Trainer(optimizer, scheduler, seed=99)
    if not fresh:
        resumed.step()
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        restored = manager.restore(resumed.state)
        assert restored is not None
        for _ in range(restored.step + 1, 6):
            resumed.step()
    assert same(resumed.snapshot(), straight.snapshot())


def test_a_module_is_restored_in_place() -> None:
    """No tensor is replaced, and nothing is copied twice: the module's own memory is read into."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: (t, t.data_ptr(), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    calls: list[Any] = []
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"model": model}, wait=True)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.zero_()
        original = nn.Module.load_state_dict
        try:
            nn.Module.load_state_dict = lambda *a, **k: calls.append(a)  # type: ignore[assignment]
            restored = manager.restore({"model": model})
        finally:
            nn.Module.load_state_dict = original  # type: ignore[method-assign]
    assert restored is not None
    assert calls == []
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert tensor.data_ptr() == before[name][1]
        assert torch.equal(tensor, before[name][2])
        assert restored.state["model"][name].data_ptr() == tensor.data_ptr()


def test_modules_that_do_more_in_load_state_dict_are_asked() -> None:
    seen: list[str] = []

    class Custom(nn.Linear):
        def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
            seen.append("custom")
            return super().load_state_dict(state, strict, assign)

    class Extra(nn.Linear):
        counter = 5

        def get_extra_state(self) -> Any:
            return {"counter": self.counter}

        def set_extra_state(self, state: Any) -> None:
            self.counter = state["counter"]

    class Copies(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return collections.OrderedDict((k, v.clone()) for k, v in super().state_dict(*args, **kwargs).items())

    hooked = nn.Linear(2, 2)
    hooked.register_load_state_dict_post_hook(lambda module, keys: seen.append("hook"))
    modules = nn.ModuleDict({"extra": Extra(2, 2), "hooked": hooked})
    state = {"custom": Custom(2, 2), "modules": modules, "copies": Copies(3, 3)}
    with pawl.CheckpointManager("mem:") as manager:
        modules["extra"].counter = 7
        manager.save(0, state, wait=True)
        wanted = {k: v.clone() for k, v in modules.state_dict(keep_vars=True).items() if isinstance(v, torch.Tensor)}
        weight = state["copies"].weight.clone()
        modules["extra"].counter = 0
        with torch.no_grad():
            for p in [*modules.parameters(), *state["copies"].parameters()]:
                p.zero_()
        manager.restore(state)
    assert modules["extra"].counter == 7
    assert seen == ["custom", "hook"]
    assert torch.equal(state["copies"].weight, weight)
    for name, tensor in modules.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, wanted[name])


def test_tied_weights_of_a_model_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    source, target = Tied(), Tied()
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"m": source}, wait=True)
        manager.restore({"m": target})
        assert target.head.weight is target.embed.weight
        assert torch.equal(target.head.weight, source.head.weight)
        back = manager.restore()
        assert back is not None
        assert back.state["m"]["embed.weight"] is back.state["m"]["head.weight"]


def test_live_tensors_that_share_memory_cannot_take_two_saved_ones() -> None:
    one = torch.zeros(5)
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"a": torch.ones(5), "b": torch.full((5,), 2.0)}, wait=True)
        with pytest.raises(pawl.MismatchError, match="tied: b: shares its memory with a, but was saved apart"):
            manager.restore({"a": one, "b": one})
    assert torch.equal(one, torch.zeros(5))


def test_a_weight_and_its_transpose_are_restored_into_a_model_that_shares_them() -> None:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.dec = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)
            self.dec.weight = nn.Parameter(self.enc.weight.t())

    source, target = Coder(), Coder()
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"m": source}, wait=True)
        manager.restore({"m": target})
    assert torch.equal(target.enc.weight, source.enc.weight) and torch.equal(target.dec.weight, source.enc.weight.t())
    assert target.dec.weight.data_ptr() == target.enc.weight.data_ptr()


def test_live_tensors_that_overlap_are_filled_in_their_order() -> None:
    line, square, array = torch.zeros(7), torch.zeros(1500, 2000), np.zeros((600, 4), np.float32)
    saved = {
        "slices": [torch.full((3,), 1.0), torch.full((3,), 2.0), torch.full((3,), 3.0)],
        "turned": [torch.ones(1500, 2000), torch.full((2000, 1500), 2.0), torch.full((1000, 2000), 3.0)],
        "columns": [np.full((600, 2), 1, np.float32), np.full((600, 2), 2, np.float32)],
    }
    live = {
        "slices": [line[:3], line[2:5], line[4:]],
        "turned": [square, square.t(), square[:1000]],
        "columns": [array[:, ::-2], array[:, ::2]],
    }
    views: list[Any] = [value for values in live.values() for value in values]
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, saved, wait=True)
        for _ in range(3):  # the order of reading differs
            manager.restore(live)
            assert line.tolist() == [1, 1, 2, 2, 3, 3, 3]
            assert torch.equal(square[:1000], torch.full((1000, 2000), 3.0))
            assert torch.equal(square[1000:], torch.full((500, 2000), 2.0))
            assert array.tolist() == [[2, 1, 2, 1]] * 600
            square.zero_()
    now: list[Any] = [value for values in live.values() for value in values]
    assert all(one is other for one, other in zip(now, views, strict=True))


def test_thousands_of_slices_of_one_buffer_are_restored_in_place() -> None:
    order = np.random.default_rng(3).permutation(3000).tolist()
    source, target = torch.arange(30_000.0), torch.zeros(30_000)
    parts = {name: slice(10 * at, 10 * at + 10) for name, at in zip(map(str, range(3000)), order, strict=True)}
    live = {name: target[part] for name, part in parts.items()} | {"last": target[15_003:15_018]}
    views = list(live.values())
    saved = {name: source[part] for name, part in parts.items()} | {"last": torch.full((15,), -1.0)}
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, saved, wait=True)
        manager.restore(live)
    source[15_003:15_018] = -1
    assert torch.equal(target, source)
    assert all(one is other for one, other in zip(live.values(), views, strict=True))


def test_strict_errors_of_a_module_list_everything_and_change_nothing() -> None:
    saved = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 3), "gone": nn.Linear(1, 1)})
    live = nn.ModuleDict({"a": nn.Linear(2, 4), "b": nn.Linear(3, 3).double(), "new": nn.Linear(1, 1)})
    before = {k: v.clone() for k, v in live.state_dict().items()}
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"model": saved}, wait=True)
        with pytest.raises(pawl.MismatchError) as caught:
            manager.restore({"model": live})
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for row in [
        "shape: model/a.weight: saved [3, 2], live [4, 2]",
        "shape: model/a.bias: saved [3], live [4]",
        "dtype: model/b.weight: saved F32, live F64",
        "dtype: model/b.bias",
        "unexpected: model/gone.weight",
        "unexpected: model/gone.bias",
        "missing: model/new.weight",
        "missing: model/new.bias",
    ]:
        assert row in text
    assert "8 differences" in text
    for name, tensor in live.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("custom", [False, True])
def test_non_strict_takes_what_fits_and_reports_the_rest(custom: bool) -> None:
    class Custom(nn.ModuleDict):
        def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
            return super().load_state_dict(state, strict, assign)

    kind = Custom if custom else nn.ModuleDict
    saved = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 3), "gone": nn.Linear(1, 1)})
    live = kind({"a": nn.Linear(2, 4), "b": nn.Linear(3, 3), "new": nn.Linear(1, 1)})
    before = {k: v.clone() for k, v in live.state_dict().items()}
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"model": saved}, wait=True)
        restored = manager.restore({"model": live}, strict=False)
    assert restored is not None
    assert torch.equal(live["b"].weight, saved["b"].weight)
    assert torch.equal(live["a"].weight, before["a.weight"])
    assert torch.equal(live["new"].weight, before["new.weight"])
    assert torch.equal(restored.state["model"]["gone.weight"], saved["gone"].weight)
    assert torch.equal(restored.state["model"]["a.weight"], saved["a"].weight)
    assert sorted(row.split(":")[0] for row in restored.report) == ["missing"] * 2 + ["shape"] * 2 + ["unexpected"] * 2


def test_what_an_optimizer_refuses_is_its_own_error_with_the_checkpoint_named() -> None:
    one = torch.optim.Adam(nn.Linear(2, 2).parameters())
    two = torch.optim.Adam([{"params": nn.Linear(2, 2).parameters()}, {"params": nn.Linear(2, 2).parameters()}])
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"o": one}, wait=True)
        with pytest.raises(ValueError, match="parameter groups") as caught:
            manager.restore({"o": two})
    assert any("checkpoint_000001" in note for note in caught.value.__notes__)


def test_optimizer_states_are_read_in_place_where_they_exist() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    pointer = optimizer.state_dict()["state"][0]["exp_avg"].data_ptr()
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"o": optimizer}, wait=True)
        wanted = _clone(optimizer.state_dict())
        optimizer.step()
        manager.restore({"o": optimizer})
    assert optimizer.state_dict()["state"][0]["exp_avg"].data_ptr() == pointer
    assert same(_clone(optimizer.state_dict()), wanted)
    assert list(optimizer.state_dict()["state"]) == [0, 1]


def test_scheduler_counters_keep_their_type() -> None:
    """A MultiStepLR keeps its milestones in a Counter and uses its methods."""
    trainer = Trainer()
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, trainer.state, wait=True)
        manager.restore(trainer.state)
    assert type(trainer.scheduler.milestones) is collections.Counter


def test_objects_without_load_state_dict_cannot_be_restored_into() -> None:
    class Half:
        def state_dict(self) -> Any:
            return {"a": 1}

    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"x": Half()}, wait=True)
        with pytest.raises(pawl.UsageError, match=r"'x': a .*Half has no load_state_dict"):
            manager.restore({"x": Half()})
        restored = manager.restore()
        assert restored is not None
        assert restored.state == {"x": {"a": 1}}


def test_grad_scaler_and_generators_and_nested_objects() -> None:
    class Outer:
        def __init__(self) -> None:
            self.inner, self.value = nn.Linear(2, 2), 1

        def state_dict(self) -> Any:
            return {"inner": self.inner.state_dict(), "value": self.value}

        def load_state_dict(self, state: Any) -> None:
            self.inner.load_state_dict(state["inner"])
            self.value = state["value"]

    outer, scaler = Outer(), torch.amp.GradScaler("cpu")
    with pawl.CheckpointManager("mem:") as manager:
        outer.value = 9
        weight = outer.inner.weight.clone()
        manager.save(0, {"outer": outer, "scaler": scaler, "list": [outer]}, wait=True)
        other = Outer()
        manager.restore({"outer": other, "scaler": torch.amp.GradScaler("cpu"), "list": [Outer()]})
    assert other.value == 9
    assert torch.equal(other.inner.weight, weight)


def test_a_lazy_module_is_filled_by_its_load_state_dict() -> None:
    source = nn.LazyLinear(3)
    source(torch.ones(1, 4))
    target = nn.LazyLinear(3)
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"m": source}, wait=True)
        manager.restore({"m": target})
    assert torch.equal(target.weight, source.weight)
    with pawl.CheckpointManager("mem:") as manager, pytest.raises(pawl.UnsupportedError, match="'m/weight'"):
        manager.save(0, {"m": nn.LazyLinear(3)})


def test_non_contiguous_live_tensors_are_restored_in_place() -> None:
    base = torch.zeros(6, 8)
    live = base.t()[1:7:2]
    saved = torch.randn(3, 6)
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"t": saved}, wait=True)
        manager.restore({"t": live})
    assert torch.equal(live, saved)
    assert torch.equal(base[:, [1, 3, 5]], saved.t())
    assert base[:, [0, 2, 4, 6, 7]].abs().sum() == 0


def test_conjugated_live_tensors_are_restored_through_a_copy() -> None:
    base = torch.zeros(3, dtype=torch.complex64)
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"z": torch.tensor([1 + 2j, 3j, 4])}, wait=True)
        manager.restore({"z": base.conj()})
    assert torch.equal(base, torch.tensor([1 - 2j, -3j, 4]))


class Broken:
    """Has a state, and raises when it is asked whether it is an optimizer."""

    value = 1.5

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    @property
    def param_groups(self) -> list[Any]:
        raise RuntimeError("not wrapped yet")


def test_an_object_that_is_no_usable_optimizer_is_saved_as_what_it_is(tmp_path: pathlib.Path) -> None:
    model = nn.Linear(3, 2)
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"model": model, "other": Broken()}, wait=True)
        restored = manager.restore()
        assert restored is not None
        assert restored.state["other"] == {"value": 1.5} and torch.equal(
            restored.state["model"]["weight"], model.weight
        )
        with pytest.raises(pawl.UnsupportedError, match="'other'.*: not wrapped yet"):
            manager.save(2, {"model": model, "other": Broken()}, lazy=True)
