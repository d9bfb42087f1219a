"""Products of tensors over a mesh of eight devices, beside the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor

from jaten_ops import distributed

Shape = tuple[int, ...]
Axes = tuple[str | None, ...]
BATCHED, WHOLE = ("data", "model"), ()

# the product, and each operand's shape and the axes of its dimensions
CALLS: dict[str, tuple[Callable[..., Tensor], Sequence[tuple[Shape, Axes]]]] = {
    "heads": (torch.matmul, [((4, 8, 6, 3), BATCHED), ((4, 8, 3, 5), BATCHED)]),
    "fewer dimensions": (torch.matmul, [((4, 8, 6, 3), BATCHED), ((8, 3, 5), ("model",))]),
    "broadcast": (torch.matmul, [((4, 1, 6, 3), ("data",)), ((1, 8, 3, 5), (None, "model"))]),
    "a matrix": (torch.matmul, [((4, 8, 6, 3), BATCHED), ((3, 5), WHOLE)]),
    "a vector": (torch.matmul, [((4, 8, 6, 3), BATCHED), ((3,), WHOLE)]),
    "a matrix before": (torch.matmul, [((6, 3), WHOLE), ((4, 8, 3, 5), BATCHED)]),
    "linear": (F.linear, [((4, 8, 3), BATCHED), ((5, 3), WHOLE), ((5,), WHOLE)]),
    "linear, no bias": (F.linear, [((4, 8, 3), BATCHED), ((5, 3), WHOLE)]),
    "linear, transposed": (
        lambda x, *weights: F.linear(x.transpose(0, 1), *weights),
        [((4, 8, 3), BATCHED), ((5, 3), WHOLE), ((5,), WHOLE)],
    ),
    "linear, of merged rows": (
        lambda x, *weights: F.linear(x.permute(2, 0, 1, 3).reshape(8, 6), *weights).view(2, 4, 5),
        [((4, 2, 2, 3), ("data", None)), ((5, 6), WHOLE), ((5,), WHOLE)],
    ),
    "a reshape that is a view": (
        lambda x: (x.transpose(1, 2).reshape(4, -1) * 2, x.mT.reshape(-1, 3))[1],
        [((4, 1, 3), ("data",))],
    ),
    "bilinear": (
        F.bilinear,
        [((6, 8, 3), (None, "data")), ((6, 8, 4), (None, "data")), ((5, 3, 4), WHOLE), ((5,), WHOLE)],
    ),
    "bilinear, no bias": (F.bilinear, [((4, 8, 3), BATCHED), ((4, 8, 4), BATCHED), ((5, 3, 4), WHOLE)]),
    "instance_norm": (
        lambda x, *affine: F.instance_norm(x, None, None, *affine),
        [((4, 8, 3, 3), BATCHED), ((8,), ("model",)), ((8,), ("model",))],
    ),
    "instance_norm, statistics": (
        lambda x: F.instance_norm(x, torch.zeros_like(x[0, :, 0]), torch.ones_like(x[0, :, 0])),
        [((4, 8, 3), BATCHED)],
    ),
    "linear, nothing": (F.linear, [((0, 8, 3), WHOLE), ((5, 3), WHOLE)]),
}


def _derived(call: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """A product, the gradients of a loss, and those of a sum of these."""
    inputs = [t.detach().requires_grad_() for t in tensors]
    result = call(*inputs)
    first = torch.autograd.grad(result.sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    return [result, *first, *second]


def compared(name: str, way: str) -> None:
    """Asserts that a product over the mesh, eager or compiled, has the CPU's values, strides and gradients."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    call, operands = CALLS[name]
    mesh = distributed.make_mesh(data=2, model=4)
    on_cpu = [torch.randn(*shape, dtype=torch.float64) for shape, _ in operands]
    spread: list[Any] = [
        distributed.distribute_tensor(x, mesh, PartitionSpec(*axes))
        for x, (_, axes) in zip(on_cpu, operands, strict=True)
    ]
    expected = _derived(call, on_cpu)
    if way == "compile":  # a compiled backward pass has no second derivative
        compiled = torch.compile(call, backend="jaten", fullgraph=True)
        inputs = [t.detach().requires_grad_() for t in spread]
        result = compiled(*inputs)
        found = [result, *torch.autograd.grad(result.sin().sum(), inputs)]
    else:
        found = _derived(call, spread)
    for ours, theirs in zip(found, expected, strict=False):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
    assert found[0].stride() == expected[0].stride()
