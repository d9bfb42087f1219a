"""Maximum and minimum over dimensions, NaN if an element is NaN.

For a large array XLA's CPU calls YNNPACK, which ignores NaNs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .platform import by_platform, is_open
from .promotion import is_float

Reduce = Callable[[jax.Array, tuple[int, ...]], jax.Array]

_OF_TWO: dict[Reduce, Callable[[jax.Array, jax.Array], jax.Array]] = {lax.reduce_max: lax.max, lax.reduce_min: lax.min}

_LEAST = 2**12  # elements
_CACHED = 2**14  # elements: of more that are stored, the library takes less time than two loops
_PARTS = 8  # stretches that are compared element by element: of more, XLA stores what they are made of


def _with_nan(reduce: Reduce, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    def noticed(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        if _are_columns(x, axes):
            x, axes = _folded(reduce, x, axes)
        if not axes:
            return x
        return jnp.where(lax.reduce_or(x != x, axes), np.array(np.nan, x.dtype), reduce(x, axes))

    if not is_float(x.dtype):
        return reduce(x, axes)
    return by_platform(x, cpu=lambda x: noticed(x, axes), default=lambda x: reduce(x, axes))


def _are_columns(x: jax.Array, axes: tuple[int, ...]) -> bool:
    """True if rows of an array are reduced that are long, or many, enough for two loops in place of one."""
    return bool(axes) and x.ndim - 1 not in axes and not is_open(x) and x.size >= _LEAST


def _folded(reduce: Reduce, x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, tuple[int, ...]]:
    """The extrema of stretches of columns, element by element, which keeps NaNs, and the dimensions that are left.

    XLA makes one loop of vectors of that; its library is slow for few rows, and a search for NaN reads all once more.
    """
    axis = max(axes, key=x.shape.__getitem__)
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
        is_folded = _are_columns(x, axes) and x.size <= _CACHED
        found, left = _folded(lax.reduce_max, x, axes) if is_folded else (x, axes)
        return lax.reduce_max(found, left) if left else found

    return by_platform(x, cpu=by_columns, default=lambda x: lax.reduce_max(x, axes))


def reduce_max(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_max`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_max, x, axes)


def reduce_min(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_min`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_min, x, axes)
