"""The ways in which two processes run a program, and how their findings are compared with plain torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from ..harness.rank_processes import WORLD

_MESHES: dict[tuple[str, tuple[int, ...]], DeviceMesh] = {}


@dataclass(frozen=True)
class Way:
    """A device, and whether what a program marks is compiled there."""

    device: str
    is_compiled: bool

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(fn, backend="jaten") if self.is_compiled else fn

    def mesh(self, *sizes: int) -> DeviceMesh:
        """The mesh of the two processes; it is made once, as programs do."""
        key = self.device, sizes or (WORLD,)
        if key not in _MESHES:
            names = ("outer", "inner")[: len(key[1])]
            _MESHES[key] = init_device_mesh(*key, mesh_dim_names=names)
        return _MESHES[key]


PLAIN = Way("cpu", False)
WAYS = {
    "compiled on CPU tensors": Way("cpu", True),
    "eager on the device": Way("jax", False),
    "compiled on the device": Way("jax", True),
}


def whole(value: Any) -> Any:
    """Values on the CPU, with all parts of those that have parts."""

    def one(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return whole(list(value.state_dict().values()))
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, DTensor):
            value = value.full_tensor()
        value = value.wait() if isinstance(value, AsyncCollectiveTensor) else value
        return value.detach().cpu().clone()

    return tree_map(one, value)


def trained(
    way: Way,
    module: nn.Module,
    batches: Iterable[Any],
    *,
    foreach: bool | None = None,
    wrap: bool = True,
    loss: Callable[[Any], torch.Tensor] = lambda out: out.float().square().mean(),
) -> list[Any]:
    """The losses of a few steps, and the parameters and buffers after them."""
    optimizer = torch.optim.SGD(
        module.parameters(), 0.1, momentum=0.9, foreach=foreach
    )  # Adam magnifies gradients near 0
    call = way(module) if wrap else module
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        value = loss(call(batch))
        value.backward()
        optimizer.step()
        losses.append(whole(value))
    return [losses, whole(module)]
