"""Trains a multilayer perceptron with JAX. A unit is a step.

One process uses all devices that it sees: each has the weights and its part of the batch.

python jax_train.py ...        (protocol.py has the options)
"""

from __future__ import annotations

import os

# JAX would take three quarters of the device's memory at its start, and a neighbour's with it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import time
from collections import deque
from typing import Any

import protocol

WIDTH, LAYERS, BATCH = 2048, 8, 1024
IN_FLIGHT = 2


def main() -> None:
    o = protocol.parser(__doc__).parse_args()
    if o.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    width = 64 if o.tiny else WIDTH
    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    initial = [jax.random.normal(key, (width, width), jnp.bfloat16) * width**-0.5 for key in keys[:-1]]
    data = jax.random.normal(keys[-1], (16 if o.tiny else BATCH, width), jnp.bfloat16)
    if jax.local_device_count() > 1:
        mesh = Mesh(jax.local_devices(), ("batch",))
        initial = jax.device_put(initial, NamedSharding(mesh, PartitionSpec()))
        data = jax.device_put(data, NamedSharding(mesh, PartitionSpec("batch")))

    def loss_of(weights: list[Any], x: Any) -> Any:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return jnp.mean((y - x).astype(jnp.float32) ** 2)

    @jax.jit
    def step(weights: list[Any], x: Any) -> tuple[list[Any], Any]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], loss

    weights = initial
    for _ in range(5):
        weights, loss = step(weights, data)
    loss.block_until_ready()
    for window in protocol.windows(o):
        weights = initial
        pending: deque[Any] = deque()
        losses = []
        while not window.over():
            weights, loss = step(weights, data)
            pending.append(loss)
            if len(pending) > IN_FLIGHT:
                losses.append(pending.popleft().block_until_ready())
                window.unit(at=time.monotonic_ns())
        for loss in pending:
            losses.append(loss.block_until_ready())
            window.unit()
        for loss in jax.device_get(losses):
            window.digest(loss.tobytes())


if __name__ == "__main__":
    main()
