"""Estimates for a mesh of eight devices that is not there, beside what XLA makes of the same step on one that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jax.sharding import AbstractMesh, Mesh
from torch import Tensor, nn

import jaten_ops
from jaten_ops import distributed
from jaten_ops.distributed.costs import traffic_of
from jaten_ops.distributed.estimates import Estimate

from .mesh_models import MODELS, OPTIMIZERS, batches, built, mesh_of, planned
from .models import ModelCase

ENDS = ("kept", "zeroed", "none")


def abstract(mesh: Mesh) -> AbstractMesh:
    """A mesh of the same axes, without devices."""
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names)


def step_of(
    case: ModelCase, module: nn.Module, optimizer: torch.optim.Optimizer, gradients: str
) -> Callable[[dict[str, Tensor]], Tensor]:
    """A training step, which keeps the gradients (and adds to them), zeroes them, or leaves none."""

    def step(inputs: dict[str, Tensor]) -> Tensor:
        loss = case.loss(module(**inputs), inputs)
        loss.backward()
        optimizer.step()
        if gradients != "kept":
            optimizer.zero_grad(set_to_none=gradients == "none")
        return loss.detach()

    return step


def measured(case: ModelCase, plan: str, optimizer: str, gradients: str, given: dict[str, Tensor]) -> Estimate:
    """The cost of the executable of a call, after one that made gradients and states."""
    module = planned(case.name, plan, built(case))
    batch = given if plan == "tensor" else distributed.distribute_batch(given, mesh_of(plan))
    step: Any = jaten_ops.compile_step(step_of(case, module, OPTIMIZERS[optimizer](module.parameters()), gradients))
    step(batch)
    executable = step.executable_for(batch)
    memory = executable.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    traffic = traffic_of(executable)
    return Estimate(memory.argument_size_in_bytes, outputs, memory.temp_size_in_bytes, traffic)


def estimated(
    case: ModelCase, plan: str, optimizer: str, gradients: str, given: dict[str, Tensor], mesh: Any
) -> Estimate:
    module = planned(case.name, plan, built(case), mesh)
    batch = given if plan == "tensor" else distributed.distribute_batch(given, mesh)
    step = step_of(case, module, OPTIMIZERS[optimizer](module.parameters()), gradients)
    return distributed.estimate(step, batch, mesh=mesh)


def compared(name: str, plan: str, optimizer: str, gradients: str) -> dict[str, Any]:
    """The estimates over both kinds of mesh, and what is measured."""
    torch._dynamo.reset()
    case, mesh = MODELS[name], mesh_of(plan)
    given = batches(case)[0]
    found = {
        "measured": measured(case, plan, optimizer, gradients, given),
        "absent": estimated(case, plan, optimizer, gradients, given, abstract(mesh)),
        "there": estimated(case, plan, optimizer, gradients, given, mesh),
    }
    return {kind: vars(cost) for kind, cost in found.items()}
