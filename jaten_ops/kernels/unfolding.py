"""Windows along one dimension, which may overlap, as copies."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from .views import at_least_1d, move_axis, wrap_dim

_MOST_SLICES = 32  # up to this many windows are slices, more are a gather
_LEAST_BLOCK = 8  # elements side by side that are worth a copy by themselves


# aten::{unfold, unfold_copy}(Tensor self, int dimension, int size, int step) -> Tensor
@kernel("unfold", "unfold_copy")
def unfold(self, dimension, size, step):
    x = at_least_1d(self)
    if self.ndim == 0:
        return lax.slice_in_dim(x, 0, size)
    dim = wrap_dim(dimension, x.ndim)
    count = (x.shape[dim] - size) // step + 1
    if size == 0:
        return lax.full((*x.shape[:dim], count, *x.shape[dim + 1 :], 0), 0, x.dtype)
    block = math.gcd(size, step)
    if size // block <= _MOST_SLICES and (dim < x.ndim - 1 or block >= _LEAST_BLOCK):
        return _blocks(x, dim, count, size, step)
    if min(size, count) > _MOST_SLICES:
        starts = lax.iota(np.int32, count) * np.int32(step)
        windows = jnp.take(x, starts[:, None] + lax.iota(np.int32, size), axis=dim, mode="clip")
        return move_axis(windows, dim + 1, x.ndim)
    if size <= count:
        parts = [lax.slice_in_dim(x, k, k + (count - 1) * step + 1, step, dim) for k in range(size)]
        return lax.concatenate([lax.expand_dims(p, (x.ndim,)) for p in parts], x.ndim)
    windows = [lax.slice_in_dim(x, k * step, k * step + size, 1, dim) for k in range(count)]
    return move_axis(lax.concatenate([lax.expand_dims(w, (dim,)) for w in windows], dim), dim + 1, x.ndim)


def _blocks(x: jax.Array, dim: int, count: int, size: int, step: int) -> jax.Array:
    """Windows put together of the first blocks of all, the second ones, and so on: what overlaps is whole blocks."""
    block = math.gcd(size, step)
    lead, rest, apart = x.shape[:dim], x.shape[dim + 1 :], step // block
    whole = lax.slice_in_dim(x, 0, x.shape[dim] // block * block, 1, dim)
    blocks = lax.reshape(whole, (*lead, whole.shape[dim] // block, block, *rest))
    parts = [lax.slice_in_dim(blocks, k, k + (count - 1) * apart + 1, apart, dim) for k in range(size // block)]
    windows = lax.concatenate([lax.expand_dims(p, (dim + 1,)) for p in parts], dim + 1)
    return move_axis(lax.reshape(windows, (*lead, count, size, *rest)), dim + 1, x.ndim)


# aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor
@kernel("unfold_backward")
def unfold_backward(grad_in, input_sizes, dim, size, step):
    like = jax.ShapeDtypeStruct(input_sizes, grad_in.dtype)
    unfolded = functools.partial(unfold, dimension=dim, size=size, step=step)
    grad_in = jnp.broadcast_to(grad_in, jax.eval_shape(unfolded, like).shape)  # ATen broadcasts it, as istft asks
    return jax.linear_transpose(unfolded, like)(grad_in)[0]
