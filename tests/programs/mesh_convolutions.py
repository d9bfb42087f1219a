"""Convolutions of images and kernels that are partitioned over a mesh, beside the same on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor

from jaten_ops import as_jax, distributed

Call = tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]

CONVOLUTIONS: dict[str, Call] = {
    "padded": (F.conv2d, (2, 4, 8, 8), (8, 4, 3, 3), {"padding": 1}),
    "strided": (F.conv2d, (2, 4, 8, 8), (8, 4, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": (F.conv2d, (2, 4, 8, 8), (8, 4, 3, 3), {"padding": 2, "dilation": 2}),
    "large kernel": (F.conv1d, (2, 4, 8), (8, 4, 4), {"stride": 2, "padding": 2}),
    "groups": (F.conv2d, (2, 8, 8, 8), (8, 4, 3, 3), {"padding": 1, "groups": 2}),
    "groups, one element": (F.conv1d, (4, 4, 4), (8, 2, 1), {"groups": 2}),
    "a kernel a channel": (F.conv2d, (2, 8, 8, 8), (8, 1, 3, 3), {"padding": 1, "groups": 8}),
    "transposed": (F.conv_transpose1d, (1, 3, 4), (3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transposed, groups": (F.conv_transpose2d, (2, 8, 4, 4), (8, 2, 2, 2), {"stride": 2, "groups": 4}),
}

# the dimensions of the image and of the kernel that "data" and "model" partition
PLACEMENTS = {
    "batch": ((0, None), (None, None)),
    "batch, outputs": ((0, None), (None, 0)),
    "channels": ((None, 1), (None, 1)),
    "outputs": ((None, None), (0, None)),
    "length": ((None, -1), (None, None)),
    "height, length": ((2, -1), (None, None)),
    "batch, length": ((0, -1), (None, 0)),
    "kernel": ((None, None), (None, -1)),
}


def _placed(tensor: Tensor, dims: tuple[int | None, int | None]) -> Tensor:
    """A leaf; an axis partitions nothing whose size it does not divide, or that the other one partitions."""
    entries: list[str | None] = [None] * tensor.dim()
    for dim, (axis, size) in zip(dims, (("data", 2), ("model", 4)), strict=True):
        if dim is not None and dim < tensor.dim() and entries[dim] is None and tensor.shape[dim] % size == 0:
            entries[dim] = axis
    placed: Tensor = distributed.distribute_tensor(tensor, _mesh(), PartitionSpec(*entries))
    return placed.detach().requires_grad_()


@functools.cache
def _mesh() -> Any:
    return distributed.make_mesh(data=2, model=4)


def compared(name: str, placement: str, way: str) -> list[list[Any]]:
    """The result and both gradients as nested lists, over a mesh and on the CPU."""
    fn, *shapes, given = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    here = [t.clone().requires_grad_() for t in plain]
    there = [_placed(t, dims) for t, dims in zip(plain, PLACEMENTS[placement], strict=True)]
    torch._dynamo.reset()
    run = torch.compile(fn, backend="jaten") if way == "compiled" else fn
    results = []
    for call, leaves in ((run, there), (fn, here)):
        result = call(*leaves, **given)
        gradients = torch.autograd.grad(result.square().sum(), leaves)
        results.append([t.detach().cpu().tolist() for t in (result, *gradients)])
    return results


def in_shardings(name: str) -> float:
    """The largest difference that `jax.jit` with shardings for plain arrays makes to a weight's gradient."""
    fn, *shapes, given = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    image, weight = (torch.randn(shape, generator=generator).numpy() for shape in shapes)
    gradient = jax.grad(as_jax(lambda x, w: fn(x, w, **given).square().sum()), argnums=1)
    with jax.set_mesh(_mesh()):
        along = PartitionSpec(*[None] * (image.ndim - 1), "model")
        found = jax.jit(gradient, in_shardings=(along, PartitionSpec()))(image, weight)
    expected = jax.jit(gradient)(image, weight)
    return float(abs(np.asarray(found) - np.asarray(expected)).max() / abs(np.asarray(expected)).max())
