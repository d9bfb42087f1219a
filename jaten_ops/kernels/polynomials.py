"""Orthogonal polynomials by their recurrences; Chebyshev's of high degree by their trigonometric form.

Source: aten/src/ATen/native/Math.h. The degree is a tensor too, so the recurrence runs to the highest one.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, float_type

Recurrence = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _recur(x: jax.Array, n: jax.Array, first: jax.Array, step: Recurrence) -> jax.Array:
    """The polynomial of degree n, from those of degree 0 (which is 1) and 1.

    Args:
        x, n: of one shape; n is an integer, as a float.
        first: the polynomial of degree 1.
        step: from (k, x, P(k - 2), P(k - 1)) the polynomial P(k).
    """

    def going(state):
        k, _, current = state
        return (k <= n) & ~jnp.isnan(current)

    def body(state):
        k, previous, current = state
        on = going(state)
        following = step(k, x, previous, current)
        return k + 1, jnp.where(on, current, previous), jnp.where(on, following, current)

    start = (jnp.asarray(2, x.dtype), jnp.ones_like(x), first)
    _, _, current = lax.while_loop(lambda state: jnp.any(going(state)), body, start)
    return jnp.where(n < 0, jnp.zeros_like(x), jnp.where(n == 0, jnp.ones_like(x), current))


def _sign(n: jax.Array) -> jax.Array:
    """(-1)^n"""
    return 1 - 2 * lax.abs(lax.rem(n, jnp.full_like(n, 2)))


# kind: (P(1), degrees above which the trigonometric form is used (plain, shifted), that form by (n, acos x),
#        the values at 1 and at -1 by n)
_CHEBYSHEV = {
    "t": (
        lambda x: x,
        (6, 6),
        lambda n, a: lax.cos(n * a),
        jnp.ones_like,
        _sign,
    ),
    "u": (
        lambda x: x + x,
        (8, 6),
        lambda n, a: lax.sin((n + 1) * a) / lax.sin(a),
        lambda n: n + 1,
        lambda n: _sign(n) * (n + 1),
    ),
    "v": (
        lambda x: x + x - 1,
        (8, 6),
        lambda n, a: lax.cos((n + 0.5) * a) / lax.cos(a * 0.5),
        jnp.ones_like,
        lambda n: _sign(n) * (n + n + 1),
    ),
    "w": (
        lambda x: x + x + 1,
        (8, 4),
        lambda n, a: lax.sin((n + 0.5) * a) / lax.sin(a * 0.5),
        lambda n: n + n + 1,
        _sign,
    ),
}


def _chebyshev(kind: str, shifted: bool) -> Callable[..., jax.Array]:
    first, limits, trigonometric, at_one, at_minus_one = _CHEBYSHEV[kind]

    def chebyshev(x, n):
        x = x + x - 1 if shifted else x
        closed = (n > limits[shifted]) & (lax.abs(x) < 1)
        special = closed | (lax.abs(x) == 1)
        low_degree = jnp.where(special & (n >= 0), jnp.zeros_like(n), n)
        value = _recur(x, low_degree, first(x), lambda k, x, p, q: (x + x) * q - p)
        value = jnp.where(closed, trigonometric(n, lax.acos(jnp.where(closed, x, jnp.zeros_like(x)))), value)
        value = jnp.where((x == 1) & (n >= 0), at_one(n), value)
        return jnp.where((x == -1) & (n >= 0), at_minus_one(n), value)

    return chebyshev


def _hermite(factor: float) -> Callable[..., jax.Array]:
    """The physicists' polynomials for 2, the probabilists' for 1."""

    def hermite(x, n):
        limit = 128 if x.dtype == np.float32 else 512
        value = _recur(x, n, factor * x, lambda k, x, p, q: factor * (x * q - (k - 1) * p))
        return jnp.where(n > limit, jnp.full_like(x, jnp.nan), value)

    return hermite


def _laguerre(x: jax.Array, n: jax.Array) -> jax.Array:
    value = _recur(x, n, 1 - x, lambda k, x, p, q: ((2 * k - 1 - x) * q - (k - 1) * p) / k)
    return jnp.where((x == 0) & (n >= 0), jnp.ones_like(x), value)


def _legendre(x: jax.Array, n: jax.Array) -> jax.Array:
    value = _recur(x, n, x, lambda k, x, p, q: ((2 * k - 1) * x * q - (k - 1) * p) / k)
    value = jnp.where((x == 1) & (n >= 0), jnp.ones_like(x), value)
    return jnp.where((x == -1) & (n >= 0), _sign(n), value)


_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": _chebyshev(kind, False) for kind in _CHEBYSHEV},
    **{f"special_shifted_chebyshev_polynomial_{kind}": _chebyshev(kind, True) for kind in _CHEBYSHEV},
    "special_hermite_polynomial_h": _hermite(2),
    "special_hermite_polynomial_he": _hermite(1),
    "special_laguerre_polynomial_l": _laguerre,
    "special_legendre_polynomial_p": _legendre,
}


def _polynomial_kernel(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def polynomial(x, n):
        dtype = float_type(x, n)
        x, n = jnp.broadcast_arrays(cast(x, dtype), cast(n, dtype))
        # C++ converts numbers that an integer cannot hold, such as NaN and 1e30, to the lowest integer: no degree
        degree = jnp.where(lax.abs(n) < 2.0**63, jnp.trunc(n), -jnp.ones_like(n))
        return fn(x, degree)

    return polynomial


# aten::{special_chebyshev_polynomial_t, special_chebyshev_polynomial_u, special_chebyshev_polynomial_v,
#     special_chebyshev_polynomial_w, special_shifted_chebyshev_polynomial_t, special_shifted_chebyshev_polynomial_u,
#     special_shifted_chebyshev_polynomial_v, special_shifted_chebyshev_polynomial_w, special_hermite_polynomial_h,
#     special_hermite_polynomial_he, special_laguerre_polynomial_l, special_legendre_polynomial_p}(Tensor x,
#     Tensor n) -> Tensor
# aten::{special_chebyshev_polynomial_t, special_chebyshev_polynomial_u, special_chebyshev_polynomial_v,
#     special_chebyshev_polynomial_w, special_shifted_chebyshev_polynomial_t, special_shifted_chebyshev_polynomial_u,
#     special_shifted_chebyshev_polynomial_v, special_shifted_chebyshev_polynomial_w, special_hermite_polynomial_h,
#     special_hermite_polynomial_he, special_laguerre_polynomial_l, special_legendre_polynomial_p}.n_scalar(Tensor x,
#     Scalar n) -> Tensor
# aten::{special_chebyshev_polynomial_t, special_chebyshev_polynomial_u, special_chebyshev_polynomial_v,
#     special_chebyshev_polynomial_w, special_shifted_chebyshev_polynomial_t, special_shifted_chebyshev_polynomial_u,
#     special_shifted_chebyshev_polynomial_v, special_shifted_chebyshev_polynomial_w, special_hermite_polynomial_h,
#     special_hermite_polynomial_he, special_laguerre_polynomial_l, special_legendre_polynomial_p}.x_scalar(Scalar x,
#     Tensor n) -> Tensor
for _name, _fn in _POLYNOMIALS.items():
    kernel(_name, f"{_name}.n_scalar", f"{_name}.x_scalar")(_polynomial_kernel(_fn))
