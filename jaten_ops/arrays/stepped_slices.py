"""Elements that an array's own dimensions have at equal distances, as slices with steps.

Their strides need not nest: the columns 0, 2 and 4 of five are such a slice, and no part of a box.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from ..interpreter import interpreted
from .strides import Shape, row_major


class Slice(NamedTuple):
    """A slice of each dimension of an array, and the order in which a tensor has them.

    Attributes:
        begin: its first element, in each dimension of the array.
        steps: the distance of its elements; 1 where it has one only.
        sizes: the number of its elements.
        order: the array's dimensions of which the tensor has more than one element, as the tensor has them.
        dims: the tensor's dimensions that these are; in all others it repeats its elements, or has one.
    """

    begin: Shape
    steps: Shape
    sizes: Shape
    order: Shape
    dims: Shape

    def limits(self) -> Shape:
        """Behind its last element, in each dimension of the array."""
        each = zip(self.begin, self.sizes, self.steps, strict=True)
        return tuple([at + (n - 1) * k + 1 for at, n, k in each])


@functools.lru_cache(1024)
def stepped_slice(own: Shape, offset: int, shape: Shape, stride: Shape) -> Slice | None:
    """The slice of an array that a tensor with an offset and strides is; None if it is none, or empty.

    Args:
        own: the array's shape.
        offset, shape, stride: of the tensor, in elements.
    """
    if 0 in shape or 0 in own:
        return None
    strides = row_major(own)
    begin, rest = [], offset
    for s in strides:
        at, rest = divmod(rest, s)
        begin.append(at)
    steps, sizes, order, dims = [1] * len(own), [1] * len(own), [], []
    for i, (n, s) in enumerate(zip(shape, stride, strict=True)):
        if n == 1 or s == 0:
            continue
        d = next((d for d, along in enumerate(strides) if own[d] != 1 and along <= s), None)
        if d is None or d in order or s % strides[d]:
            return None
        steps[d], sizes[d] = s // strides[d], n
        order.append(d)
        dims.append(i)
    found = Slice(tuple(begin), tuple(steps), tuple(sizes), tuple(order), tuple(dims))
    return found if all(end <= n for end, n in zip(found.limits(), own, strict=True)) else None


def slice_taken(array: jax.Array, given: Slice, shape: Shape) -> jax.Array:
    """The elements of a slice, in a tensor's shape."""
    if isinstance(array, jax.core.Tracer):
        return _in_shape(jax.lax.slice(array, given.begin, given.limits(), given.steps), given, shape)
    return _taken_at(array, np.array(given.begin, np.int64), given._replace(begin=(0,) * array.ndim), shape)


@functools.partial(interpreted, static_argnums=(2, 3))
def _taken_at(array: jax.Array, begin: jax.Array, given: Slice, shape: Shape) -> jax.Array:
    """The same at a place that is no part of the program: a loop over places has one."""
    part = jax.lax.dynamic_slice(array, list(begin), given.limits())
    return _in_shape(jax.lax.slice(part, given.begin, part.shape, given.steps), given, shape)


def _in_shape(part: jax.Array, given: Slice, shape: Shape) -> jax.Array:
    kept = jax.lax.squeeze(part, [d for d in range(part.ndim) if d not in given.order])
    ranks = sorted(given.order)
    turned = jax.lax.transpose(kept, [ranks.index(d) for d in given.order])
    return jax.lax.broadcast_in_dim(turned, shape, given.dims)


def slice_replaced(array: jax.Array, values: jax.Array, given: Slice) -> jax.Array:
    """A traced array with the elements of a slice replaced by values, of a tensor's shape that repeats none.

    A small slice without steps is updated in place; if it has most elements, an update on a CPU would copy them first.
    """
    kept = jax.lax.squeeze(values, [d for d in range(values.ndim) if d not in given.dims])
    ranks = [given.order.index(d) for d in sorted(given.order)]
    part = jax.lax.transpose(kept, ranks).reshape(given.sizes)
    if set(given.steps) <= {1} and 2 * values.size < array.size:
        return jax.lax.dynamic_update_slice(array, part, given.begin)
    return selected_over(array, part, given.begin, given.steps)


def selected_over(array: jax.Array, part: jax.Array, begin: Sequence[int], steps: Sequence[int]) -> jax.Array:
    """An array with elements of a part in place of its own, in a loop over all.

    Args:
        array: the array.
        part: the elements, with as many dimensions.
        begin: where its first one lies, in each dimension.
        steps: their distances there.
    """
    around = [
        (at, n - at - (m - 1) * k - 1, k - 1) for at, n, m, k in zip(begin, array.shape, part.shape, steps, strict=True)
    ]
    is_new = jax.lax.pad(np.ones(part.shape, bool), np.False_, around)
    return jax.lax.select(is_new, jax.lax.pad(part, part.dtype.type(0), around), array)
