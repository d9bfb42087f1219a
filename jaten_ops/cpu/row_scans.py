"""Scans that go over the data once, a row of all others at a time.

XLA's own make a pass over the data for each power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Carry = tuple[jax.Array, ...]

_LANES = 1024  # rows side by side: enough to fill a CPU's vectors, and to outweigh the cost of a step


def row_by_row(
    x: jax.Array,
    axis: int,
    start: Carry,
    element: Callable[[jax.Array, jax.Array], Carry],
    combine: Callable[[Carry, Carry], Carry],
    finish: Callable[[Carry], Any],
    *,
    ordered: bool = False,
) -> Any:
    """The running combination of the elements along an axis, a row of all others at a time.

    A long axis with few others is cut into blocks that go side by side, each from what the ones before it come to.

    Args:
        start: combines with an element to that element; 0-d, of the dtypes to combine in.
        element: makes what is combined from a number and its position.
        finish: makes the result from a combination.
        ordered: whether the combination is not associative, which rules out blocks.
    """
    n, others = x.shape[axis], x.size // x.shape[axis]
    blocks = 1 if ordered else max(1, min(_LANES // others, math.isqrt(n)))
    length = -(-n // blocks)
    blocks, extra = -(-n // length), -n % length
    cut = lax.pad(x, np.zeros((), x.dtype), [(0, extra * (i == axis), 0) for i in range(x.ndim)])
    cut = cut.reshape(*x.shape[:axis], blocks, length, *x.shape[axis + 1 :])
    order = axis + 1, axis, *(i for i in range(x.ndim + 1) if i not in (axis, axis + 1))
    rows = lax.transpose(cut, order)
    count_type = np.dtype("int32") if blocks * length < 2**31 else np.dtype("int64")
    counted = lax.broadcasted_iota(count_type, (blocks * length, *[1] * (x.ndim - 1)), 0)
    places = counted.reshape(blocks, length, *[1] * (x.ndim - 1))
    steps = rows, places.swapaxes(0, 1)

    def total(carry: Carry, row: tuple[jax.Array, jax.Array]) -> tuple[Carry, None]:
        return combine(carry, element(*row)), None

    def step(carry: Carry, row: tuple[jax.Array, jax.Array]) -> tuple[Carry, Any]:
        carry = combine(carry, element(*row))
        return carry, finish(carry)

    def whole(y: jax.Array) -> jax.Array:
        joined = lax.transpose(y, np.argsort(order)).reshape(*x.shape[:axis], blocks * length, *x.shape[axis + 1 :])
        return lax.slice_in_dim(joined, 0, n, axis=axis)

    first = tuple(jnp.full(rows.shape[1:], s) for s in start)
    if blocks > 1:
        totals, _ = lax.scan(total, first, steps)
        _, first = lax.scan(
            lambda carry, of_block: (combine(carry, of_block), carry), tuple(f[0] for f in first), totals
        )
    return jax.tree.map(whole, lax.scan(step, first, steps)[1])
