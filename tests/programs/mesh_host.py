"""CPU tensors in compiled functions that compute over a mesh: as operands that are placed there, and as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jax.sharding import PartitionSpec
from torch import Tensor

from jaten_ops import distributed

from .mesh_tensors import mesh_2_4

P = PartitionSpec
_BOTH = P("data", "model")


PLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "to the CPU": lambda x: x.cpu(),
    "computed, then to the CPU": lambda x: (x * 2).cpu(),
    "to the CPU, then computed": lambda x: x.cpu() * 2 + 1,
    "in another order": lambda x: x.cpu().t(),
    "of another dtype": lambda x: x.to("cpu", torch.float64)[1:],
}
"""Functions of a tensor over the mesh."""

HELD: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "constrain": lambda x, mesh: distributed.constrain(x, mesh, _BOTH) * 2,
    "constrain of a result": lambda x, mesh: distributed.constrain(x + 1, mesh, _BOTH) * 2,
    "there and back": lambda x, mesh: distributed.constrain(x, mesh, _BOTH).sin().cpu(),
    "distribute_tensor": lambda x, mesh: distributed.distribute_tensor(x.detach(), mesh, _BOTH).cpu() * x,
    "distribute_batch": lambda x, mesh: distributed.distribute_batch({"x": x.detach()}, mesh)["x"].cpu() * x,
    "beside one that stays": lambda x, mesh: (distributed.constrain(x, mesh, _BOTH).sin().cpu() + x).cos(),
}
"""Functions of a CPU tensor and a mesh."""


def compared(kind: str, name: str) -> None:
    """Holds the value and the gradient of a compiled function against those of the same function."""
    torch._dynamo.reset()
    mesh, found = mesh_2_4(), []
    fn = PLACED[name] if kind == "placed" else lambda x: HELD[name](x, mesh)
    for call in (fn, torch.compile(fn, backend="jaten", fullgraph=True)):
        x = torch.linspace(-1, 1, 64).reshape(8, 8)
        x = (distributed.distribute_tensor(x, mesh, _BOTH) if kind == "placed" else x).requires_grad_()
        for _ in range(2):
            value = call(x)
        found.append([value.detach(), *torch.autograd.grad(value.square().sum(), x)])
    for expected, got in zip(*found, strict=True):
        assert got.device == expected.device and got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected.cpu())


ROWS = [("placed", name) for name in PLACED] + [("held", name) for name in HELD]
