"""Vector norms and sums of powers."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.extrema import reduce_max, reduce_min
from ..kernel_base.promotion import cast, compute_type, is_complex, to_real
from . import complex_functions
from .arithmetic import sub
from .reduction import axes_of
from .unary import absolute


def _magnitude_squared(x: jax.Array) -> jax.Array:
    if not is_complex(x.dtype):
        return lax.square(x)
    return complex_functions.unless_infinite(x, lax.square(lax.real(x)) + lax.square(lax.imag(x)))


def _power_sum(x: jax.Array, p: float, axes: tuple[int, ...]) -> jax.Array:
    """The sum of |x|^p, dimensions kept."""
    real = to_real(x.dtype)
    if p == 2:
        powers = _magnitude_squared(x)
    else:
        powers = absolute(x) if p == 1 else lax.pow(absolute(x), np.array(p, real))
    return lax.expand_dims(lax.reduce_sum(powers, axes), axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def p_norm(x: jax.Array, p: float, axes: tuple[int, ...]) -> jax.Array:
    """The p-norm over some axes, which stay as 1, with ATen's gradients at 0 and at ties."""
    if math.isinf(p):
        reduce = reduce_max if p > 0 else reduce_min
        return lax.expand_dims(reduce(absolute(x), axes), axes)
    if p == 0:
        return lax.expand_dims(lax.reduce_sum(cast(x != 0, to_real(x.dtype)), axes), axes)
    powers = _power_sum(x, p, axes)
    if p == 1:
        return powers
    return lax.sqrt(powers) if p == 2 else lax.pow(powers, np.array(1 / p, powers.dtype))


@p_norm.defjvp
def _p_norm_jvp(p, axes, primals, tangents):
    (x,), (tangent,) = primals, tangents
    norm = p_norm(x, p, axes)
    slope, scale = _norm_slope(x, norm, p, axes)
    inner = lax.real(jnp.conj(slope) * tangent) if is_complex(x.dtype) else slope * tangent
    return norm, lax.expand_dims(lax.reduce_sum(inner, axes), axes) * scale


def _norm_slope(x: jax.Array, norm: jax.Array, p: float, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The gradient as a factor of x's shape times one of the norm's: norm_backward in FunctionsManual.cpp."""
    one, zero = jnp.ones((), norm.dtype), jnp.zeros((), norm.dtype)
    if p == 0:
        return jnp.zeros_like(x), one
    if p == 1:
        return lax.sign(x), one
    if math.isinf(p):
        magnitude = absolute(x)
        hit = cast((magnitude == norm) | (magnitude != magnitude), norm.dtype)
        return lax.sign(x) * hit, 1 / lax.expand_dims(lax.reduce_sum(hit, axes), axes)
    vanishes = norm == 0
    safe = jnp.where(vanishes, one, norm)
    if p == 2:
        return x, jnp.where(vanishes, zero, one / safe)
    if p < 1:
        at_zero = x == 0
        powers = lax.pow(jnp.where(at_zero, one, absolute(x)), np.array(p - 1, norm.dtype))
        return lax.sign(x) * jnp.where(at_zero, zero, powers), lax.pow(norm, np.array(1 - p, norm.dtype))
    scale = jnp.where(vanishes, zero, one / lax.pow(safe, np.array(p - 1, norm.dtype)))
    if p < 2:
        return lax.sign(x) * lax.pow(absolute(x), np.array(p - 1, norm.dtype)), scale
    return x * lax.pow(absolute(x), np.array(p - 2, norm.dtype)), scale


def vector_norm(x: jax.Array, p: float | None, dim, keepdim: bool, dtype: np.dtype | None) -> jax.Array:
    """The p-norm (2 if None) of x as `dtype`, which also is the result's, made real."""
    x = x if dtype is None else cast(x, dtype)
    axes = axes_of(x, dim)
    out = p_norm(cast(x, compute_type(x.dtype)), 2.0 if p is None else float(p), axes)
    out = cast(out, to_real(x.dtype))
    return out if keepdim else lax.squeeze(out, axes)


# aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *,
#     ScalarType? dtype=None) -> Tensor
@kernel("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, dtype=None):
    return vector_norm(self, ord, dim, keepdim, dtype)


# aten::linalg__powsum(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *,
#     ScalarType? dtype=None) -> Tensor
@kernel("linalg__powsum", static=("ord",))
def linalg_powsum(self, ord=2, dim=None, keepdim=False, dtype=None):
    x = self if dtype is None else cast(self, dtype)
    axes = axes_of(x, dim)
    out = cast(_power_sum(cast(x, compute_type(x.dtype)), float(ord), axes), to_real(x.dtype))
    return out if keepdim else lax.squeeze(out, axes)


# aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor
# aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor
@kernel("norm.Scalar", "norm.ScalarOpt_dtype", static=("p",))
def norm(self, p=2, dtype=None):
    return vector_norm(self, p, None, False, dtype)


# aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor
# aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor
@kernel("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", static=("p",))
def norm_dim(self, p, dim, keepdim=False, dtype=None):
    return vector_norm(self, p, dim, keepdim, dtype)


# aten::dist(Tensor self, Tensor other, Scalar p=2) -> Tensor
@kernel("dist", static=("p",))
def dist(self, other, p=2):
    return vector_norm(sub(self, other), p, None, False, None)
