"""The methods that tensors of the device have as torch's DTensors do: where a tensor's parts are, and moving them."""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax.sharding import AbstractMesh, NamedSharding

from ..arrays import attributes, bridge, carrier, local_parts, partitioned, placements
from ..arrays.abstract_arrays import AnyMesh
from ..arrays.observers import OBSERVERS, met, observers
from ..arrays.storage_views import View, onto_one_mesh
from ..errors import MissingValuesError, UnsupportedInputError
from ..kernel_base.platform import is_over_mesh
from ..ops.constraint import constrained_in_steps
from ..tracing import opaque_methods


@opaque_methods
class MeshMethods:
    """The part of `jaten_ops.Tensor` that is about several devices."""

    __slots__ = ()

    @property
    def sharding(self) -> Any:
        """The `jax.sharding.Sharding` of the tensor's array."""
        return _placed_array(self).sharding

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
        """All values on one device, differentiably. If several processes share the mesh, all of them must call it.

        In a program that is compiled it is the tensor itself: there each tensor is the whole one.
        """
        array = _met_array(self)
        if array is None or not partitioned.is_partitioned(array):
            return self  # type: ignore[return-value]  # it is a tensor
        found: torch.Tensor = _Gather.apply(self)
        return found

    def to_local(self) -> torch.Tensor:
        """The part on this process's first device of the mesh, differentiably; nothing is gathered.

        As a DTensor's it shares memory with the tensor: what is written to it goes to each copy of the part that this
        process has. Its gradient is placed as the tensor is, with zeros in the process's other parts.

        Raises:
            RuntimeError: in a program that is compiled, where the compiler chooses who has which part.
        """
        array = _met_array(self)
        if array is not None and not is_over_mesh(array):
            return self  # type: ignore[return-value]  # it is a tensor
        _placed_array(self)
        found: torch.Tensor = _Part.apply(self)
        return found


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


class _Part(torch.autograd.Function):
    """The part of a partitioned tensor on the first device; its gradient is partitioned as the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        array: Any = carrier.view_of(tensor).read()
        ctx.sharding, ctx.shape = array.sharding, array.shape
        view = local_parts.view_of_part(carrier.view_of(tensor), local_parts.first_part(array))
        found: torch.Tensor = type(tensor)(carrier.of(view))
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]  # torch says *Any
        return _Whole.apply(gradient, ctx.sharding, ctx.shape)


class _Whole(torch.autograd.Function):
    """A partitioned tensor of zeros but for one part, and for the copies of that."""

    @staticmethod
    def forward(ctx: Any, part: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> torch.Tensor:
        ctx.text = placements.layout_of(sharding.spec, sharding.mesh, "a gradient").text()
        array: Any = carrier.view_of(part).read()
        found: torch.Tensor = type(part)(carrier.wrap(local_parts.zeros_but_for_part(array, sharding, shape)))
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]  # torch says *Any
        return _Part.apply(constrained_by(gradient, ctx.text)), None, None


def _array_of(tensor: Any) -> Any:
    """The array of a tensor; None for one that Dynamo or AOTAutograd traces."""
    place = attributes.place_of(tensor)
    return place.storage.array if type(place) is View else place


def _met_array(tensor: Any) -> Any:
    """The array of a tensor whose values are used: a step that is traced takes them as an argument."""
    if OBSERVERS:
        met(None, (tensor,), None)
    return _array_of(tensor)


def _placed_array(tensor: Any) -> Any:
    """The array of a tensor that asks where it is."""
    array = _array_of(tensor)
    if array is None or isinstance(array, jax.core.Tracer):
        raise RuntimeError(
            "a tensor that a compiler traces has no sharding and no local part. Fix: ask outside the compiled function,"
            " or name the mesh"
        )
    return array


def own_mesh(tensor: Any) -> AnyMesh:
    """The mesh of a partitioned tensor."""
    array = _array_of(tensor)
    if not isinstance(array, jax.core.Tracer) and not isinstance(_placed_array(tensor).sharding, NamedSharding):
        raise UnsupportedInputError(
            "tensor", "one on a single device", "a mesh, or a tensor of distribute_tensor(tensor, mesh, placements)"
        )
    return partitioned.mesh_of(array)


def redistributed(tensor: torch.Tensor, mesh: Any = None, placements: Any = None) -> torch.Tensor:
    """`MeshMethods.redistribute`, for functions that Dynamo captures; without a mesh, that of the program's values."""
    text = placements_in_capture(mesh, placements)
    return torch.ops.jaten_distributed.constrain(tensor, text)  # type: ignore[no-any-return]  # torch has no types for operators


def placements_in_capture(mesh: Any, wanted: Any) -> str:
    """The layout over a mesh, or the placements without one, as text."""
    if mesh is None:
        return placements.placements_text(wanted, "placements")
    return placements.layout_of(wanted, partitioned.auto_mesh(mesh), "placements").text()


# as torch.compiler.assume_constant_result, which would import Dynamo
setattr(placements_in_capture, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute


def placed(tensor: torch.Tensor, mesh: Any, wanted: Any) -> torch.Tensor:
    """The values of a tensor of the device, placed over a mesh, differentiably."""
    layout = placements.layout_of(wanted, partitioned.auto_mesh(mesh), "placements")
    _bring(tensor, layout)
    return constrained_in_steps(tensor, layout.text())


def constrained_by(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """The values of a tensor of the device in the layout of a text, differentiably. Dynamo can trace it."""
    if torch.compiler.is_dynamo_compiling():
        return torch.ops.jaten_distributed.constrain(tensor, text)  # type: ignore[no-any-return]  # torch has no types for operators
    _bring(tensor, placements.layout_of_text(text))
    return constrained_in_steps(tensor, text)


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
    """Moves a tensor of one device to the mesh; a step that is traced for one that is not there moves nothing."""
    if isinstance(layout.mesh, AbstractMesh):
        if not observers():
            raise MissingValuesError
        return
    view = attributes.view_or_none(tensor)
    if view is not None and not isinstance(view.storage.root.array, jax.core.Tracer):
        sharding = layout.sharding(tuple(tensor.shape))
        partitioned.note(sharding)
        onto_one_mesh([view.storage.root], sharding)
