"""Programs over a mesh of devices: where their state and inputs lie, as data and as shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..arrays import carrier, partitioned
from ..arrays.abstract_arrays import is_abstract
from ..arrays.placements import mesh_axes_of
from ..errors import UnsupportedInputError
from ..tensor.tensor import array_of


def sharding_of(tensor: torch.Tensor) -> NamedSharding | None:
    """The sharding of a tensor over a mesh; None for one of a single device.

    Raises:
        UnsupportedInputError: it is over devices without a mesh of their own, or over a mesh that is not there.
    """
    if tensor.device.type != "jax" or not partitioned.is_partitioned(array := array_of(tensor.detach())):
        return None
    if not isinstance(array.sharding, NamedSharding) or is_abstract(array.sharding):
        got = f"a tensor of {array.sharding}"
        raise UnsupportedInputError(
            "a program to export", got, "tensors over a mesh of jaten_ops.distributed.make_mesh"
        )
    return array.sharding


def lies_over_mesh(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and sharding_of(value) is not None


def tie(tensor: torch.Tensor) -> Any:
    """The same for tensors that are tied."""
    where: Any = tensor.data_ptr() or id(tensor)
    if tensor.device.type == "jax":
        view = carrier.view_of(tensor)
        where = id(view.storage.root), view.offset
    return where, tensor.shape, tensor.stride(), tensor.dtype


def entry_of(name: str, shape: Sequence[Any], dtype: np.dtype, sharding: NamedSharding | None) -> dict[str, Any]:
    """An array in the signature: its open sizes have names, its partitioned dimensions axes of the mesh."""
    sizes = [size if isinstance(size, int) else str(size) for size in shape]
    partition = {} if sharding is None else {"partition": partition_of(sharding)}
    return {"name": name, "dtype": dtype.name, "shape": sizes, **partition}


def partition_of(sharding: NamedSharding) -> list[list[str]]:
    """For each dimension the axes that partition it."""
    return [list(mesh_axes_of(entry)) for entry in sharding.spec]


def mesh_over(shardings: Sequence[NamedSharding | None]) -> Any:
    """The mesh of a program.

    Raises:
        UnsupportedInputError: there are several.
    """
    found = {s.mesh: None for s in shardings if s is not None}
    if len(found) > 1:
        raise UnsupportedInputError("a program to export", f"tensors over {' and '.join(map(str, found))}", "one mesh")
    return next(iter(found), None)


def spec_over(mesh: Mesh | None, shape: Sequence[Any], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """The stand-in for an array when a program is traced: over a mesh each device has a copy by default."""
    whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding or whole)


def updated_in_place(function: Callable[..., list[Any]], shardings: Sequence[Any]) -> Callable[..., list[Any]]:
    """A function whose last results, new values of its state, lie where the old ones do."""

    def call(*args: Any) -> list[Any]:
        results = function(*args)
        count = len(results) - len(shardings)
        updated = map(jax.lax.with_sharding_constraint, results[count:], shardings)
        return [*results[:count], *updated]

    return call
