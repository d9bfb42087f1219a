"""Who runs the models: eager PyTorch, `torch.compile` with a backend, and hand-written JAX.

Each gives one function for a job; a call of it does the whole job and waits for its end.

- `inference`: the output for one batch.
- `training`: a step, that is forward, the mean squared output as the loss, backward, and SGD. In torch the model and
  its loss are what is compiled, and the optimizer is torch's own, eager; in JAX the whole step is one jitted function,
  to which the weights are donated.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from .models import Model, Weights, make_torch

RATE = 0.01
# A call gives the output, or the loss, by which the contenders are checked against each other.
Job = Callable[[], Tensor | jax.Array]


def torch_inference(model: Model, backend: str | None) -> Job:
    module, x = make_torch(model)
    module.eval()
    call = torch.compile(module, backend=backend) if backend else module

    def infer() -> Tensor:
        with torch.no_grad():
            return call(x)

    return infer


def torch_training(model: Model, backend: str | None) -> Job:
    module, x = make_torch(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def loss_of(x: Tensor) -> Tensor:
        return module(x).square().mean()

    call = torch.compile(loss_of, backend=backend) if backend else loss_of

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def jax_inference(model: Model) -> Job:
    parameters, buffers, x = _jax_arrays(model)
    weights = parameters | buffers
    call = jax.jit(lambda weights, x: model.jax_model(weights, x, False)[0])
    return lambda: call(weights, x).block_until_ready()


def jax_training(model: Model) -> Job:
    parameters, buffers, x = _jax_arrays(model)

    def loss_of(parameters: Weights, buffers: Weights, x: jax.Array) -> tuple[jax.Array, Weights]:
        output, changed = model.jax_model(parameters | buffers, x, True)
        return jnp.square(output).mean(), buffers | changed

    def update(parameters: Weights, buffers: Weights, x: jax.Array) -> tuple[Weights, Weights, jax.Array]:
        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, buffers, x)
        return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), buffers, loss

    call = jax.jit(update, donate_argnums=(0, 1))

    def step() -> jax.Array:
        nonlocal parameters, buffers
        parameters, buffers, loss = call(parameters, buffers, x)
        jax.block_until_ready(parameters)
        return loss.block_until_ready()

    return step


def _jax_arrays(model: Model) -> tuple[Weights, Weights, jax.Array]:
    """Parameters, floating point buffers and input of the torch module, in memory of JAX's own."""
    module, x = make_torch(model)
    parameters = {name: jnp.array(value.detach().numpy()) for name, value in module.named_parameters()}
    buffers = {n: jnp.array(value.numpy()) for n, value in module.named_buffers() if value.is_floating_point()}
    return parameters, buffers, jnp.array(x.numpy())


CONTENDERS: dict[str, dict[str, Callable[[Model], Job]]] = {
    "inference": {
        "jaten": lambda model: torch_inference(model, "jaten"),
        "eager": lambda model: torch_inference(model, None),
        "Inductor": lambda model: torch_inference(model, "inductor"),
        "JAX": jax_inference,
    },
    "training": {
        "jaten": lambda model: torch_training(model, "jaten"),
        "eager": lambda model: torch_training(model, None),
        "Inductor": lambda model: torch_training(model, "inductor"),
        "JAX": jax_training,
    },
}
