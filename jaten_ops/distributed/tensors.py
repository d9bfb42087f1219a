"""Tensors over a mesh: made of whole ones, of a batch, and placed within programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding
from torch.distributed.tensor import Replicate, Shard
from torch.utils._pytree import tree_map, tree_map_only

from ..arrays import bridge, partitioned
from ..arrays.abstract_arrays import AbstractArray, AnyMesh, is_abstract
from ..arrays.attributes import has_no_values
from ..arrays.observers import is_in_program
from ..arrays.placements import TORCHS, Layout, Placements, layout_of
from ..device import privateuse1
from ..errors import MissingValuesError, UnsupportedInputError
from ..tensor.mesh_methods import constrained_by
from ..tensor.tensor import array_of, from_array
from ..xla.x64 import Enabled

TORCHS.update(Shard=Shard, Replicate=Replicate)


def distribute_tensor(tensor: torch.Tensor, mesh: AnyMesh, placements: Placements = None) -> torch.Tensor:
    """A tensor whose parts lie on the devices of a mesh.

    Args:
        tensor: of any shape and dtype, on the CPU, on the device `jax`, or on "meta": then it is made of zeros, each
            part on its own device. It is a leaf of autograd's graph.
        mesh: a mesh of `make_mesh`, or any `jax.sharding.Mesh`. Over an `AbstractMesh`, which is not there, the new
            tensor has no values: see `estimate`.
        placements: a `jax.sharding.PartitionSpec`; a list with torch's `Shard(dim)` or `Replicate()` for each axis of
            the mesh; or a dict from axes to them. None: each device has a copy. An axis that does not divide a
            dimension is left out there: its devices have copies.

    Returns:
        A new leaf on the device `jax`, with the same shape, dtype, values and `requires_grad`. Its `sharding` and
        `placements` tell where it is; `full_tensor()`, `to_local()` and `redistribute(...)` move it. In a program that
        is compiled it is placed at that point.

    Raises:
        UnsupportedInputError: placements that do not fit the mesh or the tensor.
        RuntimeError: the tensor is not a leaf; `constrain` places such tensors.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> x = distributed.distribute_tensor(torch.arange(8.0), mesh, jax.sharding.PartitionSpec("data"))
        >>> x.sum().item(), x.full_tensor().shape
        (28.0, torch.Size([8]))
    """
    if not tensor.is_leaf:
        raise RuntimeError("distribute_tensor: the tensor is not a leaf. Fix: use jaten_ops.distributed.constrain")
    if is_in_program():
        placed = constrain(tensor.detach(), mesh, placements)
        return placed.requires_grad_() if tensor.requires_grad else placed
    privateuse1.require_slot()
    layout = layout_of(placements, partitioned.auto_mesh(mesh), "distribute_tensor")
    return from_array(distributed_array(tensor, layout)).requires_grad_(tensor.requires_grad)


def distributed_array(tensor: torch.Tensor, layout: Layout, what: str = "distribute_tensor") -> Any:
    """The values of a tensor in a layout, without a copy of all of them on one device."""
    sharding = layout.sharding(tuple(tensor.shape), what)
    partitioned.note(sharding)
    if is_abstract(sharding):
        return AbstractArray(tuple(tensor.shape), bridge.to_numpy_dtype(tensor.dtype), sharding)
    if tensor.device.type == "meta":
        return distributed_zeros(tuple(tensor.shape), bridge.to_numpy_dtype(tensor.dtype), sharding)
    if has_no_values(tensor):
        raise MissingValuesError
    if tensor.device.type == "jax":
        return partitioned.put_over(array_of(tensor.detach()), sharding)
    return bridge.borrow(tensor.detach(), sharding)


def distributed_zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: NamedSharding) -> jax.Array:
    """Zeros that each device makes for itself."""
    with Enabled():
        return jax.jit(lambda: jax.numpy.zeros(shape, dtype), out_shardings=sharding)()


def constrain(tensor: torch.Tensor, mesh: AnyMesh, placements: Placements = None) -> torch.Tensor:
    """The values of a tensor, placed over a mesh at this point of a program; its gradient is placed likewise.

    It holds in eager mode, in functions that `torch.compile` compiles, in `compile_step` and in `as_jax`.

    Args:
        tensor: of any shape and dtype; one on the CPU moves to the device `jax`.
        mesh, placements: as for `distribute_tensor`. In a `PartitionSpec`, `PartitionSpec.UNCONSTRAINED` leaves a
            dimension to the compiler.

    Returns:
        A tensor on the device `jax` with the same shape, dtype and values.

    Raises:
        UnsupportedInputError: placements that do not fit the mesh or the tensor.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> x = torch.ones(8, 2, device="jax", requires_grad=True)
        >>> distributed.constrain(x, mesh, {"data": None}).sum().backward()
        >>> x.grad.sum().item()
        16.0
    """
    return constrained_by(tensor if tensor.device.type == "jax" else tensor.to("jax"), _text(mesh, placements))


def _text(mesh: AnyMesh, placements: Placements) -> str:
    return layout_of(placements, partitioned.auto_mesh(mesh), "constrain").text()


def _batch_text(dims: int, mesh: AnyMesh, axis: str | tuple[str, ...]) -> str:
    if jax.process_count() > 1:
        raise UnsupportedInputError(
            "distribute_batch", "a call in a program of several processes", "one before it, with each process's part"
        )
    return _text(mesh, jax.sharding.PartitionSpec(axis) if dims else None)


for _fn in (_text, _batch_text):  # as torch.compiler.assume_constant_result, which would import Dynamo
    setattr(_fn, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute


def distribute_batch(tree: Any, mesh: AnyMesh, axis: str | tuple[str, ...] = "data") -> Any:
    """A batch whose first dimension is partitioned over an axis of a mesh.

    Args:
        tree: tensors or NumPy arrays of any shape and dtype, in any structure; other values stay as they are. In one
            process the whole batch; with several, each process passes its own part, and the batch is all of them in
            the order of the processes.
        mesh: the mesh, or an `AbstractMesh`, as for `distribute_tensor`.
        axis: the axis, or several of them.

    Returns:
        The same structure with tensors on the device `jax`. A batch that the axis does not divide, and 0-d tensors,
        are copied to each device.

    Raises:
        UnsupportedInputError: an axis that the mesh does not have.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> distributed.distribute_batch({"x": torch.ones(16, 3)}, mesh)["x"].shape
        torch.Size([16, 3])
    """
    if is_in_program():

        def placed(value: torch.Tensor) -> torch.Tensor:
            return constrained_by(value.to("jax"), _batch_text(value.dim(), mesh, axis))

        return tree_map_only(torch.Tensor, placed, tree)
    mesh = partitioned.auto_mesh(mesh)
    spec = jax.sharding.PartitionSpec(axis)

    def one(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor):
            return value
        layout = layout_of(spec if value.dim() else None, mesh, "distribute_batch")
        if jax.process_count() == 1:
            return from_array(distributed_array(value, layout))
        return from_array(_of_processes(value, layout))

    return tree_map(one, tree)


def _of_processes(part: torch.Tensor, layout: Layout) -> jax.Array:
    """The array of which each process has a part."""
    shape = (part.shape[0] * jax.process_count(), *part.shape[1:]) if part.dim() else ()
    sharding = layout.sharding(shape, "distribute_batch")
    partitioned.note(sharding)
    with Enabled():
        return jax.make_array_from_process_local_data(sharding, part.detach().cpu().numpy(), shape)
