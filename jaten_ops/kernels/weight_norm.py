"""Weight normalization, and `renorm`: slices of a tensor scaled to a norm."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.extrema import reduce_max
from ..kernel_base.promotion import cast
from .normalization import Dims, widen
from .reduction import extremum


def _norm_except(v: jax.Array, dim: int) -> jax.Array:
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    return jnp.sqrt(jnp.sum(v * v, dims, keepdims=True))


# aten::_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)
@kernel("_weight_norm_interface")
def weight_norm_interface(v, g, dim=0):
    wide, scale = widen(v, g, like=v)
    norm = _norm_except(wide, dim)
    return cast(wide * (scale / norm), v.dtype), lax.stop_gradient(norm)


# aten::_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms,
#     int dim) -> (Tensor, Tensor)
@kernel("_weight_norm_interface_backward")
def weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    grad, v, g, norm = widen(grad_w, saved_v, saved_g, saved_norms, like=saved_v)
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    along = jnp.sum(grad * v, dims, keepdims=True) / norm
    return cast((g / norm) * (grad - v * (along / norm)), saved_v.dtype), cast(along, saved_g.dtype)


def _p_norm(x: jax.Array, p: float, dims: Dims) -> jax.Array:
    """The p-norm over `dims`, kept, with gradient 0 where it is 0."""
    size = jnp.abs(x)
    if p == math.inf:
        return jnp.maximum(extremum(size, reduce_max, dims, False), 0)
    if p == 0:
        return jnp.sum(cast(size != 0, size.dtype), dims, keepdims=True)
    if p == 1:
        return jnp.sum(size, dims, keepdims=True)
    powers = jnp.sum(jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** p), dims, keepdims=True)
    return jnp.where(powers == 0, 0, jnp.where(powers == 0, 1, powers) ** (1 / p))


# aten::renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor
@kernel("renorm", static=("p",))
def renorm(self, p, dim, maxnorm):
    (x,) = widen(self, like=self)
    norm = _p_norm(x, float(p), tuple(d for d in range(x.ndim) if d != dim % x.ndim))
    limit = cast(maxnorm, norm.dtype)
    factor = jnp.where(norm > limit, limit / (norm + np.asarray(1e-7, norm.dtype)), 1)
    return cast(x * cast(factor, x.dtype), self.dtype)
