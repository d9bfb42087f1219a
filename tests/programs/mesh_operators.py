"""PyTorch's samples with their tensors partitioned over a mesh of two axes, beside the same calls on the CPU."""

from __future__ import annotations

import functools
import sys

import torch
import torch.testing._internal.opinfo.core as opinfo
from jax.sharding import Mesh, PartitionSpec
from torch import Tensor

from jaten_ops import distributed

# Sizes that the axes divide, in place of 5, 10 and 20; the modules of samples take them when they are imported.
assert "torch.testing._internal.common_methods_invocations" not in sys.modules
opinfo.S = opinfo.M = 8
opinfo.L = 16

from ..harness import on_device  # noqa: E402  # after the sizes are set

AXES = {"data": 2, "model": 4}


@functools.cache
def _mesh() -> Mesh:
    return distributed.make_mesh(**AXES)


def _placed(axes: str, tensor: Tensor) -> Tensor:
    """Along "data" by the first dimension that it divides, along "model" by the last one of the others."""
    if tensor.layout is not torch.strided:
        return tensor.to("jax")
    dims = dict(enumerate(tensor.shape))
    entries: list[str | None] = [None] * tensor.dim()
    for axis, order in (("data", list(dims)), ("model", list(reversed(dims)))):
        for dim in order:
            if axis in axes and entries[dim] is None and dims[dim] and dims[dim] % AXES[axis] == 0:
                entries[dim] = axis
                break
    placed: Tensor = distributed.distribute_tensor(tensor, _mesh(), PartitionSpec(*entries))
    return placed


def failures(name: str, most: str, axes: str) -> list[str]:
    """Differences from the CPU in values, errors and gradients of samples of an OpInfo, in double precision.

    Args:
        name: of the OpInfo.
        most: so many samples.
        axes: those of the mesh that partition tensors; by any other one they are repeated.
    """
    return on_device.device(name, torch.float64, int(most), functools.partial(_placed, axes)).failures
