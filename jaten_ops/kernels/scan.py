"""Cumulative operations."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from .promotion import cast, compute_type, is_complex, is_float
from .reduction import choose, positions, total, widened, with_axis


def _along(fn, x: jax.Array, dim: int) -> jax.Array:
    """`fn(x, axis)` in the computation type, as x's dtype."""
    flat, axis = with_axis(cast(x, compute_type(x.dtype)), dim)
    out = fn(flat, axis) if x.size else flat
    return cast(lax.reshape(out, x.shape), x.dtype)


@kernel("cumsum")
def cumsum(self, dim, dtype=None):
    return _along(lax.cumsum, widened(self, dtype), dim)


@kernel("cumprod")
def cumprod(self, dim, dtype=None):
    return _along(lax.cumprod, widened(self, dtype), dim)


def _with_real_infinity(out: jax.Array, infinite: jax.Array) -> jax.Array:
    return lax.complex(jnp.where(infinite, jnp.inf, lax.real(out)), lax.imag(out))


def _exp(x: jax.Array) -> jax.Array:
    """The exponential of complex numbers as in C, where XLA has NaN: inf + nan i for inf + inf i."""
    return _with_real_infinity(lax.exp(x), (lax.real(x) == jnp.inf) & jnp.isinf(lax.imag(x)))


def _log(x: jax.Array) -> jax.Array:
    """The logarithm of complex numbers as in C, where XLA has NaN: inf + nan i for nan + inf i."""
    return _with_real_infinity(lax.log(x), jnp.isinf(lax.real(x)) | jnp.isinf(lax.imag(x)))


def _log_add_exp(x: jax.Array, y: jax.Array) -> jax.Array:
    """log(exp(x) + exp(y)) of complex numbers, with an imaginary part that goes on beyond pi (cpu/LogAddExp.h)."""
    swap = lax.real(x) < lax.real(y)
    low, high = jnp.where(swap, x, y), jnp.where(swap, y, x)
    infinite = (lax.real(low) == lax.real(high)) & jnp.isinf(lax.real(low))
    both = jnp.where(lax.real(low) < 0, low, _log(_exp(low) + _exp(high)))
    # the exponential of -inf is 0 in any direction, also in none
    ratio = jnp.where(lax.real(low - high) == -jnp.inf, jnp.zeros_like(low), lax.exp(low - high))
    out = jnp.where(infinite, both, lax.log1p(ratio) + high)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), np.array(complex(math.nan, math.nan), x.dtype), out)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_cumulative_sum_exp(x: jax.Array, axis: int) -> jax.Array:
    if not is_complex(x.dtype):
        return lax.cumlogsumexp(x, axis)
    rows = jnp.moveaxis(x, axis, 0)  # one after the other: how often the sum has turned depends on the order

    def step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = _log_add_exp(row, total)
        return total, total

    return jnp.moveaxis(lax.scan(step, jnp.full(rows.shape[1:], -jnp.inf, x.dtype), rows)[1], 0, axis)


@_log_cumulative_sum_exp.defjvp
def _log_cumulative_sum_exp_jvp(axis, primals, tangents):
    (x,), (tangent,) = primals, tangents
    out = _log_cumulative_sum_exp(x, axis)
    # out'[j] = exp(out[j-1] - out[j]) out'[j-1] + exp(x[j] - out[j]) x'[j]
    before = lax.slice_in_dim(out, 0, out.shape[axis] - 1, axis=axis)
    after = lax.slice_in_dim(out, 1, out.shape[axis], axis=axis)
    decay = jnp.where(before == after, jnp.ones((), out.dtype), lax.exp(before - after))  # also where both are infinite
    decay = jnp.concatenate([jnp.zeros_like(lax.slice_in_dim(out, 0, 1, axis=axis)), decay], axis)
    terms = (decay, lax.exp(x - out) * tangent)
    _, sums = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), terms, axis=axis)
    return out, sums


@kernel("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self, dim):
    return _along(_log_cumulative_sum_exp, self, dim)


def _cumulative_extremum(scan):
    def cumulative(self, dim):
        """The index of a running extremum is that of its last occurrence; NaN stays, with the index of the last NaN."""
        x, axis = with_axis(self, dim)
        if not x.size:
            return self, cast(self, "int64")
        fixed = lax.stop_gradient(x)
        values = scan(fixed, axis)
        hit = fixed == values
        if is_float(x.dtype):
            hit = hit | (fixed != fixed)
        at = positions(x.shape, axis)
        indices = lax.cummax(jnp.where(hit, at, jnp.zeros((), at.dtype)), axis)
        values = choose(x, values, indices, axis)
        return lax.reshape(values, self.shape), cast(lax.reshape(indices, self.shape), "int64")

    return cumulative


def _on_bool(scan):
    """lax.cummax and lax.cummin for bool, which they do not take."""
    return lambda x, axis: cast(scan(cast(x, "uint8"), axis), bool) if x.dtype == bool else scan(x, axis)


kernel("cummax")(_cumulative_extremum(_on_bool(lax.cummax)))
kernel("cummin")(_cumulative_extremum(_on_bool(lax.cummin)))


@kernel("trace")
def trace(self):
    if self.ndim != 2:
        raise RuntimeError("trace: expected a matrix")
    return total(widened(jnp.diagonal(self), None), (0,))
