"""A write at one index, as a token's place in a cache: a slice, which XLA writes in place, or once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax


def write_one(
    combine: Callable[..., jax.Array] | None, x: jax.Array, index: jax.Array, updates: jax.Array, numbers: Any
) -> jax.Array:
    """`lax.scatter` of one index; with `combine`, of what that makes of the elements there and of the updates.

    It stands in a branch, taken unless the index is an error: XLA's fusion on the CPU repeats a bare one, and with it
    copies of all of the operand, for each operator that reads the result.
    """
    sizes = [1 if d in numbers.inserted_window_dims else n for d, n in enumerate(x.shape)]
    starts = [np.zeros((), index.dtype)] * x.ndim
    taken = np.True_
    for d, start in zip(numbers.scatter_dims_to_operand_dims, lax.reshape(index, (index.size,)), strict=True):
        starts[d] = start
        taken &= (start >= 0) & (start <= x.shape[d] - sizes[d])
    updates = lax.reshape(updates, sizes)
    if combine is not None:
        updates = combine(lax.dynamic_slice(x, starts, sizes), updates)
    write = functools.partial(lax.dynamic_update_slice, start_indices=starts, allow_negative_indices=False)
    return lax.cond(taken, write, lambda x, _: x, x, updates)
