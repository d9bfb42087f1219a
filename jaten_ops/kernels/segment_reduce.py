"""Reductions of consecutive segments of an axis: aten/src/ATen/native/SegmentReduce.cpp."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base import checks
from ..kernel_base.promotion import cast, compute_type, is_float
from .sorting import binary_search

_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "max": -np.inf, "min": np.inf}


def _bounds(lengths: jax.Array | None, offsets: jax.Array | None) -> jax.Array:
    """The first element of each segment, and the end of the last: (..., segments + 1)."""
    if offsets is not None:
        return cast(offsets, "int64")
    if lengths is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    ends = lax.cumsum(cast(lengths, "int64"), lengths.ndim - 1)
    return jnp.pad(ends, [(0, 0)] * (ends.ndim - 1) + [(1, 0)])


def _segment_of(bounds: jax.Array, n: int) -> jax.Array:
    """The segment of each of n elements, (..., n); the number of segments for those in none."""
    at = jnp.broadcast_to(lax.iota(np.int64, n), (*bounds.shape[:-1], n))
    found = cast(binary_search(bounds, at, right=True), "int64") - 1
    segments = bounds.shape[-1] - 1
    return jnp.where(found < 0, segments, found)


def _flat(data: jax.Array, bounds: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, int]:
    """Data as (batch * n, inner), the row of the result that each belongs to, and the number of rows.

    Elements in no segment belong to a row beyond the last.
    """
    batch, n, segments = math.prod(data.shape[:axis]), data.shape[axis], bounds.shape[-1] - 1
    segment = _segment_of(bounds, n).reshape(batch, n)
    rows = jnp.where(segment < segments, segment + segments * lax.iota(np.int64, batch)[:, None], batch * segments)
    return data.reshape(batch * n, -1 if data.size else 1), rows.reshape(-1), batch * segments


def _reduce(data: jax.Array, reduce: str, bounds: jax.Array, axis: int, initial) -> jax.Array:
    if not data.size:
        start = _NEUTRAL[reduce] if initial is None else initial
        return jnp.full((*bounds.shape[:-1], bounds.shape[-1] - 1, *data.shape[axis + 1 :]), start, data.dtype)
    flat, rows, count = _flat(data, bounds, axis)
    start = jnp.full((count + 1, flat.shape[1]), _NEUTRAL[reduce] if initial is None else initial, data.dtype)
    target = start.at[rows]
    at_rows = {"sum": target.add, "mean": target.add, "prod": target.multiply, "max": target.max, "min": target.min}
    out = at_rows[reduce](flat)[:count]
    if reduce == "mean":
        sizes = (bounds[..., 1:] - bounds[..., :-1]).reshape(count, 1)
        empty = np.nan if initial is None else initial
        out = jnp.where(sizes > 0, out / cast(jnp.maximum(sizes, 1), out.dtype), jnp.asarray(empty, out.dtype))
    return out.reshape(*bounds.shape[:-1], bounds.shape[-1] - 1, *data.shape[axis + 1 :])


# aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None,
#     int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor
@kernel("segment_reduce")
def segment_reduce(data, reduce, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    if not is_float(data.dtype):
        raise NotImplementedError(f"segment_reduce is not implemented for {data.dtype}")
    axis = axis % data.ndim
    if lengths is not None and offsets is None and not unsafe:
        checks.require(lengths >= 0, RuntimeError, "lengths contains negative value!")
        total = jnp.sum(lengths, -1) == data.shape[axis]
        checks.require(total, RuntimeError, "segment_reduce(): Expected all rows of lengths to sum to data.size(axis).")
    x = cast(data, compute_type(data.dtype))
    return cast(_reduce(x, reduce, _bounds(lengths, offsets), axis, initial), data.dtype)


# aten::_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, Tensor? lengths=None,
#     Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor
@kernel("_segment_reduce_backward")
def segment_reduce_backward(grad, output, data, reduce, lengths=None, offsets=None, axis=0, initial=None):
    axis = axis % data.ndim
    if not data.size:
        return data
    bounds = _bounds(lengths, offsets)
    x, rows, count = _flat(cast(data, compute_type(data.dtype)), bounds, axis)

    def spread(values: jax.Array) -> jax.Array:
        padded = jnp.pad(cast(values, x.dtype).reshape(count, x.shape[1]), ((0, 1), (0, 0)))
        return padded.at[rows].get(mode="promise_in_bounds")

    share = spread(grad)
    if reduce == "mean":
        sizes = (bounds[..., 1:] - bounds[..., :-1]).reshape(count, 1)
        share = share / spread(jnp.broadcast_to(jnp.maximum(sizes, 1), (count, x.shape[1])))
    elif reduce in ("max", "min"):
        result = spread(output)
        hit = cast((x == result) | (x != x), x.dtype)
        ties = jnp.maximum(jnp.zeros((count + 1, x.shape[1]), x.dtype).at[rows].add(hit), 1)
        # ATen divides only positive gradients among ties
        ties = jnp.where(share > 0, ties.at[rows].get(mode="promise_in_bounds"), 1)
        share = jnp.where(hit > 0, share / ties, 0)
    elif reduce == "prod":
        # the product of the others is not to be had by a division by zero or NaN: it is made of how many there are
        zero, nan = x == 0, x != x

        def others(found: jax.Array) -> jax.Array:
            counts = jnp.zeros((count + 1, x.shape[1]), np.int32).at[rows].add(cast(found, "int32"))
            return counts.at[rows].get(mode="promise_in_bounds") - cast(found, "int32")

        special = zero | nan
        rest = spread(_reduce(jnp.where(special, 1, x).reshape(data.shape), reduce, bounds, axis, initial))
        without = rest * jnp.where(others(zero) > 0, 0.0, 1.0) * jnp.where(others(nan) > 0, np.nan, 1.0)
        share = jnp.where(special, share * cast(without, x.dtype), share * spread(output) / jnp.where(special, 1, x))
    share = jnp.where((rows < count)[:, None], share, 0)
    return cast(share.reshape(data.shape), data.dtype)
