"""Operands of ATen's operators on the device `jax`: their carriers and their arrays."""

from __future__ import annotations

from typing import Any

import jax
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import autograd
from ..arrays import attributes, bridge, carrier, partitioned
from ..arrays.observers import OBSERVERS
from ..arrays.storage_views import View, onto_one_mesh
from ..tensor.operand_values import is_traced, takes_constants
from ..tensor.tensor import Tensor, array_of, from_array

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The dtypes of operators that stand for several of ATen's: some of its parts refuse others."""


def is_on_jax(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "jax"


def are_eager(*tensors: Any) -> bool:
    """True for tensors of jaten's own class with values, if nothing records, watches or transforms operators.

    Then one operator may stand for several of ATen's. Those over a mesh have others.
    """
    return not (
        OBSERVERS
        or partitioned.MET
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
        or autograd.is_transformed()
    ) and all(map(_is_concrete, tensors))


def _is_concrete(tensor: Any) -> bool:
    if type(tensor) is not Tensor:
        return False
    place = attributes.place_of(tensor)
    array: Any = place.storage.root.array if type(place) is View else place
    return array is not None and not isinstance(array, jax.core.Tracer)


def to_carrier(tensor: torch.Tensor) -> torch.Tensor:
    """The carrier of an operand: a wrapper's own, a carrier itself, or a new one for a 0-d CPU tensor."""
    if isinstance(tensor, Tensor):
        return tensor._carrier
    if is_on_jax(tensor) or is_traced(tensor):
        return tensor
    return carrier.wrap(array_of(tensor))


def unwrapped(value: Any) -> Any:
    """An argument with carriers in place of tensors."""
    if isinstance(value, torch.Tensor):
        return to_carrier(value)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [unwrapped(v) for v in value]
    return value


def wrapped(value: Any) -> Any:
    """A result with a `Tensor` in place of each carrier."""
    if isinstance(value, torch.Tensor):
        return Tensor(value) if is_on_jax(value) else value
    if isinstance(value, list | tuple):
        return type(value)(wrapped(v) for v in value)
    return value


def borrowed_copy(tensor: torch.Tensor) -> Any:
    """The array of any tensor; a copy of a tensor in torch's memory, which torch may overwrite."""
    if is_on_jax(tensor):
        return array_of(tensor)
    return bridge.uncommitted(tensor.clone(memory_format=torch.contiguous_format))


def onto_device(value: Any) -> Any:
    """A tensor, or a list of tensors, moved from the CPU to the device."""
    if isinstance(value, list | tuple):
        return [onto_device(v) for v in value]
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.to("jax") if is_traced(value) else from_array(borrowed_copy(value))
    return value


def with_constants(args: Any) -> Any:
    """Arguments, with those on the device that are constants on the CPU: ATen's checks of devices know no constants."""
    return [onto_device(value) for value in args] if takes_constants() else args


def on_one_mesh(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The arguments of a call, with tensors of one device moved to the mesh over which others are partitioned.

    Returns:
        The arguments; None if they are on one mesh already, or on none.

    Raises:
        RuntimeError: tensors are on two meshes, or on other devices than the mesh.
    """
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if all(partitioned.is_partitioned(array_of(t)) for t in given):
        partitioned.common_sharding(array_of(t) for t in given)
        return None
    mesh = onto_one_mesh([carrier.view_of(t).storage.root for t in given if is_on_jax(t)])
    if mesh is None:
        return None

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if is_on_jax(tensor) else from_array(partitioned.beside(array_of(tensor), (), mesh))

    return tree_map_only(torch.Tensor, moved, (args, kwargs))  # type: ignore[no-any-return]  # pytrees have no types
