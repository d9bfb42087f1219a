"""Programs that read strided elements of an array, and replace them.

If the strides nest (each is a multiple of the next, and at least the span of the next ones), the elements are mostly a
part of a box: of the array in a shape that matches the strides. Dimensions that are parts of one of the array's are
joined where only that makes the strides nest. Where the box would not end with the array, the elements are taken by
slices and reshapes of the flat array, which XLA fuses; where the strides do not nest, by slices of the array's own
dimensions, or by indices.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..interpreter import interpreted
from . import partitioned, stepped_slices
from .stepped_slices import stepped_slice
from .strides import Shape, order_of

Axis = tuple[int, int, tuple[int, ...]]  # size, stride, the dimensions of which it consists


def take_elements(array: jax.Array, offset: int, shape: Shape, stride: Shape) -> jax.Array:
    """The elements of an array at an offset, with a shape and strides."""
    if partitioned.MET or isinstance(array, jax.core.Tracer):
        return _reading(array.shape, offset, shape, stride)(array)
    return _known_reading(array.shape, offset, shape, stride)(array)


def _reading(own: Shape, offset: int, shape: Shape, stride: Shape) -> Callable[[jax.Array], jax.Array]:
    """The function that takes such elements of arrays of one shape."""
    axes = _moving(shape, stride)[1]
    if axes is None and (windows := _overlapping(shape, stride)) is not None:
        return lambda array: _in_windows(array, offset, shape, stride, *windows)
    found = _box(math.prod(own), offset, axes)
    if found is None and (stepped := stepped_slice(own, offset, shape, stride)) is not None:
        return lambda array: stepped_slices.slice_taken(array, stepped, shape)
    if found is None or axes is None:
        return lambda array: _gathered(array, np.int64(offset), shape, stride)
    box, begin = found
    count, at = axes[0][0], int(begin[0])
    apart = factors(own, [n for n, _, _ in axes]) if partitioned.MET else None
    if apart is not None and all(len(dims) == 1 for _, _, dims in axes):
        return lambda array: _permuted(array, apart, shape, stride)
    if count < box[0] != own[0] and box[0] % count == 0 and at % count == 0:
        # one of several equal parts: a dimension of its own, which a partitioned array's other dimensions do not join
        box, begin = (box[0] // count, count, *box[1:]), np.array([at // count, 0, *begin[1:]], np.int64)

    def take(array: jax.Array) -> jax.Array:
        if partitioned.MET and isinstance(array, jax.core.Tracer):
            return _sliced(array, tuple(map(int, begin)), box, shape, stride)
        return _taken(array, begin, box, shape, stride)

    return take


@functools.lru_cache(4096)
def _known_reading(own: Shape, offset: int, shape: Shape, stride: Shape) -> Callable[[jax.Array], jax.Array]:
    """The same for arrays of one device that no program computes: it is found once, since that takes longer."""
    order = order_of(shape, stride)
    if order is not None and own == tuple([shape[d] for d in order]):
        ranks = tuple([order.index(d) for d in range(len(order))])
        return lambda array: transposed(array, ranks)
    return _reading(own, offset, shape, stride)


def factors(own: Shape, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """The factors of each size; one after the other, a contiguous array's own dimensions are products of them, too.

    None if they are other elements than the array's, or have no such factors.
    """
    if math.prod(sizes) != math.prod(own):
        return None
    ends = [[*itertools.accumulate(reversed(given), operator.mul, initial=1)] for given in (own, sizes)]
    every = sorted({*ends[0], *ends[1]})
    if any(m % n for n, m in itertools.pairwise(every)):
        return None
    found = []
    for low, high in itertools.pairwise(ends[1]):
        inner = [end for end in every if low <= end <= high]
        found.append(tuple([m // n for n, m in itertools.pairwise(inner)][::-1]))
    return tuple(found[::-1])


@functools.partial(interpreted, static_argnums=(1, 2, 3))
def _permuted(array: jax.Array, parts: tuple[tuple[int, ...], ...], shape: Shape, stride: Shape) -> jax.Array:
    """All elements in another order. Dimensions of a partitioned array stay apart, and are joined at the end."""
    steps, axes = _moving(shape, stride)
    assert axes is not None
    apart = array.reshape([n for each in parts for n in each])
    firsts = [*itertools.accumulate(map(len, parts), initial=0)]
    at = {dims[0]: range(firsts[i], firsts[i + 1]) for i, (_, _, dims) in enumerate(axes)}
    ordered = jax.lax.transpose(apart, [k for i in range(len(steps)) for k in at[i]])
    return jax.lax.broadcast_in_dim(ordered.reshape([shape[i] for i in steps]), shape, steps)


_MOST_SLICES = 32


def _overlapping(shape: Shape, stride: Shape) -> tuple[int, int] | None:
    """Two dimensions that are windows along one, as `Tensor.unfold` makes them: their number, and their elements."""
    moving = [i for i, s in enumerate(stride) if s and shape[i] > 1]
    pairs = [(i, j) for i in moving for j in moving if i != j and stride[i] % stride[j] == 0]
    return next(((i, j) for i, j in pairs if stride[i] <= (shape[j] - 1) * stride[j]), None)


def _in_windows(array: jax.Array, offset: int, shape: Shape, stride: Shape, windows: int, elements: int) -> jax.Array:
    """`take_elements` with two dimensions that are windows along one: all of that, and of that each window."""
    count, size, step = shape[windows], shape[elements], stride[windows] // stride[elements]
    along = ((count - 1) * step + size, stride[elements])
    (whole_shape, whole_stride) = (
        tuple([one if d == windows else n for d, n in enumerate(given) if d != elements])
        for given, one in zip((shape, stride), along, strict=True)
    )
    whole = take_elements(array, offset, whole_shape, whole_stride)
    return cut_in_windows(whole, windows - (elements < windows), elements, count, size, step)


@functools.partial(interpreted, static_argnums=(1, 2, 3, 4, 5))
def cut_in_windows(whole: jax.Array, dim: int, elements: int, count: int, size: int, step: int) -> jax.Array:
    """The windows along a dimension: their number takes its place, their elements get a dimension of their own."""
    if size <= min(count, _MOST_SLICES):
        parts = [jax.lax.slice_in_dim(whole, k, k + (count - 1) * step + 1, step, dim) for k in range(size)]
        return jnp.stack(parts, elements)
    if count <= _MOST_SLICES:
        parts = [jax.lax.slice_in_dim(whole, k * step, k * step + size, 1, dim) for k in range(count)]
        found = jnp.stack(parts, dim)
    else:
        at = np.arange(count)[:, None] * step + np.arange(size)
        found = jnp.take(whole, at, dim, mode="clip")
    return jnp.moveaxis(found, dim + 1, elements)


def put_elements(array: jax.Array, values: jax.Array, offset: int, stride: Shape) -> jax.Array:
    """An array with such elements replaced by values."""
    axes = _axes(values.shape, stride)
    box = _box(array.size, offset, axes)
    if isinstance(values, jax.core.Tracer):
        return _put_in_program(array, values, offset, stride, axes, box)
    if box is None:
        return (_put_at_indices if partitioned.MET else _scattered)(array, values, np.int64(offset), stride)
    return _replaced(array, values, box[1], box[0], stride)


def _put_in_program(
    array: jax.Array, values: jax.Array, offset: int, stride: Shape, axes: list[Axis] | None, box: Any
) -> jax.Array:
    """The same for values that a program computes, perhaps of the elements that they replace.

    XLA updates an array in place on a CPU, and misses that values are computed of it if it is updated in another shape:
    it would overwrite elements before it reads them, as where they are the old ones reversed.
    """
    stepped = stepped_slice(array.shape, offset, values.shape, stride)
    if stepped is not None and math.prod(stepped.sizes) == values.size:
        return stepped_slices.slice_replaced(array, values, stepped)
    if box is not None and axes is not None:
        sides, begin = box
        part = _ordered(values, axes)[..., None]
        found = stepped_slices.selected_over(array.reshape(sides), part, begin.tolist(), [1] * part.ndim)
        return found.reshape(array.shape)
    if axes is not None and 0 not in values.shape and not partitioned.MET:
        return _put_between(array, values, offset, axes)
    return _put_at_indices(array, values, np.int64(offset), stride)


def _put_between(array: jax.Array, values: jax.Array, offset: int, axes: list[Axis]) -> jax.Array:
    """The same, put together of what is before, between and behind the elements."""
    flat, end = array.reshape(-1), offset + _span(axes)
    span = _put_rows(flat[offset:end], _ordered(values, axes), axes)
    return jnp.concatenate([flat[:offset], span, flat[end:]]).reshape(array.shape)


def _axes(shape: Shape, stride: Shape) -> list[Axis] | None:
    """The dimensions that step through memory, by decreasing stride; None if their strides do not nest."""
    axes: list[Axis] = sorted(
        ((n, s, (i,)) for i, (n, s) in enumerate(zip(shape, stride, strict=True)) if n != 1), key=lambda a: -a[1]
    )
    if any(s == 0 for _, s, _ in axes):
        return None
    nested: list[Axis] = []
    while axes:
        (n, s, dims), *axes = axes
        wide = nested[-1][1] if nested else None
        while wide is not None and wide % s and axes and s == axes[0][0] * axes[0][1]:
            (m, s, inner), *axes = axes
            n, dims = n * m, dims + inner
        if wide is not None and (wide % s or (n - 1) * s >= wide):
            return None
        nested.append((n, s, dims))
    return nested


def _indices(shape: Shape, stride: Shape) -> np.ndarray:
    """Positions of the elements, relative to the first one."""
    parts = [
        np.arange(n, dtype=np.int64).reshape((-1,) + (1,) * (len(shape) - 1 - i)) * s
        for i, (n, s) in enumerate(zip(shape, stride, strict=True))
    ]
    return np.broadcast_to(sum(parts, np.int64(0)), shape)


def _span(axes: list[Axis]) -> int:
    return 1 + sum((n - 1) * s for n, s, _ in axes)


@functools.partial(interpreted, static_argnums=(1,))
def reshaped(array: jax.Array, shape: Shape) -> jax.Array:
    return array.reshape(shape)


@functools.partial(interpreted, static_argnums=(1,))
def transposed(array: jax.Array, order: Shape) -> jax.Array:
    return jax.lax.transpose(array, order)


def _box(size: int, offset: int, axes: list[Axis] | None) -> tuple[Shape, np.ndarray] | None:
    """The box of `size` elements that contains strided elements: its shape, and the start of the part.

    None if strides do not nest, no box has that size, or a row's elements would extend beyond the box's row.
    """
    if not axes or size % axes[0][1] or any(n == 0 for n, _, _ in axes):
        return None
    box, begin, wide, rest = [], [], size, offset
    for n, s, _ in axes:
        side, (at, rest) = wide // s, divmod(rest, s)
        if at + n > side:
            return None
        box.append(side)
        begin.append(at)
        wide = s
    return (*box, wide), np.array([*begin, rest], np.int64)


def _moving(shape: Shape, stride: Shape) -> tuple[list[int], list[Axis] | None]:
    """The dimensions that do not repeat elements, in order; and, if their strides nest, by decreasing stride."""
    steps = [i for i, s in enumerate(stride) if s and shape[i] != 1]
    return steps, _axes(tuple([shape[i] for i in steps]), tuple([stride[i] for i in steps]))


@functools.partial(interpreted, static_argnums=(2, 3, 4))
def _taken(array: jax.Array, begin: Any, box: Shape, shape: Shape, stride: Shape) -> jax.Array:
    steps, axes = _moving(shape, stride)
    assert axes is not None
    sizes = [n for n, _, _ in axes]
    part = jax.lax.dynamic_slice(array.reshape(box), list(begin), [*[1] * (len(box) - 1 - len(sizes)), *sizes, 1])
    return _in_shape(part.reshape(sizes), axes, shape, steps)


@functools.partial(interpreted, static_argnums=(1, 2, 3, 4))
def _sliced(array: jax.Array, begin: Shape, box: Shape, shape: Shape, stride: Shape) -> jax.Array:
    """`_taken` at a place that a program has as numbers: by them each device finds what others send it."""
    steps, axes = _moving(shape, stride)
    assert axes is not None
    sizes = [n for n, _, _ in axes]
    ends = [at + n for at, n in zip(begin, [*[1] * (len(box) - 1 - len(sizes)), *sizes, 1], strict=True)]
    return _in_shape(jax.lax.slice(array.reshape(box), begin, ends).reshape(sizes), axes, shape, steps)


@functools.partial(interpreted, static_argnums=(3, 4))
def _replaced(array: jax.Array, values: jax.Array, begin: Any, box: Shape, stride: Shape) -> jax.Array:
    axes = _axes(values.shape, stride)
    assert axes is not None
    part = _ordered(values, axes)[..., None]
    return jax.lax.dynamic_update_slice(array.reshape(box), part, list(begin)).reshape(array.shape)


def _in_shape(values: jax.Array, axes: list[Axis], shape: Shape, steps: list[int]) -> jax.Array:
    """Values along axes, in a shape of which these are the dimensions that do not repeat elements."""
    order = [i for _, _, dims in axes for i in dims]
    split = values.reshape([shape[steps[i]] for i in order])
    return jax.lax.broadcast_in_dim(jax.lax.transpose(split, [order.index(i) for i in range(len(order))]), shape, steps)


def _ordered(values: jax.Array, axes: list[Axis]) -> jax.Array:
    """Values along axes: in the order in which the dimensions step through memory."""
    kept = [i for i, n in enumerate(values.shape) if n != 1]
    stepping = jax.lax.squeeze(values, [i for i, n in enumerate(values.shape) if n == 1])
    ordered = jax.lax.transpose(stepping, [kept.index(i) for _, _, dims in axes for i in dims])
    return ordered.reshape([n for n, _, _ in axes])


@functools.partial(interpreted, static_argnums=(2, 3))
def _gathered(array: jax.Array, offset: Any, shape: Shape, stride: Shape) -> jax.Array:
    flat = array.reshape(-1)
    if 0 in shape:
        return jnp.zeros(shape, array.dtype)
    steps, axes = _moving(shape, stride)
    if axes is None:
        return flat[offset + _indices(shape, stride)]
    taken = jax.lax.dynamic_slice(flat, (offset,), (_span(axes),))
    for n, s, _ in axes:
        taken = _rows(taken, n, s)
    return _in_shape(taken[..., 0], axes, shape, steps)


def _rows(flat: jax.Array, n: int, s: int) -> jax.Array:
    """The last axis cut into n rows of s elements, padded with zeros."""
    lack = n * s - flat.shape[-1]
    lead = [(0, 0, 0)] * (flat.ndim - 1)
    # a negative width removes elements
    return jax.lax.pad(flat, jnp.zeros((), flat.dtype), [*lead, (0, lack, 0)]).reshape(*flat.shape[:-1], n, s)


@functools.partial(interpreted, static_argnums=(3,))
def _scattered(array: jax.Array, values: jax.Array, offset: Any, stride: Shape) -> jax.Array:
    flat, axes = array.reshape(-1), _axes(values.shape, stride)
    if axes is None or 0 in values.shape:
        return _put_at_indices(array, values, offset, stride)
    ordered = _ordered(values, axes)
    span = jax.lax.dynamic_slice(flat, (offset,), (_span(axes),))
    return jax.lax.dynamic_update_slice(flat, _put_rows(span, ordered, axes), (offset,)).reshape(array.shape)


@functools.partial(interpreted, static_argnums=(3,))
def _put_at_indices(array: jax.Array, values: jax.Array, offset: Any, stride: Shape) -> jax.Array:
    """`_scattered` by indices alone: XLA of jaxlib 0.10 makes wrong parts of padded rows of partitioned arrays."""
    if 0 in values.shape:
        return array
    return array.reshape(-1).at[offset + _indices(values.shape, stride)].set(values).reshape(array.shape)


def _put_rows(flat: jax.Array, values: jax.Array, axes: list[Axis]) -> jax.Array:
    """The last axis of `flat` with `values` written at `axes`, in each row of the leading axes."""
    if not axes:
        return flat.at[..., 0].set(values)
    (n, s, _), *rest = axes
    length = flat.shape[-1]
    rows = _put_rows(_rows(flat, n, s), values, rest).reshape(*flat.shape[:-1], n * s)
    if n * s >= length:
        return rows[..., :length]
    return jnp.concatenate([rows, flat[..., n * s :]], -1)
