"""The parts of a partitioned tensor that this process has, each as a view through which the tensor is read and written.

Nothing moves between devices: what is written to a part goes to each copy of it that this process has.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from ..xla.x64 import Enabled
from . import partitioned
from .storage_views import Lens, Storage, View
from .strides import row_major

LocalPart = tuple[slice, ...]


class _PartOfView(Lens):
    """A storage that is a part of a view's values."""

    __slots__ = ("_part", "_view")

    def __init__(self, view: View, part: LocalPart) -> None:
        def seen(array: jax.Array) -> jax.Array:
            return _part_of(View(Storage(array), view.shape, view.strides(), view.offset).read(), part)

        super().__init__(view.storage, seen, lambda written: written)
        self._view, self._part = view, part

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        return Storage(self.array)  # a tensor of its own

    def put(self, array: jax.Array) -> int:
        self._view.write(_with_part(self._view.read(), self._part, array))
        return self.version


def view_of_part(view: View, part: LocalPart) -> View:
    """A part of a view of a partitioned array, on the first device of this process that has it."""
    lens = _PartOfView(view, part)
    shape = lens.array.shape
    return View(lens, shape, row_major(shape), 0)


def _part_of(array: jax.Array, part: LocalPart) -> jax.Array:
    if isinstance(array, jax.core.Tracer):
        raise RuntimeError(
            "the local part of a tensor was made outside of a step that uses it. Fix: give the step the tensor, or a"
            " clone() of the part"
        )
    found = min((s for s in array.addressable_shards if s.index == part), key=lambda shard: shard.device.id).data
    with Enabled():
        return found.copy()  # its memory is the array's, which may be donated


def _with_part(array: jax.Array, part: LocalPart, written: jax.Array) -> jax.Array:
    shards = array.addressable_shards
    with Enabled():
        parts = [
            jax.device_put(written.reshape(shard.data.shape), shard.device) if shard.index == part else shard.data
            for shard in shards
        ]
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def parts_of(array: jax.Array) -> dict[tuple[int, ...], LocalPart]:
    """The parts of an array that this process has, each once, by where they start."""
    parts = (shard.index for shard in array.addressable_shards)
    return {tuple(dim.start or 0 for dim in part): part for part in parts}


def first_part(array: jax.Array) -> LocalPart:
    """The part of an array that this process's first device has."""
    device = partitioned.first_device(array.sharding)
    return next(shard.index for shard in array.addressable_shards if shard.device == device)


def zeros_but_for_part(written: jax.Array, sharding: Sharding, shape: tuple[int, ...]) -> jax.Array:
    """An array of zeros but for the part of this process's first device."""
    where = sharding.addressable_devices_indices_map(shape)
    wanted = where[partitioned.first_device(sharding)]
    with Enabled():
        rest = np.zeros(written.shape, written.dtype)
        parts = [jax.device_put(written if part == wanted else rest, device) for device, part in where.items()]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)
