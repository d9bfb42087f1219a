"""Kernels of torchvision's position-sensitive pooling of regions: each bin reads channels of its own.

Channel (c * bins + p) * bins + q of the features is read by bin (p, q) of channel c of the result.
Sources: R-FCN (arXiv:1605.06409), Light-Head R-CNN (arXiv:1711.07264), torchvision/csrc/ops/cpu/ps_roi_*_kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type
from .regions import PixelWindows, Samples, images


def _by_position(features: jax.Array, pooled: tuple[int, int]) -> jax.Array:
    """Features as rows of the channels of the result, one for each image, bin and pixel."""
    batch, channels, height, width = features.shape
    split = lax.reshape(features, (batch, channels // (pooled[0] * pooled[1]), *pooled, height, width))
    return jnp.moveaxis(split, 1, 5).reshape(-1, split.shape[1])


def _whole(rows: jax.Array, shape: tuple[int, ...], pooled: tuple[int, int]) -> jax.Array:
    """The inverse of `_by_position`, for features of a shape."""
    batch, _, height, width = shape
    split = lax.reshape(rows, (batch, *pooled, height, width, rows.shape[1]))
    return lax.reshape(jnp.moveaxis(split, 5, 1), shape)


def _planes(rois: jax.Array, pooled: tuple[int, int]) -> jax.Array:
    """The plane of rows that each bin of each region reads, of shape (regions, bins, bins)."""
    bins = lax.reshape(lax.iota(np.int32, pooled[0] * pooled[1]), pooled)
    return images(rois) * (pooled[0] * pooled[1]) + bins


def _mapping(regions: int, channels: int, pooled: tuple[int, int]) -> jax.Array:
    """The channel of the features that each element of the result is of."""
    if channels % (pooled[0] * pooled[1]):
        raise RuntimeError("input channels must be a multiple of pooling height * pooling width")
    shape = (channels // (pooled[0] * pooled[1]), *pooled)
    read = lax.reshape(lax.iota(np.int32, shape[0] * shape[1] * shape[2]), shape)
    return jnp.broadcast_to(read, (regions, *shape))


_Spread = tuple[jax.Array, Callable[[jax.Array, jax.Array], jax.Array]]


def _gradient(
    grad: jax.Array, shape: tuple[int, ...], pooled: tuple[int, int], spread: Callable[[np.dtype], _Spread]
) -> jax.Array:
    """A gradient with respect to features of a shape.

    Args:
        grad: that of the means of bins.
        shape, pooled: those of the features, and of a region's bins.
        spread: finds for a dtype of which counts the means are, and what adds an element's share to rows of features.
    """
    if 0 in (*shape, *grad.shape):
        return lax.full(shape, 0, grad.dtype)
    dtype = compute_type(grad.dtype)
    counts, add = spread(dtype)
    share = jnp.moveaxis(cast(grad, dtype), 1, 3) / jnp.maximum(counts, 1)
    planes = shape[0] * pooled[0] * pooled[1]
    rows = add(share, lax.full((planes * shape[2] * shape[3], grad.shape[1]), 0, dtype))
    return cast(_whole(rows, shape, pooled), grad.dtype)


@kernel(
    "torchvision::ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio) -> (Tensor, Tensor)"
)
def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    """The mean of points within each bin, and the channels read; NaN where a region without extent has no points."""
    dtype, pooled = compute_type(input.dtype), (pooled_height, pooled_width)
    mapping = _mapping(len(rois), input.shape[1], pooled)
    if 0 in (*input.shape, *mapping.shape):
        return lax.full(mapping.shape, 0, input.dtype), mapping
    rows, regions = cast(_by_position(input, pooled), dtype), cast(rois, dtype)
    samples = Samples(
        regions, input.shape[2:], pooled, spatial_scale, sampling_ratio, aligned=True, planes=_planes(rois, pooled)
    )
    start = lax.full((len(rois), *pooled, rows.shape[1]), 0, dtype)
    total = samples.fold(lambda pixels, weights, found: found + weights * rows[pixels], start)
    return cast(jnp.moveaxis(total / samples.counts, 3, 1), input.dtype), mapping


@kernel(
    "torchvision::_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale,"
    " SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels,"
    " SymInt height, SymInt width) -> Tensor"
)
def ps_roi_align_backward(
    grad, rois, channel_mapping, spatial_scale, pooled_height, pooled_width, sampling_ratio, batch_size, channels,
    height, width,
):  # fmt: skip
    """The gradient of `ps_roi_align` with respect to the features."""
    pooled = pooled_height, pooled_width

    def spread(dtype: np.dtype) -> _Spread:
        regions, planes = cast(rois, dtype), _planes(rois, pooled)
        samples = Samples(regions, (height, width), pooled, spatial_scale, sampling_ratio, aligned=True, planes=planes)
        return samples.counts, lambda share, start: samples.fold(
            lambda pixels, weights, found: found.at[pixels].add(weights * share), start
        )

    return _gradient(grad, (batch_size, channels, height, width), pooled, spread)


@kernel(
    "torchvision::ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width) -> (Tensor, Tensor)"
)
def ps_roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """The mean of the pixels of each bin, 0 for one without pixels, and the channels read."""
    dtype, pooled = compute_type(input.dtype), (pooled_height, pooled_width)
    mapping = _mapping(len(rois), input.shape[1], pooled)
    if 0 in (*input.shape, *mapping.shape):
        return lax.full(mapping.shape, 0, input.dtype), mapping
    rows, (height, width) = cast(_by_position(input, pooled), dtype), input.shape[2:]
    bounds = height - 1, width - 1  # torchvision's kernel leaves out the last row and column; its gradient does not
    windows = PixelWindows(cast(rois, dtype), bounds, width, pooled, spatial_scale, has_last=False)
    start_of_plane = _planes(rois, pooled) * (height * width)

    def read(pixels: jax.Array, is_there: jax.Array, total: jax.Array) -> jax.Array:
        values = rows.at[start_of_plane + pixels].get(mode="clip")
        return total + jnp.where(is_there[..., None], values, dtype.type(0))

    total = windows.fold(read, lax.full((len(rois), *pooled, rows.shape[1]), 0, dtype))
    return cast(jnp.moveaxis(total / cast(jnp.maximum(windows.areas, 1), dtype), 3, 1), input.dtype), mapping


@kernel(
    "torchvision::_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale,"
    " SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width)"
    " -> Tensor"
)
def ps_roi_pool_backward(
    grad, rois, channel_mapping, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width
):
    """The gradient of `ps_roi_pool` with respect to the features."""
    pooled = pooled_height, pooled_width

    def spread(dtype: np.dtype) -> _Spread:
        windows = PixelWindows(cast(rois, dtype), (height, width), width, pooled, spatial_scale, has_last=False)
        start_of_plane = _planes(rois, pooled) * (height * width)

        def add(pixels: jax.Array, is_there: jax.Array, rows: jax.Array, share: jax.Array) -> jax.Array:
            where = jnp.where(is_there, start_of_plane + pixels, len(rows))
            return rows.at[where].add(share, mode="drop")

        return cast(windows.areas, dtype), lambda share, start: windows.fold(
            lambda pixels, is_there, rows: add(pixels, is_there, rows, share), start
        )

    return _gradient(grad, (batch_size, channels, height, width), pooled, spread)
