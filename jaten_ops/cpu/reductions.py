"""Reductions in the forms that XLA's CPU compiler makes vector code of, or that cost no more with more digits."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, is_complex

Axes = tuple[int, ...]

_LANES = 32
_LEAST_PRODUCT = 256  # elements of a row that are worth lanes
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
    if grad.size <= _LITTLE:
        total = lax.reduce_sum(cast(grad, wide), (0, *range(2, grad.ndim)))
    else:
        by_image = lax.reduce_sum(cast(grad, compute_type(grad.dtype)), tuple(range(2, grad.ndim)))
        total = lax.reduce_sum(cast(by_image, wide), (0,))
    return cast(total, grad.dtype)
