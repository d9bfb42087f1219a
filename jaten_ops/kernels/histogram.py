"""Counts of values in bins: aten/src/ATen/native/Histogram.cpp and cpu/HistogramKernel.cpp."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.observers import known_values
from ..interpreter import interpreted
from ..kernel_base import checks
from ..kernel_base.extrema import reduce_max, reduce_min
from ..kernel_base.promotion import cast, compute_type, is_complex, is_float
from .sorting import binary_search


def _counted(bins: Sequence[jax.Array], inside: jax.Array, weight: jax.Array | None, shape: tuple[int, ...], dtype):
    """The number of elements, or the sum of their weights, in each bin.

    Args:
        bins: for each dimension the bin of each element, (n,).
        inside: whether the element counts, (n,).
        shape: the number of bins in each dimension.
    """
    flat = jnp.zeros(inside.shape, bins[0].dtype)
    for index, n in zip(bins, shape, strict=True):
        flat = flat * n + index
    amount = jnp.ones((), dtype) if weight is None else cast(weight, dtype)
    amount = jnp.where(inside, amount, jnp.zeros((), dtype))
    size = math.prod(shape)
    flat = jnp.where(inside, flat, jnp.zeros((), flat.dtype))
    return lax.reshape(jnp.zeros(size, dtype).at[flat].add(amount, mode="promise_in_bounds"), shape)


@interpreted
def _extremes(x: jax.Array) -> jax.Array:
    return jnp.stack([lax.reduce_min(x, (0,)), lax.reduce_max(x, (0,))])


@functools.partial(interpreted, static_argnums=(2, 3))
def _occurrences(x: jax.Array, weights: jax.Array | None, size: int, dtype: np.dtype) -> jax.Array:
    return _counted([cast(x, "int64")], jnp.ones(x.shape, bool), weights, (size,), dtype)


# aten::bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor
@kernel("bincount", eager=True)
def bincount(self, weights=None, minlength=0):
    if is_float(self.dtype) or self.dtype == bool:
        raise NotImplementedError(f"bincount is not implemented for {self.dtype}")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.ndim == 1 and not self.size:
        return jnp.zeros(minlength, np.int64)
    low, high = known_values(_extremes(self)) if self.ndim == 1 else (-1, -1)
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = np.dtype("int64")
    if weights is not None:
        dtype = weights.dtype if weights.dtype == np.float32 else np.dtype("float64")
    return _occurrences(self, weights, max(minlength, int(high) + 1), dtype)


def _limits(x: jax.Array, low: jax.Array, high: jax.Array, use_data: jax.Array, margin: float):
    """The outer edges of the bins of a vector: given ones, or those of the data; `margin` apart if they are equal."""
    if x.size:
        low = jnp.where(use_data, reduce_min(x, (0,)), low)
        high = jnp.where(use_data, reduce_max(x, (0,)), high)
    if is_float(x.dtype):
        ok = lax.is_finite(low) & lax.is_finite(high)
        checks.require(ok, RuntimeError, "the range of a histogram is not finite")
    checks.require(~(low > high), RuntimeError, "the maximum of a histogram's range must not be below its minimum")
    same = low == high
    return jnp.where(same, low - margin, low), jnp.where(same, high + margin, high)


def _linear_bin(x: jax.Array, low: jax.Array, high: jax.Array, n: int, dtype: np.dtype) -> jax.Array:
    """The bin of each element among n equal bins; arbitrary for elements outside."""
    if not is_float(x.dtype):
        return jnp.clip((x - low) * n // (high - low), 0, n - 1)
    # in half precision ATen rounds after each operation, and so must we: a value just below an edge moves
    info = jnp.finfo(dtype)

    def rounded(value: jax.Array) -> jax.Array:
        return lax.reduce_precision(value, info.nexp, info.nmant)

    at = rounded(rounded(rounded(x - low) * rounded(np.array(n, x.dtype))) / rounded(high - low))
    at = jnp.where((x >= low) & (x <= high), at, jnp.zeros((), x.dtype))
    return lax.min(cast(lax.floor(at), "int64"), np.int64(n - 1))


def _require_bins(n: int) -> None:
    if n <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {n}")


# aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor
@kernel("histc")
def histc(self, bins=100, min=0, max=0):
    """A histogram; that of integers has their dtype, as ATen has it on CUDA."""
    if is_complex(self.dtype) or self.dtype == bool:
        raise NotImplementedError(f"histc is not implemented for {self.dtype}")
    _require_bins(bins)
    dtype = compute_type(self.dtype) if is_float(self.dtype) else np.dtype("int64")
    x = cast(lax.reshape(self, (self.size,)), dtype)
    low, high = (cast(cast(edge, self.dtype), dtype) for edge in (min, max))
    low, high = _limits(x, low, high, low == high, 1)
    inside = (x >= low) & (x <= high)
    return cast(_counted([_linear_bin(x, low, high, bins, self.dtype)], inside, None, (bins,), dtype), self.dtype)


def _even_edges(low: jax.Array, high: jax.Array, n: int) -> jax.Array:
    """n + 1 evenly spaced edges, symmetric from both ends as in ATen's linspace."""
    step = (high - low) / np.array(n, low.dtype)
    at = lax.iota(low.dtype, n + 1)
    return jnp.where(at < (n + 1) // 2, low + step * at, high - step * (np.array(n, low.dtype) - at))


def _edges_of(points: jax.Array, bins: Sequence[int], limits: Sequence | None) -> list[jax.Array]:
    """The edges in each of the D dimensions, for points (n, D)."""
    size = points.shape[1]
    if len(bins) != size:
        raise RuntimeError("histogramdd: The size of bins must be equal to the innermost dimension of the input.")
    if limits is not None and len(limits) != 2 * size:
        raise RuntimeError(
            f"torch.histogramdd: for a {size}-dimensional histogram range should have {2 * size} elements,"
            f" but got {len(limits)}"
        )
    edges = []
    for d, n in enumerate(bins):
        _require_bins(n)
        low = cast(0 if limits is None else limits[2 * d], points.dtype)
        high = cast(1 if limits is None else limits[2 * d + 1], points.dtype)
        edges.append(_even_edges(*_limits(points[:, d], low, high, jnp.asarray(limits is None), 0.5), n))
    return edges


def _histogram(points: jax.Array, edges: Sequence[jax.Array], even: bool, weight: jax.Array | None, density: bool):
    """The histogram of points (n, D); `even` says that the edges are, so that the bin can be computed."""
    bins, inside = [], jnp.ones(points.shape[:1], bool)
    for d, edge in enumerate(edges):
        x, n = points[:, d], edge.shape[0] - 1
        inside = inside & (x >= edge[0]) & (x <= edge[-1])
        if even:
            at = _linear_bin(x, edge[0], edge[-1], n, x.dtype)
            # one to either side where rounding went wrong, as ATen searches there
            at = jnp.where(x < edge[at], at - 1, jnp.where((x >= edge[at + 1]) & (at < n - 1), at + 1, at))
        else:
            at = cast(binary_search(edge, x, right=True), "int64") - 1
        bins.append(jnp.clip(at, 0, n - 1))
    weight = None if weight is None else lax.reshape(weight, (points.shape[0],))
    shape = tuple(edge.shape[0] - 1 for edge in edges)
    counts = _counted(bins, inside, weight, shape, points.dtype)
    if density:
        counts = counts / lax.reduce_sum(counts, tuple(range(counts.ndim)))
        for d, edge in enumerate(edges):
            widths = edge[1:] - edge[:-1]
            counts = counts / lax.expand_dims(widths, [i for i in range(counts.ndim) if i != d])
    return counts


def _points(x: jax.Array) -> jax.Array:
    if not is_float(x.dtype):
        raise NotImplementedError(f"histogramdd is not implemented for {x.dtype}")
    return lax.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


# aten::histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None,
#     bool density=False) -> (Tensor hist, Tensor bin_edges)
@kernel("histogram.bin_ct")
def histogram_bin_ct(self, bins=100, range=None, weight=None, density=False):
    points = _points(lax.reshape(self, (self.size, 1)))
    edges = _edges_of(points, (bins,), range)
    return _histogram(points, edges, True, weight, density), edges[0]


# aten::histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) -> (Tensor hist,
#     Tensor bin_edges)
@kernel("histogram.bins_tensor")
def histogram_bins_tensor(self, bins, weight=None, density=False):
    points = _points(lax.reshape(self, (self.size, 1)))
    return _histogram(points, [bins], False, weight, density), bins


# aten::_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None,
#     bool density=False) -> Tensor[]
@kernel("_histogramdd_bin_edges")
def histogramdd_bin_edges(self, bins, range=None, weight=None, density=False):
    return _edges_of(_points(self), bins, range)


# aten::_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None,
#     bool density=False) -> Tensor
@kernel("_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(self, bins, range=None, weight=None, density=False):
    points = _points(self)
    return _histogram(points, _edges_of(points, bins, range), True, weight, density)


# aten::_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool density=False) -> Tensor
@kernel("_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(self, bins, weight=None, density=False):
    points = _points(self)
    if len(bins) != points.shape[1]:
        raise RuntimeError(
            f"torch.histogramdd: expected {points.shape[1]} sequences of bin edges for a {points.shape[1]}-dimensional"
            f" histogram but got {len(bins)}"
        )
    return _histogram(points, bins, False, weight, density)
