# SPDX-License-Identifier: Apache-2.0
"""Trains with a library of JAX: some steps, saved; then resumed in another process.

Usage: jax_peers_worker.py LIBRARY ROOT FIRST LAST. Saves after each step and prints a digest of the state after LAST.
A FIRST above 0 resumes from the latest checkpoint, which must be that step's.
Or: jax_peers_worker.py sharded ROOT ROWS COLUMNS save|load, and jax_peers_worker.py module ROOT.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"

import attrs
import equinox as eqx
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pawl
import pawl.jax

STEPS = 8
X = jnp.arange(24.0).reshape(6, 4) / 24
Y = jnp.sum(X, axis=1, keepdims=True)


def optimizer() -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, STEPS)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(optax.add_decayed_weights(1e-3), lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)),
        optax.inject_hyperparams(optax.adamw)(learning_rate=schedule),
    )


@flax.struct.dataclass
class Extra:
    count: jax.Array
    name: str = flax.struct.field(pytree_node=False, default="extra")


@attrs.frozen
class Notes:
    seen: int
    last: jax.Array


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.relu(nn.Dense(8)(x)))


Trainer = tuple[Any, Callable[[Any], Any]]


def with_optax(seed: int) -> Trainer:
    tx = optimizer()
    key = jax.random.key(seed)
    params = {"w": jax.random.normal(key, (4, 1)), "b": jnp.zeros(1)}

    @jax.jit
    def update(params: Any, opt: Any, key: Any) -> Any:
        key, noise = jax.random.split(key)
        inputs = X + 0.01 * jax.random.normal(noise, X.shape)
        grads = jax.grad(lambda p: jnp.mean((inputs @ p["w"] + p["b"] - Y) ** 2))(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, key

    def step(state: Any) -> Any:
        params, opt, key = update(state["params"], state["opt"], state["key"])
        notes = Notes(state["notes"].seen + 1, params["b"])
        extra = state["extra"].replace(count=state["extra"].count + 1)
        return {"params": params, "opt": opt, "key": key, "notes": notes, "extra": extra}

    notes = Notes(0, jnp.zeros(1))
    return {
        "params": params,
        "opt": tx.init(params),
        "key": key,
        "notes": notes,
        "extra": Extra(jnp.zeros((), int)),
    }, step


def with_linen(seed: int) -> Trainer:
    net = Net()
    state = TrainState.create(apply_fn=net.apply, params=net.init(jax.random.key(seed), X)["params"], tx=optimizer())

    @jax.jit
    def step(state: TrainState) -> TrainState:
        grads = jax.grad(lambda p: jnp.mean((state.apply_fn({"params": p}, X) - Y) ** 2))(state.params)
        return state.apply_gradients(grads=grads)

    return state, step


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.scale = nnx.data(jax.random.normal(rngs.params(), (2,)))
        self.hidden = nnx.Linear(4, 8, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(nnx.relu(self.hidden(x))))


def with_nnx(seed: int) -> Trainer:
    model = NnxNet(nnx.Rngs(seed))
    graph, state = nnx.split((model, nnx.Optimizer(model, optimizer(), wrt=nnx.Param)))

    @jax.jit
    def step(state: Any) -> Any:
        model, opt = nnx.merge(graph, state)
        grads = nnx.grad(lambda m: jnp.mean((m(X) - Y) ** 2))(model)
        opt.update(model, grads)
        return nnx.state((model, opt))

    return state, step


def with_equinox(seed: int) -> Trainer:
    tx = optimizer()
    model = eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(seed))

    @eqx.filter_jit
    def update(model: Any, opt: Any) -> Any:
        grads = eqx.filter_grad(lambda m: jnp.mean((jax.vmap(m)(X) - Y) ** 2))(model)
        updates, opt = tx.update(grads, opt, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt

    def step(state: Any) -> Any:
        return dict(zip(("model", "opt"), update(state["model"], state["opt"]), strict=True))

    return {"model": model, "opt": tx.init(eqx.filter(model, eqx.is_array))}, step


def digest(state: Any) -> str:
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if isinstance(leaf, jax.Array):
            leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            found.update(repr((path, leaf.shape, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
    return found.hexdigest()


def train(library: str, root: str, first: int, last: int) -> None:
    state, step = {"optax": with_optax, "linen": with_linen, "nnx": with_nnx, "equinox": with_equinox}[library](
        0 if first == 0 else 1  # a resumed run has other values before the restore
    )
    with pawl.CheckpointManager(root) as manager:
        if first:
            found = manager.restore(state)
            assert found is not None and found.step == first, found
            assert jax.tree.structure(found.state) == jax.tree.structure(state) or library == "equinox"
            state = found.state
        for number in range(first + 1, last + 1):
            state = step(state)
            manager.save(number, state).wait()
        print(digest(state), flush=True)
        if last < STEPS:
            os._exit(9)  # killed


def sharded(root: str, rows: int, columns: int, save: bool) -> None:
    """Arrays over eight devices, in a mesh of rows x columns."""
    mesh = Mesh(np.array(jax.devices()).reshape(rows, columns), ("r", "c"))
    values = jnp.arange(16.0 * 24).reshape(16, 24)
    start = values if save else jnp.zeros_like(values)
    placed = jax.device_put(start, NamedSharding(mesh, PartitionSpec("r", "c")))
    tx = optax.adam(0.1)
    state = {"w": placed, "opt": jax.tree.map(lambda leaf: leaf + 1 if save else leaf, tx.init(placed))}
    with pawl.CheckpointManager(root) as manager:
        if save:
            manager.save(1, state).wait()
            return
        found = manager.restore(state)
    assert found is not None
    assert found.state["w"].sharding == placed.sharding, found.state["w"].sharding
    assert found.state["opt"][0].mu.sharding == state["opt"][0].mu.sharding
    assert (np.asarray(found.state["w"]) == np.asarray(values)).all()
    assert (np.asarray(found.state["opt"][0].mu) == 1).all() and type(found.state["opt"][0]) is type(state["opt"][0])
    print("same")


def module(root: str) -> None:
    """A module and its optimizer themselves, not their nnx.state()."""
    saved, live = (NnxNet(nnx.Rngs(seed)) for seed in (0, 1))
    first, second = (nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param) for model in (saved, live))
    first.update(saved, nnx.grad(lambda m: jnp.mean((m(X) - Y) ** 2))(saved))
    kernel, hidden = live.out.kernel, live.hidden
    with pawl.CheckpointManager(root) as manager:
        manager.save(1, {"model": saved, "optimizer": first}).wait()
        found = manager.restore({"model": live, "optimizer": second})
    assert found is not None and found.report == [], found
    assert found.state["model"] is live and found.state["optimizer"] is second
    assert live.out.kernel is kernel and live.hidden is hidden
    assert digest(nnx.state((live, second))) == digest(nnx.state((saved, first)))
    assert (live.scale == saved.scale).all() and (live(X) == saved(X)).all()
    print("same")


if __name__ == "__main__":
    if sys.argv[1] == "module":
        module(sys.argv[2])
    elif sys.argv[1] == "sharded":
        sharded(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "save")
    else:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
