"""Maximum and minimum over dimensions, NaN if an element is NaN.

For a large array XLA's CPU calls YNNPACK, which ignores NaNs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .platform import by_platform
from .promotion import is_float

Reduce = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def _with_nan(reduce: Reduce, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    def noticed(x: jax.Array) -> jax.Array:
        return jnp.where(lax.reduce_or(x != x, axes), np.array(np.nan, x.dtype), reduce(x, axes))

    if not is_float(x.dtype):
        return reduce(x, axes)
    return by_platform(x, cpu=noticed, default=lambda x: reduce(x, axes))


def reduce_max(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_max`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_max, x, axes)


def reduce_min(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`lax.reduce_min`, NaN if an element is NaN."""
    return _with_nan(lax.reduce_min, x, axes)
