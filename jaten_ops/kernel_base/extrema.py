"""Maximum and minimum over dimensions, NaN if an element is NaN.

For a large array XLA's CPU calls YNNPACK, which ignores NaNs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .platform import by_platform, is_open
from .promotion import cast, is_float

Reduce = Callable[[jax.Array, tuple[int, ...]], jax.Array]

_OF_TWO: dict[Reduce, Callable[[jax.Array, jax.Array], jax.Array]] = {lax.reduce_max: lax.max, lax.reduce_min: lax.min}

_LEAST = 2**12  # elements
_CACHED = 2**14  # elements: of more that are stored, the library takes less time than two loops
_PARTS = 8  # stretches that are compared element by element: of more, XLA stores what they are made of
_LEAST_STRETCH = 16  # elements of a row: two vectors


def _with_nan(reduce: Reduce, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    def noticed(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        axis = _folded_axis(x, axes)
        if axis is not None or axes == (x.ndim - 1,):
            x = _wide(x)
        if axis is not None:
            x, axes = _folded(reduce, x, axes, axis)
        if not axes:
            return x
        return jnp.where(lax.reduce_or(x != x, axes), np.array(np.nan, x.dtype), reduce(x, axes))

    if not is_float(x.dtype):
        return reduce(x, axes)
    return by_platform(x, cpu=lambda x: cast(noticed(x, axes), x.dtype), default=lambda x: reduce(x, axes))


def _folded_axis(x: jax.Array, axes: tuple[int, ...]) -> int | None:
    """The axis to fold, if two loops of vectors take less time than one reduction."""
    if not axes or is_open(x) or x.size < _LEAST or x.dtype == np.float16:  # XLA's CPU compares that one by one
        return None
    axis, last = max(axes, key=x.shape.__getitem__), x.ndim - 1
    if last not in axes:
        return axis
    is_long = x.shape[axis] >= (_PARTS if axis < last else _PARTS * _LEAST_STRETCH)
    return axis if is_long and math.prod(x.shape[axis:]) >= _PARTS * _LEAST_STRETCH else None


def _wide(x: jax.Array) -> jax.Array:
    """XLA's CPU compares elements of bfloat16 one by one."""
    return cast(x, np.float32) if x.dtype == jnp.bfloat16 else x


def _folded(reduce: Reduce, x: jax.Array, axes: tuple[int, ...], axis: int) -> tuple[jax.Array, tuple[int, ...]]:
    """The extrema of stretches of rows or columns, by element, which keeps NaNs, and the dimensions that are left.

    XLA makes one loop of vectors of that; its library is slow for few rows, and a search for NaN reads all once more.
    """
    n, of_two = x.shape[axis], _OF_TWO[reduce]
    length = -(-n // _PARTS)
    # the last one may share elements with the one before
    places = sorted({min(at, n - length) for at in range(0, n, length)})
    found = functools.reduce(of_two, (lax.slice_in_dim(x, at, at + length, axis=axis) for at in places))
    if length > 1:
        return found, axes
    return lax.squeeze(found, (axis,)), tuple(a - (a > axis) for a in axes if a != axis)


def highest(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_max`, where it makes no difference whether a NaN is lost."""

    def by_columns(x: jax.Array) -> jax.Array:
        axis = _folded_axis(x, axes)  # None for open sizes, which are not compared
        are_folded = axis is not None and x.ndim - 1 not in axes and x.size <= _CACHED
        found, left = _folded(lax.reduce_max, x, axes, axis) if are_folded else (x, axes)
        return lax.reduce_max(found, left) if left else found

    return by_platform(x, cpu=by_columns, default=lambda x: lax.reduce_max(x, axes))


def reduce_max(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_max`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_max, x, axes)


def reduce_min(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_min`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_min, x, axes)
