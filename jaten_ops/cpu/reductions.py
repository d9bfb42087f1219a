"""Reductions in the forms that XLA's CPU compiler makes vector code of, or that cost no more with more digits."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.platform import by_platform, is_open
from ..kernel_base.promotion import cast, compute_type, is_complex

Axes = tuple[int, ...]

_LANES = 32
_LEAST_PRODUCT = 256  # elements of a row that are worth lanes
_ABREAST, _BLOCK = 8, 128  # sums side by side, and how many elements of a row are added to them, at most
_LEAST_BLOCK = 64  # elements of a row: shorter ones are unrolled, and vectorized over several rows
_LITTLE = 2**14  # elements: to sum them in double precision takes no measurable time


def reduce_prod(x: jax.Array, axes: Axes) -> jax.Array:
    """`lax.reduce_prod`; on a CPU, of long rows of float32, in lanes."""
    n = math.prod(x.shape[a] for a in axes)
    if x.dtype != np.float32 or n < _LEAST_PRODUCT or axes != tuple(range(x.ndim - len(axes), x.ndim)):
        return lax.reduce_prod(x, axes)
    return by_platform(
        x,
        cpu=lambda x: _row_product(x.reshape(*x.shape[: x.ndim - len(axes)], n)),
        default=lambda x: lax.reduce_prod(x, axes),
    )


def _row_product(x: jax.Array) -> jax.Array:
    """The product over the last axis, of 32 others first: of neighbours, XLA's CPU compiler makes no vectors."""
    n, last = x.shape[-1], (x.ndim - 1,)
    whole = n // _LANES * _LANES
    head = lax.slice_in_dim(x, 0, whole, axis=-1).reshape(*x.shape[:-1], whole // _LANES, _LANES)
    # the barrier keeps the two from being made one again
    product = lax.reduce_prod(lax.optimization_barrier(lax.reduce_prod(head, last)), last)
    return product if whole == n else product * lax.reduce_prod(lax.slice_in_dim(x, whole, n, axis=-1), last)


def sum_over_positions(grad: jax.Array) -> jax.Array:
    """The sum of (N, C, ...) over the batch and all positions, in ATen's accumulation type and rounded once."""
    axes = (0, *range(2, grad.ndim))
    return by_platform(
        grad,
        cpu=_wide_sum_over_positions,
        default=lambda grad: cast(lax.reduce_sum(cast(grad, compute_type(grad.dtype)), axes), grad.dtype),
    )


def _wide_sum_over_positions(grad: jax.Array) -> jax.Array:
    """XLA's CPU adds the terms, which are many, one after the other.

    The last sum is in double precision: over the batch, or over everything if there is little.
    """
    wide = np.complex128 if is_complex(grad.dtype) else np.float64
    if is_open(grad) or grad.size <= _LITTLE:
        total = lax.reduce_sum(cast(grad, wide), (0, *range(2, grad.ndim)))
    else:
        by_image = lax.reduce_sum(cast(grad, compute_type(grad.dtype)), tuple(range(2, grad.ndim)))
        total = lax.reduce_sum(cast(by_image, wide), (0,))
    return cast(total, grad.dtype)


def in_one_pass(x: jax.Array, axes: Axes) -> bool:
    """True if `wide_squares` takes an array, and less time than a pass for the mean and one for the squares."""
    n = math.prod(x.shape[a] for a in axes)
    if is_open(x) or is_complex(x.dtype) or x.dtype == np.float64 or not n or len(axes) == x.ndim:
        return False
    return x.ndim - 1 in axes or n <= _LANES


def wide_squares(x: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """The sum of squared distances from the mean, and the mean, in float64, with the reduced dimensions kept.

    One pass adds distances, and their squares, from an element of each row: what cancels then is at most as many times
    the sum as there are terms, and double precision has digits to spare.

    Args:
        x: real, of less than double precision, and not empty.
        axes: those that are summed over.
    """
    return _squares(x, axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _squares(x: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    wide = lax.convert_element_type(x, np.float64)
    first = lax.slice(wide, (0,) * x.ndim, [1 if d in axes else n for d, n in enumerate(x.shape)])
    n = math.prod(x.shape[a] for a in axes)
    by_row = axes == tuple(range(x.ndim - len(axes), x.ndim))
    total, squares = (_sums_of_rows if by_row else _sums)(wide - first, axes)
    total, squares = lax.expand_dims(total, axes), lax.expand_dims(squares, axes)
    rest = squares - total * (total / n)
    return jnp.where(rest < 0, 0.0, rest), first + total / n


@_squares.defjvp
def _squares_jvp(axes, primals, tangents):
    (x,), (dx,) = primals, tangents
    squares, mean = _squares(x, axes)
    wide, n = lax.convert_element_type(dx, np.float64), math.prod(x.shape[a] for a in axes)

    def added(terms: jax.Array) -> jax.Array:
        return lax.expand_dims(lax.reduce_sum(terms, axes), axes)

    return (squares, mean), (2 * added((lax.convert_element_type(x, np.float64) - mean) * wide), added(wide) / n)


def _sums(distances: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """The sums of an array and of its squares, in one pass."""
    zeros = (np.zeros((), distances.dtype),) * 2
    total, squares = lax.reduce(
        (distances, distances * distances), zeros, lambda a, b: (a[0] + b[0], a[1] + b[1]), axes
    )
    return total, squares


def _sums_of_rows(distances: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """The same over the last dimensions, in blocks, and in these of elements side by side first."""
    others = distances.ndim - len(axes)
    rows = lax.reshape(distances, (*distances.shape[:others], math.prod(distances.shape[others:])))
    n = rows.shape[-1]
    if n < _LEAST_BLOCK:
        return _sums(rows, (others,))
    blocks = -(-n // _BLOCK)
    steps = n // (blocks * _ABREAST)
    whole = blocks * steps * _ABREAST
    split = (*rows.shape[:-1], blocks, steps, _ABREAST)
    lanes = lax.reshape(lax.slice_in_dim(rows, 0, whole, axis=others), split)
    sums = _sums(lanes, (others + 1,))
    total, squares = (lax.reduce_sum(lax.optimization_barrier(s), (others, others + 1)) for s in sums)
    if whole < n:
        rest = _sums(lax.slice_in_dim(rows, whole, n, axis=others), (others,))
        total, squares = total + rest[0], squares + rest[1]
    return total, squares
