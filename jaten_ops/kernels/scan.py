"""Cumulative operations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from .promotion import cast, compute_type, is_float
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_cumulative_sum_exp(x: jax.Array, axis: int) -> jax.Array:
    return lax.cumlogsumexp(x, axis)


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
