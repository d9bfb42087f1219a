"""Division as ATen rounds it."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b`, rounded correctly.

    XLA turns the division by a broadcast or constant `b` into a product with 1 / b, so that 49 / 49 is less than 1. A
    divisor that depends on `a` prevents that, and where `a` is NaN it makes no difference.
    """
    return a / jnp.where(jnp.isnan(a), a, b)
