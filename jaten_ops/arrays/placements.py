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
    return _layout_of(_as_data(placements, what), mesh, what)


def placements_text(placements: Placements, what: str) -> str:
    """Placements as text, over a mesh that is not known yet: `layout_over` takes both.

    Raises:
        UnsupportedInputError: another kind of placement.
    """
    return json.dumps(_as_data(placements, what), separators=(",", ":"))


def layout_over(text: str, mesh: AnyMesh) -> Layout:
    """The layout that the text of placements means over a mesh; the errors are those of `layout_of`."""
    return _layout_of(json.loads(text), mesh, "placements")


def names_mesh(text: str) -> bool:
    """True of the text of a layout; False of that of placements."""
    return text.startswith("[")


def _as_data(placements: Placements, what: str) -> dict[str, Any]:
    """Placements as JSON has them, by their kind: the axes of each dimension, or the dimension of each axis."""
    if isinstance(placements, PartitionSpec):
        # an entry for each dimension, also for whole ones: a spec of too many entries is an error
        return {"spec": [None if entry is _OPEN else mesh_axes_of(entry) for entry in placements]}
    if placements is None or isinstance(placements, Mapping):
        return {"by name": {axis: _sharded_dim(p, what) for axis, p in (placements or {}).items()}}
    if not isinstance(placements, Sequence) or isinstance(placements, str):
        raise UnsupportedInputError(
            what, f"placements {placements!r}", "a PartitionSpec, a list or a dict of placements"
        )
    return {"in order": [_sharded_dim(placement, what) for placement in placements]}


def _layout_of(placements: dict[str, Any], mesh: AnyMesh, what: str) -> Layout:
    ((kind, given),) = placements.items()
    dims: list[tuple[int, tuple[str, ...] | None]]
    if kind == "spec":
        dims = [(dim, axes and tuple(axes)) for dim, axes in enumerate(given)]
    else:
        if kind == "in order" and len(given) != len(mesh.axis_names):
            raise UnsupportedInputError(
                what, f"{len(given)} placements", f"one for each axis of the mesh, {mesh.axis_names}"
            )
        by_axis = given if kind == "by name" else dict(zip(mesh.axis_names, given, strict=True))
        for axis in by_axis:
            _require_axis(axis, mesh, what)
        dims = [(by_axis[axis], (axis,)) for axis in mesh.axis_names if by_axis.get(axis) is not None]
    named = [axis for _, axes in dims for axis in axes or ()]
    for axis in named:
        _require_axis(axis, mesh, what)
        if named.count(axis) > 1:
            raise UnsupportedInputError(what, f"{given}, with {axis!r} twice", "each axis in one dimension at most")
    return Layout(mesh, tuple(dims))


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


def halfway(source: NamedSharding, target: NamedSharding, dims: int) -> PartitionSpec | None:
    """A placement on the way between two, if XLA would gather the whole tensor on each device without; else None.

    Axes move to where the target has them, and those that it does not have stay until then: of two axes in one
    dimension one may move and the other go, or an axis of one dimension go and another axis come in another. And of
    two axes that leave one dimension for two, or come to one from two, first one moves.
    """
    before, after = ([mesh_axes_of(e) for e in (*s.spec, *[None] * dims)][:dims] for s in (source, target))
    at, to = ({a: d for d, axes in enumerate(given) for a in axes} for given in (before, after))
    moving = [a for a in at if to.get(a, at[a]) != at[a]]
    leaving = [tuple(a for a in axes if a not in to) for axes in before]
    comes = any(not before[d] and not {*after[d]} <= {*at} for d in range(dims))
    if any(leaving[at[a]] for a in moving) or (comes and any(leaving[d] and not after[d] for d in range(dims))):
        return PartitionSpec(*((*after[d], *leaving[d]) or None for d in range(dims)))
    one = next((a for a in reversed(moving) if any(at[b] == at[a] and to[b] != to[a] for b in moving)), None)
    if one is None:
        apart = [a for a in to if a in moving and any(to[b] == to[a] and at[b] != at[a] for b in moving)]
        one = next(iter(apart), None)
    if one is None:
        return None
    placed = [tuple(a for a in axes if a != one) for axes in before]
    placed[to[one]] += (one,)
    return PartitionSpec(*(axes or None for axes in placed))


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
