"""The contenders: eager PyTorch, `torch.compile` with a backend, torchax, and hand-written JAX.

Each gives one function for a job; a call of it does the whole job and waits for its end.

- `inference`: the output for one batch, `torch.no_grad()`, in eval mode.
- `training`: a step, that is forward, loss, backward and AdamW. In torch the model and its loss are what is compiled,
  and the optimizer is torch's own, eager and `foreach`; in JAX the whole step is one jitted function, to which weights
  and moments are donated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import jaten_ops

from . import torchax
from .models import Case
from .models.case import BETA1, BETA2, DECAY, EPSILON, RATE, Weights, jax_loss, torch_loss

# A call gives the output, or the loss, by which the contenders are checked against each other.
Job = Callable[[], Tensor | jax.Array | np.ndarray]
Maker = Callable[[Case, str, torch.dtype], Job]

SUBJECT = "jaten"
ON_JAX = "jaten on jax"
STEP = "jaten step"  # the whole step by compile_step, on tensors of jax
REFERENCE = "eager"
TORCHAX = "torchax"
CAPTURE = "capture alone"  # what Dynamo and AOTAutograd cost: its values are no results


def to_numpy(case: Case, value: Tensor | jax.Array | np.ndarray) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().float().numpy()
    return np.asarray(case.output_of_jax(value).astype(jnp.float32))


# ---- torch ---------------------------------------------------------------------------------------


def _nothing() -> Any:
    """A backend whose graphs compute nothing: they hand out the results of the first call."""

    def compiler(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def run(args: list[Any]) -> list[Any]:
            if not kept:
                kept.append(torch.fx.Interpreter(gm).run(*args))
            args.clear()
            return list(kept[0])

        run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd is told to hand over one list
        return run

    return aot_autograd(fw_compiler=compiler)


def torch_job(backend: Any, device: str = "cpu") -> Maker:
    def make(case: Case, job: str, dtype: torch.dtype) -> Job:
        module, inputs, target = case.make(dtype)
        module, inputs = module.to(device), [x.to(device) for x in inputs]
        if job == "inference":
            return _torch_inference(module.eval(), inputs, backend, device)
        assert target is not None
        return _torch_training(module.train(), inputs, target.to(device), backend, device)

    return make


def step_job(case: Case, job: str, dtype: torch.dtype) -> Job:
    module, inputs, target = case.make(dtype)
    module, inputs = module.to("jax").train(), [x.to("jax") for x in inputs]
    assert target is not None
    on_jax = target.to("jax")
    options = {"betas": (BETA1, BETA2), "eps": EPSILON, "weight_decay": DECAY, "foreach": True, "capturable": True}
    optimizer = torch.optim.AdamW(module.parameters(), lr=torch.tensor(RATE, device="jax"), **options)

    def update(*inputs: Tensor) -> Tensor:
        loss = torch_loss(module(*inputs), on_jax)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = jaten_ops.compile_step(update, module, optimizer)

    def step() -> Tensor:
        loss = compiled(*inputs)
        jaten_ops.to_jax(loss).block_until_ready()  # the parameters are results of the same executable
        return loss

    return step


def _torch_inference(module: torch.nn.Module, inputs: list[Tensor], backend: Any, device: str) -> Job:
    call = torch.compile(module, backend=backend) if backend else module

    def infer() -> Tensor:
        with torch.no_grad():
            return call(*inputs)

    def infer_on_jax() -> Tensor:
        output = infer()
        jaten_ops.to_jax(output).block_until_ready()
        return output

    return infer_on_jax if device == "jax" else infer


def _torch_training(module: torch.nn.Module, inputs: list[Tensor], target: Tensor, backend: Any, device: str) -> Job:
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=DECAY, foreach=True
    )

    def loss_of(*inputs: Tensor) -> Tensor:
        return torch_loss(module(*inputs), target)

    call = torch.compile(loss_of, backend=backend) if backend else loss_of
    parameters = list(module.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step_on_jax() -> Tensor:
        loss = step()
        jax.block_until_ready([jaten_ops.to_jax(p) for p in parameters])
        return loss

    return step_on_jax if device == "jax" else step


# ---- JAX -----------------------------------------------------------------------------------------


def jax_job(case: Case, job: str, dtype: torch.dtype) -> Job:
    parameters, buffers, inputs, target = case.make_jax(dtype)
    if job == "training":
        assert target is not None
        return _jax_training(case, parameters, buffers, inputs, target)
    return (_jax_stateful_inference if case.stateful else _jax_inference)(case, parameters, buffers, inputs)


def _jax_inference(case: Case, parameters: Weights, buffers: Weights, inputs: list[jax.Array]) -> Job:
    weights = parameters | buffers
    call = jax.jit(lambda weights, *inputs: case.jax_model(weights, None, *inputs))
    return lambda: call(weights, *inputs).block_until_ready()


def _jax_stateful_inference(case: Case, parameters: Weights, buffers: Weights, inputs: list[jax.Array]) -> Job:
    def model(parameters: Weights, buffers: Weights, *inputs: jax.Array) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        output = case.jax_model(parameters | buffers, updates, *inputs)
        return output, buffers | updates

    call = jax.jit(model, donate_argnums=1)

    def infer() -> jax.Array:
        nonlocal buffers
        output, buffers = call(parameters, buffers, *inputs)
        return output.block_until_ready()

    return infer


def adamw(parameters: Weights, gradients: Weights, state: dict[str, Any]) -> tuple[Weights, dict[str, Any]]:
    """AdamW (Loshchilov and Hutter, 2017) in torch's form."""
    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * jnp.square(g), state["second"], gradients)
    size = RATE / (1 - BETA1**count)
    root = jnp.sqrt(1 - BETA2**count)

    def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        step = size * m / (jnp.sqrt(v) / root + EPSILON)
        return (p * (1 - RATE * DECAY) - step).astype(p.dtype)

    return jax.tree.map(moved, parameters, first, second), {"count": count, "first": first, "second": second}


