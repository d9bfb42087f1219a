"""Cumulative operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.row_scans import Carry, row_by_row
from ..kernel_base.platform import by_platform, is_open
from ..kernel_base.promotion import cast, compute_type, is_complex, is_float
from . import complex_functions
from .reduction import chosen_values, in_result_dtype, positions, total, with_axis

Scan = Callable[[jax.Array, int], Any]


def _by_platform(on_cpu: Scan, elsewhere: Scan, of_open: Scan | None = None) -> Scan:
    """A scan that goes row by row on a CPU, where XLA's makes a pass over the data for each power of two.

    `of_open` is that for a CPU of arrays whose sizes are open, `elsewhere` if there is none.
    """

    def scan(x: jax.Array, axis: int) -> Any:
        cpu = (of_open or elsewhere) if is_open(x) else on_cpu
        return by_platform(x, cpu=lambda x: cpu(x, axis), default=lambda x: elsewhere(x, axis))

    return scan


def _running(combine: Callable[[jax.Array, jax.Array], jax.Array], start: float, elsewhere: Scan) -> Scan:
    """The scan by a function of two arrays, from its identity element, in double precision as in ATen."""

    def wide_of(x: jax.Array) -> np.dtype:
        return {"float32": np.dtype("float64"), "complex64": np.dtype("complex128")}.get(x.dtype.name, x.dtype)

    def of_open(x: jax.Array, axis: int) -> jax.Array:
        return cast(elsewhere(cast(x, wide_of(x)), axis), x.dtype)

    def on_cpu(x: jax.Array, axis: int) -> jax.Array:
        wide = wide_of(x)
        return row_by_row(
            *(x, axis, (np.array(start, wide),)),
            element=lambda row, _: (cast(row, wide),),
            combine=lambda a, b: (combine(a[0], b[0]),),
            finish=lambda carry: cast(carry[0], x.dtype),
            ordered=combine is _log_add_exp and is_complex(x.dtype),
        )

    return _by_platform(on_cpu, elsewhere, of_open)


def _along(fn: Scan, x: jax.Array, dim: int) -> jax.Array:
    """`fn(x, axis)` in the computation type, as x's dtype."""
    flat, axis = with_axis(cast(x, compute_type(x.dtype)), dim)
    out = fn(flat, axis) if x.size else flat
    return cast(lax.reshape(out, x.shape), x.dtype)


_cumulative_sum = _running(lax.add, 0, lax.cumsum)


# aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@kernel("cumsum")
def cumsum(self, dim, dtype=None):
    return _along(_cumulative_sum, in_result_dtype(self, dtype), dim)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _cumulative_product(x: jax.Array, axis: int) -> jax.Array:
    return _running(lax.mul, 1, lax.cumprod)(x, axis)


@_cumulative_product.defjvp
def _cumulative_product_jvp(axis, primals, tangents):
    _, tangent = jax.jvp(lambda x: lax.cumprod(x, axis), primals, tangents)
    return _cumulative_product(*primals, axis), tangent


# aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@kernel("cumprod")
def cumprod(self, dim, dtype=None):
    return _along(_cumulative_product, in_result_dtype(self, dtype), dim)


def _log_add_exp(total: jax.Array, x: jax.Array) -> jax.Array:
    """log(exp(total) + exp(x)), also for infinities and NaN: aten/src/ATen/native/cpu/LogAddExp.h."""
    if is_complex(x.dtype):
        return complex_functions.log_add_exp(x, total)
    equal = (total == x) & jnp.isinf(x)
    return jnp.where(equal, x, lax.max(total, x) + lax.log1p(lax.exp(-lax.abs(total - x))))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_cumulative_sum_exp(x: jax.Array, axis: int) -> jax.Array:
    return _running(_log_add_exp, -math.inf, lax.cumlogsumexp)(x, axis)


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


# aten::{logcumsumexp, _logcumsumexp}(Tensor self, int dim) -> Tensor
@kernel("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self, dim):
    return _along(_log_cumulative_sum_exp, self, dim)


def _lowest(dtype: np.dtype, sign: int) -> np.ndarray:
    """The lowest number of a dtype; the highest for the sign -1."""
    if dtype == bool:
        return np.array(sign < 0)
    if is_float(dtype):
        return np.array(-sign * math.inf, dtype)
    return np.array(np.iinfo(dtype).min if sign > 0 else np.iinfo(dtype).max, dtype)


def _cumulative_extremum(scan, is_beyond, sign):
    """The kernel of a running extremum, with the index of its last occurrence; once NaN, it stays NaN."""

    def later(a: Carry, b: Carry) -> Carry:
        wins = is_beyond(b[0], a[0]) | (b[0] != b[0])
        return jnp.where(wins, b[0], a[0]), jnp.where(wins, b[1], a[1])

    def on_cpu(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        start = _lowest(x.dtype, sign), np.zeros((), np.int32 if x.shape[axis] < 2**31 else np.int64)
        return row_by_row(x, axis, start, lambda row, at: (row, at), later, lambda carry: carry)

    def elsewhere(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        values = cast(scan(cast(x, "uint8"), axis), bool) if x.dtype == bool else scan(x, axis)
        at = positions(x.shape, axis)
        hit = (x == values) | (x != x)
        return values, lax.cummax(jnp.where(hit, at, jnp.zeros((), at.dtype)), axis)

    def cumulative(self, dim):
        x, axis = with_axis(self, dim)
        if not self.ndim or not x.size:
            return lax.copy_p.bind(self), jnp.zeros(self.shape, np.int64)
        values, indices = _by_platform(on_cpu, elsewhere)(lax.stop_gradient(x), axis)
        values = chosen_values(x, values, indices, axis)
        return lax.reshape(values, self.shape), cast(lax.reshape(indices, self.shape), "int64")

    return cumulative


# aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)
kernel("cummax")(_cumulative_extremum(lax.cummax, lax.ge, 1))
# aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)
kernel("cummin")(_cumulative_extremum(lax.cummin, lax.le, -1))


# aten::trace(Tensor self) -> Tensor
@kernel("trace")
def trace(self):
    if self.ndim != 2:
        raise RuntimeError("trace: expected a matrix")
    return total(in_result_dtype(jnp.diagonal(self), None), (0,))
