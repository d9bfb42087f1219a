"""Kernels of torchvision's operators for detection: suppression of boxes, and pooling of regions of interest.

Their gradients are operators of torchvision's. `regions.py` has how regions are read.
Sources: torchvision/csrc/ops/cpu/{nms,roi_align,roi_pool}_kernel.cpp.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.partitioned import put_beside
from ..kernel_base.promotion import cast, compute_type
from .regions import PixelWindows, Samples, images, pictures, rows_of_channels

# Suppression


@jax.jit
def _survivors(boxes: jax.Array, least: jax.Array) -> jax.Array:
    """A mask of the boxes, best first, without those of which a better one that is kept has `least` in common."""
    x1, y1, x2, y2 = jnp.unstack(boxes, axis=1)
    areas, zero = (x2 - x1) * (y2 - y1), boxes.dtype.type(0)
    later = lax.iota(np.int32, len(boxes))

    def suppress(i: Any, kept: jax.Array) -> jax.Array:
        width = jnp.maximum(zero, jnp.minimum(x2[i], x2) - jnp.maximum(x1[i], x1))
        height = jnp.maximum(zero, jnp.minimum(y2[i], y2) - jnp.maximum(y1[i], y1))
        common = width * height
        return kept & ~(kept[i] & (common / (areas[i] + areas - common) >= least) & (later > i))

    return lax.fori_loop(0, len(boxes), suppress, jnp.ones(len(boxes), bool))


def _next_above(threshold: float, dtype: np.dtype) -> np.floating:
    """The smallest number of a dtype above a threshold, which C++ compares in double precision."""
    found = dtype.type(threshold)
    return found if float(found) > threshold else np.nextafter(found, dtype.type(np.inf))


@kernel("torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", eager=True)
def nms(dets, scores, iou_threshold):
    """The indices of the boxes that are kept, best first."""
    if not len(dets):
        return put_beside(np.zeros(0, np.int64), dets)
    by = np.asarray(scores)
    order = np.lexsort((-by, ~np.isnan(by)))  # stable, with NaN as the best
    boxes = cast(dets, compute_type(dets.dtype))[order]
    kept = _survivors(boxes, _next_above(float(iou_threshold), boxes.dtype))
    return put_beside(order[np.asarray(kept)], dets)


# Regions of interest


@kernel(
    "torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)
def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """The mean of points within each bin of each region, read between pixels."""
    dtype, pooled = compute_type(input.dtype), (pooled_height, pooled_width)
    channels, rows = input.shape[1], cast(rows_of_channels(input), dtype)
    if 0 in (*input.shape, *rois.shape):
        return lax.full((len(rois), channels, *pooled), 0, input.dtype)
    samples = Samples(cast(rois, dtype), input.shape[2:], pooled, spatial_scale, sampling_ratio, aligned)
    start = lax.full((len(rois), *pooled, channels), 0, dtype)
    total = samples.fold(lambda pixels, weights, found: found + weights * rows[pixels], start)
    return cast(jnp.moveaxis(total / jnp.maximum(samples.counts, 1), 3, 1), input.dtype)


@kernel(
    "torchvision::_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio,"
    " bool aligned) -> Tensor"
)
def roi_align_backward(
    grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned
):
    """The gradient of `roi_align` with respect to the features."""
    dtype, shape = compute_type(grad.dtype), (batch_size, channels, height, width)
    if 0 in (*shape, *grad.shape):
        return lax.full(shape, 0, grad.dtype)
    pooled = (pooled_height, pooled_width)
    samples = Samples(cast(rois, dtype), shape[2:], pooled, spatial_scale, sampling_ratio, aligned)
    share = jnp.moveaxis(cast(grad, dtype), 1, 3) / jnp.maximum(samples.counts, 1)
    start = lax.full((batch_size * height * width, channels), 0, dtype)
    rows = samples.fold(lambda pixels, weights, found: found.at[pixels].add(weights * share), start)
    return cast(pictures(rows, shape), grad.dtype)


@kernel(
    "torchvision::roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width) -> (Tensor, Tensor)"
)
def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    """The maximum of each bin of each region and its pixel: 0 and -1 for a bin without pixels."""
    (_, channels, height, width), dtype = input.shape, compute_type(input.dtype)
    shape = (len(rois), pooled_height, pooled_width, channels)
    if 0 in (*input.shape, *shape):
        return lax.full((len(rois), channels, *shape[1:3]), 0, input.dtype), lax.full(
            (len(rois), channels, *shape[1:3]), -1, np.int32
        )
    rows, rois = rows_of_channels(input), cast(rois, dtype)
    windows = PixelWindows(rois, (height, width), width, (pooled_height, pooled_width), spatial_scale, has_last=True)
    start_of_image = images(rois) * (height * width)

    def read(pixels: jax.Array, is_there: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        values = rows.at[start_of_image + pixels].get(mode="clip")
        is_more = is_there[..., None] & (values > best[0])
        return jnp.where(is_more, values, best[0]), jnp.where(is_more, pixels[..., None], best[1])

    lowest = lax.full(shape, jnp.finfo(input.dtype).min, input.dtype), lax.full(shape, -1, np.int32)
    values, pixels = windows.fold(read, lowest)
    values = jnp.where(windows.areas == 0, input.dtype.type(0), values)
    return jnp.moveaxis(values, 3, 1), jnp.moveaxis(pixels, 3, 1)


@kernel(
    "torchvision::_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale,"
    " SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width)"
    " -> Tensor"
)
def roi_pool_backward(
    grad, rois, argmax, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width
):
    """The gradient of `roi_pool` with respect to the features, which goes to the maxima."""
    image, channel = images(rois)[..., None], lax.iota(np.int32, channels)[:, None, None]
    planes = lax.full((batch_size, channels, height * width), 0, grad.dtype)
    pixels = jnp.where(argmax >= 0, argmax, height * width)  # of no bin without pixels
    return lax.reshape(planes.at[image, channel, pixels].add(grad, mode="drop"), (batch_size, channels, height, width))
