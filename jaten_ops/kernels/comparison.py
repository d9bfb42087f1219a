"""Comparisons, minima and maxima, clamping, selection by a condition."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.derivatives import with_partials
from ..kernel_base.number_ranges import lower_bound, upper_bound
from ..kernel_base.promotion import cast, is_complex, is_inexact, promote, result_type

_COMPARISONS = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}


def _promoted(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def promoted(self, other):
        return fn(*promote(self, other))

    return promoted


# aten::{eq, ne, lt, le, gt, ge}.Tensor(Tensor self, Tensor other) -> Tensor
# aten::{eq, ne, lt, le, gt, ge}.Scalar(Tensor self, Scalar other) -> Tensor
for _name, _fn in _COMPARISONS.items():
    kernel(f"{_name}.Tensor", f"{_name}.Scalar")(_promoted(_fn))


def _weight(wins: jax.Array, ties: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """1 where an operand wins, 1/2 where both are equal."""
    return jnp.where(ties, jnp.asarray(0.5, dtype), cast(wins, dtype))


def _fmax(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((a >= b) | jnp.isnan(b), a, b)


def _fmin(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((a <= b) | jnp.isnan(b), a, b)


# NaN compares false, so it counts as a winner in maximum and minimum
_EXTREMA = {
    "maximum": with_partials(
        jnp.maximum,
        lambda r, a, b: _weight(~(a < b), a == b, r.dtype),
        lambda r, a, b: _weight(~(a > b), a == b, r.dtype),
    ),
    "minimum": with_partials(
        jnp.minimum,
        lambda r, a, b: _weight(~(a > b), a == b, r.dtype),
        lambda r, a, b: _weight(~(a < b), a == b, r.dtype),
    ),
    "fmax": with_partials(_fmax, lambda r, a, b: (a >= b) | jnp.isnan(b), lambda r, a, b: ~((a >= b) | jnp.isnan(b))),
    "fmin": with_partials(_fmin, lambda r, a, b: (a <= b) | jnp.isnan(b), lambda r, a, b: ~((a <= b) | jnp.isnan(b))),
}

# aten::{maximum, minimum, fmax, fmin}(Tensor self, Tensor other) -> Tensor
for _name, _fn in _EXTREMA.items():
    kernel(_name)(_promoted(_fn))

_at_least = with_partials(jnp.maximum, lambda r, x, low: x >= low, lambda r, x, low: x < low)
_at_most = with_partials(jnp.minimum, lambda r, x, high: x <= high, lambda r, x, high: x > high)
_between = with_partials(
    lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high),
    lambda r, x, low, high: (x >= low) & (x <= high),
    lambda r, x, low, high: (x < low) & (low < high),
    lambda r, x, low, high: (x > high) | (high < low),
)


# aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor
# aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor
@kernel("clamp", "clamp.Tensor")
def clamp(self, min=None, max=None):
    dtype = result_type(self, min, max)
    if min is None:
        return _at_most(cast(self, dtype), upper_bound(max, dtype))
    if max is None:
        return _at_least(cast(self, dtype), lower_bound(min, dtype))
    return _between(cast(self, dtype), lower_bound(min, dtype), upper_bound(max, dtype))


def _bounded(fn: Callable[..., jax.Array], limit: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def bounded(self, other):
        dtype = result_type(self, other)
        return fn(cast(self, dtype), limit(other, dtype))

    return bounded


# aten::clamp_min(Tensor self, Scalar min) -> Tensor
# aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor
kernel("clamp_min", "clamp_min.Tensor")(_bounded(_at_least, lower_bound))
# aten::clamp_max(Tensor self, Scalar max) -> Tensor
# aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor
kernel("clamp_max", "clamp_max.Tensor")(_bounded(_at_most, upper_bound))


# aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
@kernel("where.self")
def where(condition, self, other):
    if condition.dtype == np.uint8:  # ATen warns once, too
        warnings.warn(
            "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future"
            " version of PyTorch. Use a boolean condition instead.",
            stacklevel=2,
        )
    return jnp.where(cast(condition, bool), *promote(self, other))


# --- classes of floating point numbers ------------------------------------------------------------------------------


# aten::isnan(Tensor self) -> Tensor
@kernel("isnan")
def isnan(self):
    return self != self if is_inexact(self.dtype) else jnp.zeros(self.shape, bool)


# aten::isinf(Tensor self) -> Tensor
@kernel("isinf")
def isinf(self):
    if is_complex(self.dtype):
        return isinf(lax.real(self)) | isinf(lax.imag(self))
    return lax.abs(self) == jnp.inf if is_inexact(self.dtype) else jnp.zeros(self.shape, bool)


# aten::isposinf(Tensor self) -> Tensor
@kernel("isposinf")
def isposinf(self):
    return self == jnp.inf if is_inexact(self.dtype) else jnp.zeros(self.shape, bool)


# aten::isneginf(Tensor self) -> Tensor
@kernel("isneginf")
def isneginf(self):
    return self == -jnp.inf if is_inexact(self.dtype) else jnp.zeros(self.shape, bool)


# --- logic ----------------------------------------------------------------------------------------------------------

_LOGIC = {"logical_and": jnp.bitwise_and, "logical_or": jnp.bitwise_or, "logical_xor": jnp.bitwise_xor}


def _of_truth(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def of_truth(self, other):
        return fn(cast(self, bool), cast(other, bool))

    return of_truth


# aten::{logical_and, logical_or, logical_xor}(Tensor self, Tensor other) -> Tensor
for _name, _fn in _LOGIC.items():
    kernel(_name)(_of_truth(_fn))


# aten::logical_not(Tensor self) -> Tensor
@kernel("logical_not")
def logical_not(self):
    return ~cast(self, bool)
