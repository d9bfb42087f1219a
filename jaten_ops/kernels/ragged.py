"""Products of consecutive groups of rows, each with a matrix of its own: mixtures of experts.

The groups come as their ends, which ascend; rows after the last end belong to none, and give zeros.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..cpu.ragged_tiles import tiled_by_group, tiled_over_group
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import compute_type


@jax.custom_vjp
def by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    """The rows of `x` (M, K), each times the matrix of its group in `matrices` (G, K, N): (M, N), in compute dtype."""
    return by_platform(x, matrices, ends, cpu=tiled_by_group, default=_ragged_by_group)


@jax.custom_vjp
def over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    """For each group, the product of the columns of `x` (M, K) and `y` (M, N): (G, K, N), in compute dtype."""
    return by_platform(x, y, ends, cpu=tiled_over_group, default=_ragged_over_group)


def _ragged_by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, matrices, _sizes(ends), preferred_element_type=compute_type(x.dtype))


def _ragged_over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    numbers = lax.RaggedDotDimensionNumbers(
        (((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(x, y, _sizes(ends), numbers, preferred_element_type=compute_type(x.dtype))


def _sizes(ends: jax.Array) -> jax.Array:
    return jnp.diff(ends, prepend=0).astype(jnp.int32)


def _by_group_forward(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> tuple[jax.Array, Any]:
    return by_group(x, matrices, ends), (x, matrices, ends)


def _by_group_backward(saved: Any, grad: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, matrices, ends = saved
    grad = grad.astype(x.dtype)
    to_x = by_group(grad, matrices.swapaxes(1, 2), ends)
    return to_x.astype(x.dtype), over_group(x, grad, ends).astype(x.dtype), None


def _over_group_forward(x: jax.Array, y: jax.Array, ends: jax.Array) -> tuple[jax.Array, Any]:
    return over_group(x, y, ends), (x, y, ends)


def _over_group_backward(saved: Any, grad: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, y, ends = saved
    grad = grad.astype(x.dtype)
    to_x, to_y = by_group(y, grad.swapaxes(1, 2), ends), by_group(x, grad, ends)
    return to_x.astype(x.dtype), to_y.astype(y.dtype), None


by_group.defvjp(_by_group_forward, _by_group_backward)
over_group.defvjp(_over_group_forward, _over_group_backward)