def _jax_training(case: Case, parameters: Weights, buffers: Weights, inputs: list[jax.Array], target: jax.Array) -> Job:
    def loss_of(parameters: Weights, buffers: Weights, inputs: list[jax.Array]) -> tuple[jax.Array, Weights]:
        updates: Weights = {}
        output = case.jax_model(parameters | buffers, updates, *inputs)
        return jax_loss(output, target), buffers | updates

    def update(parameters: Weights, buffers: Weights, state: dict[str, Any], inputs: list[jax.Array]) -> Any:
        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, buffers, inputs)
        parameters, state = adamw(parameters, gradients, state)
        return parameters, buffers, state, loss

    call = jax.jit(update, donate_argnums=(0, 1, 2))
    zeros = {"first": jax.tree.map(jnp.zeros_like, parameters), "second": jax.tree.map(jnp.zeros_like, parameters)}
    state: dict[str, Any] = {"count": jnp.zeros((), jnp.float32), **zeros}

    def step() -> jax.Array:
        nonlocal parameters, buffers, state
        parameters, buffers, state, loss = call(parameters, buffers, state, inputs)
        jax.block_until_ready(parameters)
        return loss.block_until_ready()

    return step


CONTENDERS: dict[str, Maker] = {
    REFERENCE: torch_job(None),
    "Inductor": torch_job("inductor"),
    SUBJECT: torch_job("jaten"),
    ON_JAX: torch_job("jaten", "jax"),
    STEP: step_job,
    TORCHAX: torchax.Elsewhere,
    "JAX": jax_job,
    CAPTURE: torch_job(_nothing()),
}


def takes_part(name: str, case: Case, job: str) -> bool:
    if name == STEP:
        return job == "training"
    if name in (TORCHAX, "JAX") and case.jax_model is None:
        return False
    if name == TORCHAX:
        return torchax.VARIABLE in os.environ
    return name != CAPTURE or (case.overhead and job == "inference")
