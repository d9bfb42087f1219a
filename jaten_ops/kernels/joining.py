"""Joining, repeating, flipping and rolling."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.observers import known_values
from ..kernel_base.checks import require
from ..kernel_base.promotion import cast, get_default_float, result_type
from .views import wrap_dim


# aten::cat(Tensor[] tensors, int dim=0) -> Tensor
@kernel("cat")
def cat(tensors, dim=0):
    dtype = result_type(*tensors) if tensors else get_default_float()
    # for compatibility, ATen joins an empty 1-d tensor with anything
    joined = [cast(x, dtype) for x in tensors if x.shape != (0,)]
    if not joined:
        return lax.full((0,), 0, dtype)
    return lax.concatenate(joined, wrap_dim(dim, joined[0].ndim)) if len(joined) > 1 else joined[0]


def joined(tensors):
    """All elements of tensors of one dtype, in order. The kernel of `jaten_nn::joined`."""
    # kept apart, since XLA would compute all of them in one loop, with a condition for each
    return lax.concatenate(lax.optimization_barrier([lax.reshape(x, (x.size,)) for x in tensors]), 0)


def part(joined, start, shape):
    """The elements of such a tensor from one on, in a shape. The kernel of `jaten_nn::part`.

    Args:
        joined, shape: the tensor and the shape.
        start: the first of the elements, or an array of numbers that add up to it (see `summands`).
    """
    first = start if isinstance(start, int) else start[0] + start[1] + start[2]
    return lax.reshape(lax.dynamic_slice(joined, (first,), (math.prod(shape),)), shape)


def summands(start: int) -> np.ndarray:
    """A place as an operand of an executable.

    Where a loop has what it computes several times as a function of its own, LLVM hands a single number to it by
    value, no longer knows that it stays as it is, and does not vectorize the loop. Three numbers are left in memory.
    """
    return np.array([start, 0, 0], np.uint32)


# aten::{stack, _stack}(Tensor[] tensors, int dim=0) -> Tensor
@kernel("stack", "_stack")
def stack(tensors, dim=0):
    dtype = result_type(*tensors) if tensors else get_default_float()
    dim = wrap_dim(dim, tensors[0].ndim + 1)
    return lax.concatenate([lax.expand_dims(cast(x, dtype), (dim,)) for x in tensors], dim)


# aten::block_diag(Tensor[] tensors) -> Tensor
@kernel("block_diag")
def block_diag(tensors):
    blocks = [lax.reshape(x, (1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in tensors]
    dtype = result_type(*tensors) if tensors else get_default_float()
    width, at, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        columns = block.shape[1]
        rows.append(lax.pad(cast(block, dtype), np.zeros((), dtype), [(0, 0, 0), (at, width - at - columns, 0)]))
        at += columns
    return lax.concatenate(rows, 0) if rows else lax.full((1, 0), 0, dtype)


# aten::_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor
@kernel("_chunk_cat")
def chunk_cat(tensors, dim, num_chunks):
    """Each tensor padded with zeros to `num_chunks` equal chunks, flattened, and joined chunk by chunk."""
    dim, dtype = wrap_dim(dim, tensors[0].ndim), result_type(*tensors)
    parts = []
    for x in tensors:
        length = -(-x.shape[dim] // num_chunks) * num_chunks
        config = [(0, length - x.shape[dim] if d == dim else 0, 0) for d in range(x.ndim)]
        padded = lax.pad(cast(x, dtype), np.zeros((), dtype), config)
        lead = padded.shape[:dim]
        parts.append(lax.reshape(padded, (*lead, num_chunks, padded.size // max(num_chunks * math.prod(lead), 1))))
    return lax.concatenate(parts, parts[0].ndim - 1)


# aten::repeat(Tensor self, SymInt[] repeats) -> Tensor
@kernel("repeat")
def repeat(self, repeats):
    shape = (1,) * (len(repeats) - self.ndim) + self.shape
    interleaved = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    lead = len(repeats) - self.ndim
    x = lax.broadcast_in_dim(self, interleaved, [2 * (lead + d) + 1 for d in range(self.ndim)])
    return lax.reshape(x, [r * n for r, n in zip(repeats, shape, strict=True)])


# aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor
@kernel("repeat_interleave.Tensor", eager=lambda repeats, output_size=None: output_size is None)
def repeat_interleave(repeats, *, output_size=None):
    """Each index i, repeated repeats[i] times."""
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (np.int32, np.int64):
        raise NotImplementedError(f'"repeat_interleave" not implemented for {repeats.dtype}')
    require(repeats >= 0, RuntimeError, "repeats can not be negative")
    ends = jnp.cumsum(repeats, dtype=repeats.dtype)
    if output_size is None:
        output_size = max(int(known_values(ends[-1])), 0) if ends.size else 0
    if not ends.size:
        return lax.full((output_size,), 0, repeats.dtype)
    return jnp.searchsorted(ends, lax.iota(repeats.dtype, output_size), side="right").astype(repeats.dtype)


# aten::flip(Tensor self, int[] dims) -> Tensor
@kernel("flip")
def flip(self, dims):
    return lax.rev(self, [wrap_dim(d, self.ndim) for d in dims]) if self.ndim else self


# aten::rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor
@kernel("rot90")
def rot90(self, k=1, dims=(0, 1)):
    first, second = (wrap_dim(d, self.ndim) for d in dims)
    order = list(range(self.ndim))
    order[first], order[second] = second, first
    match k % 4:
        case 0:
            return self
        case 1:
            return lax.transpose(lax.rev(self, [second]), order)
        case 2:
            return lax.rev(self, [first, second])
        case _:
            return lax.transpose(lax.rev(self, [first]), order)


# aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor
@kernel("roll")
def roll(self, shifts, dims=()):
    if not dims:
        return lax.reshape(_roll(lax.reshape(self, (self.size,)), {0: shifts[0]}), self.shape)
    by_dim: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        by_dim[wrap_dim(dim, self.ndim)] = by_dim.get(wrap_dim(dim, self.ndim), 0) + shift
    return _roll(self, by_dim)


def _roll(x: jax.Array, shifts: dict[int, int]) -> jax.Array:
    """Rolled along several dimensions: the two parts by the first shift are rolled further, so that data moves once."""
    if not shifts:
        return x
    (dim, shift), *rest = shifts.items()
    others = dict(rest)
    length = x.shape[dim] if x.ndim else 0
    cut = -shift % length if length else 0
    if not cut:
        return _roll(x, others)
    ends = (cut, length), (0, cut)
    return lax.concatenate([_roll(lax.slice_in_dim(x, a, b, 1, dim), others) for a, b in ends], dim)


# Channels and pixels


# aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor
@kernel("pixel_shuffle")
def pixel_shuffle(self, upscale_factor):
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    x = lax.reshape(self, (*batch, channels // (r * r), r, r, height, width))
    x = lax.transpose(x, [*range(n + 1), n + 3, n + 1, n + 4, n + 2])
    return lax.reshape(x, (*batch, channels // (r * r), height * r, width * r))


# aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor
@kernel("pixel_unshuffle")
def pixel_unshuffle(self, downscale_factor):
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    x = lax.reshape(self, (*batch, channels, height // r, r, width // r, r))
    x = lax.transpose(x, [*range(n + 1), n + 2, n + 4, n + 1, n + 3])
    return lax.reshape(x, (*batch, channels * r * r, height // r, width // r))


# aten::{channel_shuffle, native_channel_shuffle}(Tensor self, SymInt groups) -> Tensor
@kernel("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self, groups):
    batch, channels, *rest = self.shape
    x = lax.reshape(self, (batch, groups, channels // groups, *rest))
    return lax.reshape(lax.transpose(x, [0, 2, 1, *range(3, x.ndim)]), self.shape)
