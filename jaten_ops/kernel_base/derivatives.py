"""Derivatives that follow ATen where JAX's differ: at ties, zeros and edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from .promotion import is_inexact

Partial = Callable[..., jax.Array] | None


def with_partials(fn: Callable[..., jax.Array], *partials: Partial) -> Callable[..., jax.Array]:
    """An elementwise function with given partial derivatives in place of JAX's.

    Args:
        fn: a function of arrays of one dtype, which it broadcasts.
        partials: for each parameter a function of (result, *arguments), differentiable itself. It returns a factor for
            the tangent, or a bool mask of where the derivative is 1 (elsewhere it is 0). None: zero everywhere.
    """
    custom = jax.custom_jvp(fn)

    def jvp(primals: Any, tangents: Any) -> Any:
        result = custom(*primals)
        total = None
        for partial, tangent in zip(partials, tangents, strict=True):
            if partial is None or isinstance(tangent, SymbolicZero):
                continue
            factor = partial(result, *primals)
            if factor.dtype == bool:
                term = jnp.where(factor, tangent, jnp.zeros((), result.dtype))
            else:
                term = tangent * factor
            total = term if total is None else total + term
        if total is None:
            return result, jnp.zeros(result.shape, result.dtype)
        return result, jnp.broadcast_to(total, result.shape)

    custom.defjvp(jvp, symbolic_zeros=True)

    def call(*args: jax.Array) -> jax.Array:
        return custom(*args) if is_inexact(args[0].dtype) else fn(*args)

    return call
