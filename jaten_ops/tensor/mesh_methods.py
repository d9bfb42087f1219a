"""The methods that tensors of the device have as torch's DTensors do: where a tensor's parts are, and moving them."""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax.sharding import Mesh, NamedSharding

from ..arrays import attributes, bridge, carrier, partitioned, placements
from ..arrays.storage_views import View, onto_one_mesh
from ..errors import UnsupportedInputError


class MeshMethods:
    """The part of `jaten_ops.Tensor` that is about several devices."""

    __slots__ = ()

    @property
    def sharding(self) -> Any:
        """The sharding of the tensor's array: a `jax.sharding.Sharding`."""
        return _array_of(self).sharding

    @property
    def placements(self) -> tuple[Any, ...]:
        """torch's placement for each axis of the mesh, as `(Shard(0), Replicate())`; empty on one device."""
        sharding = self.sharding
        return placements.placements_of(sharding) if isinstance(sharding, NamedSharding) else ()

    def redistribute(self, mesh: Any = None, placements: Any = None) -> torch.Tensor:
        """The values with other placements, differentiably.

        Args:
            mesh: a `jax.sharding.Mesh`; None for the tensor's own.
            placements: as `jaten_ops.distributed.distribute_tensor` takes them; None for a copy on each device.

        Raises:
            UnsupportedInputError: placements that do not fit, or no mesh for a tensor of one device.
        """
        return placed(self, own_mesh(self) if mesh is None else mesh, placements)  # type: ignore[arg-type]  # it is a tensor

    def full_tensor(self) -> torch.Tensor:
        """All values on one device, differentiably. If several processes share the mesh, all of them must call it."""
        if not partitioned.is_partitioned(_array_of(self)):
            return self  # type: ignore[return-value]  # it is a tensor
        found: torch.Tensor = _Gather.apply(self)
        return found

    def to_local(self) -> torch.Tensor:
        """The part on this process's first device of the mesh, differentiably."""
        array = _array_of(self)
        if not partitioned.is_partitioned(array):
            return self  # type: ignore[return-value]  # it is a tensor
        shape = tuple(self.shape)  # type: ignore[attr-defined]  # it is a tensor
        part = array.sharding.devices_indices_map(shape)[partitioned.first_device(array.sharding)]
        return self.full_tensor()[part]


class _Gather(torch.autograd.Function):
    """A partitioned tensor on one device; its gradient is partitioned as the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        array: Any = carrier.view_of(tensor).read()
        ctx.text = placements.layout_of(array.sharding.spec, own_mesh(tensor), "a gradient").text()
        gathered: torch.Tensor = type(tensor)(carrier.wrap(bridge.gathered(array)))
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch says *Any
        return constrained_by(gradient, ctx.text)


def _array_of(tensor: Any) -> Any:
    place = attributes.place_of(tensor)
    if place is None:
        raise RuntimeError("a tensor that a compiler traces has no sharding. Fix: ask outside the compiled function")
    return place.storage.array if type(place) is View else place


def own_mesh(tensor: Any) -> Mesh:
    """The mesh of a partitioned tensor."""
    sharding = _array_of(tensor).sharding
    if not isinstance(sharding, NamedSharding):
        raise UnsupportedInputError(
            "tensor", "one on a single device", "a mesh, or a tensor of distribute_tensor(tensor, mesh, placements)"
        )
    mesh: Any = sharding.mesh
    return mesh  # type: ignore[no-any-return]  # a concrete one, as an array's is


def placed(tensor: torch.Tensor, mesh: Any, wanted: Any) -> torch.Tensor:
    """The values of a tensor of the device, placed over a mesh, differentiably."""
    return constrained(tensor, placements.layout_of(wanted, partitioned.auto_mesh(mesh), "placements"))


def constrained(tensor: torch.Tensor, layout: placements.Layout) -> torch.Tensor:
    """The values of a tensor of the device in a layout, by the operator `jaten_distributed::constrain`."""
    _bring(tensor, layout)
    return torch.ops.jaten_distributed.constrain(tensor, layout.text())  # type: ignore[no-any-return]  # torch has no types for operators


def constrained_by(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """`constrained` for a layout's text, which Dynamo can trace."""
    if not torch.compiler.is_compiling():
        _bring(tensor, placements.layout_of_text(text))
    return torch.ops.jaten_distributed.constrain(tensor, text)  # type: ignore[no-any-return]  # torch has no types for operators


class GradientPlacer:
    """A hook of a parameter, which places its gradient as the parameter is."""

    __torch_unserializable__ = True  # `torch.save` would warn that it does not keep it

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return constrained_by(gradient, self.text) if gradient.device.type == "jax" else gradient


def place_gradient(parameter: torch.Tensor, text: str) -> None:
    """Places the gradients of a leaf, from now on, in the layout of a text."""
    for hook in (parameter._backward_hooks or {}).values():
        if isinstance(hook, GradientPlacer):
            hook.text = text
            return
    requires_grad = parameter.requires_grad
    parameter.requires_grad_(True).register_hook(GradientPlacer(text))
    parameter.requires_grad_(requires_grad)


def gradient_layout(tensor: torch.Tensor) -> str | None:
    """The text of the layout in which a leaf's gradients are placed; None if they are where they are made."""
    hooks = (tensor._backward_hooks or {}).values()
    return next((hook.text for hook in hooks if isinstance(hook, GradientPlacer)), None)


def copy_placer(parameter: torch.Tensor, copied: torch.Tensor) -> None:
    """Places the gradients of a copy as those of the parameter are; torch copies no hooks."""
    text = gradient_layout(parameter)
    if text is not None:
        place_gradient(copied, text)


def _bring(tensor: torch.Tensor, layout: placements.Layout) -> None:
    """Moves a tensor of one device to the mesh."""
    view = attributes.view_or_none(tensor)
    if view is not None and not isinstance(view.storage.root.array, jax.core.Tracer):
        sharding = layout.sharding(tuple(tensor.shape))
        partitioned.note(sharding)
        onto_one_mesh([view.storage.root], sharding)
