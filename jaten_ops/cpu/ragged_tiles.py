"""Products of groups of rows, each with a matrix of its own, in tiles of some rows of one group.

XLA's CPU makes of `lax.ragged_dot` the product of all rows with all matrices, most of it masked: with 8 groups 10 times
the time of one product a group, with 16 groups 25 times.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..kernel_base.promotion import compute_type

_LEAST, _MOST = 8, 64  # rows of a tile: larger ones are padding where groups are small, smaller ones read more matrices


def tiled_by_group(x: jax.Array, matrices: jax.Array, ends: jax.Array) -> jax.Array:
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


def tiled_over_group(x: jax.Array, y: jax.Array, ends: jax.Array) -> jax.Array:
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
