# SPDX-License-Identifier: Apache-2.0
"""Trains a network with Flax and Optax, and resumes where it was stopped.

    pip install libpawl flax optax
    python train.py runs/flax            # stop it at any time, and start it again

The state is an ordinary TrainState: named tuples, arrays and the key of a random generator.
"""

from __future__ import annotations

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import pawl

STEPS = 200


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))


@jax.jit
def train_step(state: TrainState, key: jax.Array) -> tuple[TrainState, jax.Array, jax.Array]:
    key, here = jax.random.split(key)
    x = jax.random.uniform(here, (64, 1), minval=-3, maxval=3)

    def loss(params: object) -> jax.Array:
        return jnp.mean((state.apply_fn({"params": params}, x) - jnp.sin(x)) ** 2)

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), key, value


def main(root: str) -> None:
    net = Net()
    params = net.init(jax.random.key(0), jnp.zeros((1, 1)))["params"]
    schedule = optax.cosine_decay_schedule(1e-2, STEPS)
    train = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(schedule))
    state = {"train": train, "key": jax.random.key(1)}
    with pawl.CheckpointManager(root, num_to_keep=3) as manager:
        if found := manager.restore(state):
            state = found.state
            print(f"resumed at step {found.step}")
        for step in range(int(state["train"].step) + 1, STEPS + 1):
            train, key, loss = train_step(state["train"], state["key"])
            state = {"train": train, "key": key}
            if step % 20 == 0:
                manager.save(step, state, metrics={"loss": float(loss)})
                print(f"step {step}: loss {float(loss):.9f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
