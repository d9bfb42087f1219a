"""Products of consecutive groups of rows, each with a matrix of its own: mixtures of experts.

On the CPU XLA makes of `lax.ragged_dot` the product of all rows with all matrices, most of it masked: with 8 groups
10 times the time of one product a group, with 16 groups 25 times. There a loop goes over tiles, each some rows of one
group. The groups come as their ends, which ascend; rows after the last end belong to none, and give zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import compute_type

_LEAST, _MOST = 8, 64  # rows of a tile: larger ones are padding where groups are small, smaller ones read more matrices


@jax.custom_vjp
def by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    """The rows of `x` (M, K), each times the matrix of its group in `matrices` (G, K, N): (M, N), in compute dtype."""
    return by_platform(x, matrices, ends, cpu=_tiled_by_group, default=_ragged_by_group)


@jax.custom_vjp
def over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    """For each group, the product of the columns of `x` (M, K) and `y` (M, N): (G, K, N), in compute dtype."""
    return by_platform(x, y, ends, cpu=_tiled_over_group, default=_ragged_over_group)


def _ragged_by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, matrices, _sizes(ends), preferred_element_type=compute_type(x.dtype))


def _ragged_over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    numbers = lax.RaggedDotDimensionNumbers(
        (((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(x, y, _sizes(ends), numbers, preferred_element_type=compute_type(x.dtype))


def _sizes(ends: jax.Array) -> jax.Array:
    return jnp.diff(ends, prepend=0).astype(jnp.int32)


def _tiled_by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
    rows = _rows_of_tile(x, ends)
    wide = jnp.pad(x, ((0, rows), (0, 0)))  # the last tile may reach beyond the end

    def add(products: jax.Array, group: jax.Array, start: jax.Array, is_own: jax.Array) -> jax.Array:
        tile = lax.dynamic_slice_in_dim(wide, start, rows)
        product = jnp.matmul(
            tile, lax.dynamic_index_in_dim(matrices, group, keepdims=False), preferred_element_type=products.dtype
        )
        # rows beyond the group's end are overwritten by the next group
        return lax.dynamic_update_slice_in_dim(products, jnp.where(is_own, product, 0), start, 0)

    products = jnp.zeros((wide.shape[0], matrices.shape[2]), compute_type(x.dtype))
    return _over_tiles(add, products, ends, rows)[: x.shape[0]]


def _tiled_over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
    rows = _rows_of_tile(x, ends)
    wide_x, wide_y = (jnp.pad(a, ((0, rows), (0, 0))) for a in (x, y))

    def add(sums: jax.Array, group: jax.Array, start: jax.Array, is_own: jax.Array) -> jax.Array:
        # both operands are masked: a NaN in a row of another group must not spread
        a, b = (jnp.where(is_own, lax.dynamic_slice_in_dim(w, start, rows), 0) for w in (wide_x, wide_y))
        product = lax.dot_general(a, b, (((0,), (0,)), ((), ())), preferred_element_type=sums.dtype)
        sum_ = lax.dynamic_index_in_dim(sums, group, keepdims=False) + product
        return lax.dynamic_update_index_in_dim(sums, sum_, group, 0)

    sums = jnp.zeros((ends.shape[0], x.shape[1], y.shape[1]), compute_type(x.dtype))
    return _over_tiles(add, sums, ends, rows)


def _rows_of_tile(x: jax.Array, ends: jax.Array) -> int:
    mean = max(1, x.shape[0] // max(1, ends.shape[0]))
    return min(max(_LEAST, 1 << (mean - 1).bit_length()), _MOST)


def _over_tiles(add: Callable[..., jax.Array], result: jax.Array, ends: jax.Array, rows: int) -> jax.Array:
    """`add(result, group, first row, which rows of the tile are the group's)` for each tile, in the order of rows."""
    ends = ends.astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])
    until = jnp.cumsum(-(-(ends - starts) // rows), dtype=ends.dtype)  # the tiles of the groups up to each
    before = jnp.concatenate([jnp.zeros(1, ends.dtype), until[:-1]])
    offsets = jnp.arange(rows, dtype=ends.dtype)[:, None]

    def step(i: jax.Array, result: jax.Array) -> jax.Array:
        group = jnp.sum(until <= i, dtype=ends.dtype)
        start = starts[group] + (i - before[group]) * rows
        return add(result, group, start, start + offsets < ends[group])

    return lax.fori_loop(jnp.zeros((), ends.dtype), until[-1], step, result)


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
