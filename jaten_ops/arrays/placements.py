"""Placements of tensors over a mesh of devices, in torch's words and in JAX's.

torch says for each axis of a mesh what it does to a tensor: `Shard(dim)`, or `Replicate()`. JAX says for each dimension
of an array by which axes it is partitioned: a `PartitionSpec`. Here both become a `Layout`, which also has a text, so
that it can be the argument of an operator.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..errors import UnsupportedInputError
from .abstract_arrays import AnyMesh

Placements = PartitionSpec | Sequence[Any] | Mapping[str, Any] | None
"""A `PartitionSpec`; a placement of torch's for each axis of the mesh; a dict from axis to placement; None: copies."""

_OPEN = PartitionSpec.UNCONSTRAINED


@dataclass(frozen=True)
class Layout:
    """Dimensions and the axes of a mesh that partition them.

    Attributes:
        mesh: the mesh, with Auto axes; an `AbstractMesh` is one that is not there.
        dims: pairs of a dimension, which may be negative, and the names of axes; None for those that the compiler
            chooses.
        is_open: whether the compiler chooses for all other dimensions; if not, they are whole on each device.
    """

    mesh: AnyMesh
    dims: tuple[tuple[int, tuple[str, ...] | None], ...]
    is_open: bool = False

    def sharding(self, shape: Sequence[int], what: str = "tensor") -> NamedSharding:
        """The sharding of a tensor of a shape.

        An axis whose size does not divide a dimension is left out there: each of its devices has a copy.

        Raises:
            UnsupportedInputError: a dimension that the tensor does not have.
        """
        entries: list[list[str] | None] = [None if self.is_open else [] for _ in shape]
        for dim, axes in self.dims:
            if not -len(shape) <= dim < len(shape):
                raise UnsupportedInputError(what, f"a placement of dimension {dim}", f"one of its {len(shape)}")
            entries[dim] = None if axes is None else [*(entries[dim] or ()), *axes]
        spec = list(map(self._dividing, entries, shape))
        while spec and spec[-1] is None:  # as JAX writes those of results: equal ones are to compare equal
            spec.pop()
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def _dividing(self, axes: list[str] | None, size: int) -> Any:
        """The entry of a PartitionSpec for a dimension."""
        if axes is None:
            return _OPEN
        found = []
        for axis in axes:
            if size and size % self.mesh.shape[axis] == 0:
                size //= self.mesh.shape[axis]
                found.append(axis)
        return tuple(found) if len(found) > 1 else found[0] if found else None

    def text(self) -> str:
        """The layout as text: `layout_of_text` is its inverse, in any process."""
        is_there = isinstance(self.mesh, Mesh)
        ids = [device.id for device in self.mesh.devices.flat] if is_there else None
        return json.dumps([list(self.mesh.shape.items()), ids, self.dims, self.is_open], separators=(",", ":"))


@functools.cache
def layout_of_text(text: str) -> Layout:
    """The layout that a text describes."""
    axes, ids, dims, is_open = json.loads(text)
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    auto = (AxisType.Auto,) * len(axes)
    mesh: AnyMesh
    if ids is None:
        mesh = AbstractMesh(sizes, names, axis_types=auto)
    else:
        known = {device.id: device for device in jax.devices()}
        mesh = Mesh(np.array([known[i] for i in ids]).reshape(sizes), names, axis_types=auto)
    return Layout(mesh, tuple((dim, names and tuple(names)) for dim, names in dims), is_open)


def layout_of(placements: Placements, mesh: AnyMesh, what: str) -> Layout:
    """The layout that placements mean.

    Args:
        placements: see `Placements`.
        mesh: the mesh, with Auto axes.
        what: the tensor, for errors.

    Raises:
        UnsupportedInputError: an axis that the mesh does not have, or twice; another kind of placement.
    """
    dims = _dims_of_spec(placements) if isinstance(placements, PartitionSpec) else _dims_of_axes(placements, mesh, what)
    named = [axis for _, axes in dims for axis in axes or ()]
    for axis in named:
        _require_axis(axis, mesh, what)
        if named.count(axis) > 1:
            raise UnsupportedInputError(
                what, f"{placements}, with {axis!r} twice", "each axis in one dimension at most"
            )
    return Layout(mesh, tuple(dims))


def _dims_of_spec(spec: PartitionSpec) -> list[tuple[int, tuple[str, ...] | None]]:
    # an entry for each dimension, also for whole ones: a spec of too many entries is an error
    return [(dim, None if entry is _OPEN else mesh_axes_of(entry)) for dim, entry in enumerate(spec)]


def _dims_of_axes(placements: Any, mesh: AnyMesh, what: str) -> list[tuple[int, tuple[str, ...] | None]]:
    by_axis = _by_axis(placements, mesh, what)
    dims = {axis: _sharded_dim(by_axis.get(axis), what) for axis in mesh.axis_names}
    return [(dim, (axis,)) for axis, dim in dims.items() if dim is not None]


def _by_axis(placements: Any, mesh: AnyMesh, what: str) -> Mapping[str, Any]:
    if isinstance(placements, Mapping):
        for axis in placements:
            _require_axis(axis, mesh, what)
        return placements
    if placements is None:
        return {}
    if not isinstance(placements, Sequence) or isinstance(placements, str):
        raise UnsupportedInputError(
            what, f"placements {placements!r}", "a PartitionSpec, a list or a dict of placements"
        )
    if len(placements) != len(mesh.axis_names):
        raise UnsupportedInputError(
            what, f"{len(placements)} placements", f"one for each axis of the mesh, {mesh.axis_names}"
        )
    return dict(zip(mesh.axis_names, placements, strict=True))


def _sharded_dim(placement: Any, what: str) -> int | None:
    """The dimension that one of torch's placements shards; None for Replicate."""
    if placement is None:
        return None
    try:
        if placement.is_shard():
            return int(placement.dim)
        if placement.is_replicate():
            return None
    except AttributeError:
        pass
    raise UnsupportedInputError(what, f"placement {placement!r}", "torch's Shard(dim) or Replicate()")


def _require_axis(axis: Any, mesh: AnyMesh, what: str) -> None:
    if axis not in mesh.axis_names:
        raise UnsupportedInputError(what, f"axis {axis!r}", f"an axis of the mesh, {mesh.axis_names}")


def mesh_axes_of(entry: Any) -> tuple[str, ...]:
    """The names of axes in an entry of a PartitionSpec."""
    if entry is None or entry is _OPEN:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


TORCHS: dict[str, Any] = {}
"""torch's classes `Shard` and `Replicate`, set by `jaten_ops.distributed`: they take a second to import."""


def placements_of(sharding: NamedSharding) -> tuple[Any, ...]:
    """torch's placements, one for each axis of the mesh.

    Raises:
        RuntimeError: `jaten_ops.distributed` was not imported.
    """
    if not TORCHS:
        raise RuntimeError("placements: torch's classes are not imported. Fix: import jaten_ops.distributed")
    dims = {axis: dim for dim, entry in enumerate(sharding.spec) for axis in mesh_axes_of(entry)}
    return tuple(TORCHS["Shard"](dims[a]) if a in dims else TORCHS["Replicate"]() for a in sharding.mesh.axis_names)
