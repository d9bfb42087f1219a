"""Division as ATen rounds it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b`, rounded correctly; it has no derivative by `b` of its own.

    XLA turns the division by a broadcast or constant `b` into a product with 1 / b, so that 49 / 49 is less than 1. A
    divisor that depends on `a` prevents that: in float32 it gets bits of `a` of which none is left, as LLVM finds out,
    but not XLA. In other dtypes it is `a` where that is NaN, which makes no difference.
    """
    if a.dtype != np.float32:
        return a / jnp.where(jnp.isnan(a), a, b)
    a, b = jnp.broadcast_arrays(a, b)
    sign = lax.shift_right_logical(lax.bitcast_convert_type(a, np.uint32), np.uint32(31))
    none = lax.shift_right_logical(sign, np.uint32(1))
    return a / lax.bitcast_convert_type(lax.bitcast_convert_type(b, np.uint32) | none, np.float32)
