"""Kernels of torchvision's operators for detection: suppression of boxes, and pooling of regions of interest.

Regions (RoIs) are rows (image, x1, y1, x2, y2) in the coordinates of the picture. Features are read as rows of
channels, a row for each pixel, so that a read is one stretch of memory. Their gradients are operators of torchvision's.
Sources: torchvision/csrc/ops/cpu/{nms,roi_align,roi_pool}_kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.partitioned import put_beside
from ..kernel_base.promotion import cast, compute_type

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


def _rows_of_channels(features: jax.Array) -> jax.Array:
    """Features of shape (batch, channels, height, width) as rows of channels, one for each pixel."""
    batch, channels, height, width = features.shape
    return lax.reshape(jnp.moveaxis(features, 1, 3), (batch * height * width, channels))


def _pictures(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `_rows_of_channels`, for features of a shape."""
    batch, channels, height, width = shape
    return jnp.moveaxis(lax.reshape(rows, (batch, height, width, channels)), 3, 1)


class _Samples:
    """Points within the bins of regions, along both axes: each is read between four pixels.

    Args:
        rois: the regions, of shape (regions, 5).
        shape: the height and width of features.
        pooled: the bins of a region along both axes.
        scale: of coordinates of the features to those of the picture.
        ratio: the points of a bin along an axis; 0 or less for one for each pixel, a number that regions differ in.
        aligned: whether pixels lie at half coordinates.
    """

    def __init__(
        self, rois: jax.Array, shape: tuple[int, int], pooled: tuple[int, int], scale: float, ratio: int, aligned: bool
    ) -> None:
        kind = rois.dtype.type
        corners = rois[:, 1:] * scale - kind(0.5 if aligned else 0)
        self._starts = corners[:, 1], corners[:, 0]
        extents = [corners[:, 3] - corners[:, 1], corners[:, 2] - corners[:, 0]]
        extents = extents if aligned else [jnp.maximum(e, kind(1)) for e in extents]
        self._bins = [e / kind(n) for e, n in zip(extents, pooled, strict=True)]
        counts = [jnp.full_like(b, ratio) if ratio > 0 else jnp.ceil(b) for b in self._bins]
        self._counts = [cast(n, np.int32) for n in counts]
        self._most = [ratio if ratio > 0 else jnp.max(n, initial=0) for n in self._counts]
        self._image, self._shape, self._pooled = cast(rois[:, 0], np.int32), shape, pooled
        self.count = cast(jnp.maximum(self._counts[0] * self._counts[1], 1), rois.dtype)[:, None, None, None]

    def _along(self, axis: int, i: Any) -> list[tuple[jax.Array, jax.Array]]:
        """The two pixels beside the i-th points of all bins along an axis, and their weights: (regions, bins) each."""
        bins, size, dtype = self._bins[axis][:, None], self._shape[axis], self._bins[axis].dtype
        count = self._counts[axis][:, None]
        position = lax.iota(dtype, self._pooled[axis])
        at = (
            self._starts[axis][:, None]
            + position * bins
            + (cast(i, dtype) + dtype.type(0.5)) * bins / cast(count, dtype)
        )
        is_there = (at >= -1) & (at <= size) & (i < count)
        at = jnp.maximum(at, dtype.type(0))
        low = jnp.minimum(cast(at, np.int32), size - 1)
        high = jnp.minimum(low + 1, size - 1)
        part = jnp.where(low < size - 1, at - cast(low, dtype), dtype.type(0))
        weights = dtype.type(1) - part, part
        return [(p, jnp.where(is_there, w, dtype.type(0))) for p, w in zip((low, high), weights, strict=True)]

    def fold(self, read: Callable[[jax.Array, jax.Array, Any], Any], start: Any) -> Any:
        """`read(pixels, weights, so far)` for all points of a bin and the four pixels of each, one after the other."""
        height, width = self._shape

        def at_a_point(i: Any, found: Any) -> Any:
            across = self._along(1, i % self._most[1])
            for y, of_y in self._along(0, i // self._most[1]):
                for x, of_x in across:
                    image = self._image[:, None, None] * (height * width)
                    pixels = image + y[:, :, None] * width + x[:, None, :]
                    found = read(pixels, (of_y[:, :, None] * of_x[:, None, :])[..., None], found)
            return found

        return lax.fori_loop(0, self._most[0] * self._most[1], at_a_point, start)


@kernel(
    "torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
)
def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """The mean of points within each bin of each region, read between pixels."""
    dtype, pooled = compute_type(input.dtype), (pooled_height, pooled_width)
    channels, rows = input.shape[1], cast(_rows_of_channels(input), dtype)
    if 0 in (*input.shape, *rois.shape):
        return lax.full((len(rois), channels, *pooled), 0, input.dtype)
    samples = _Samples(cast(rois, dtype), input.shape[2:], pooled, spatial_scale, sampling_ratio, aligned)
    start = lax.full((len(rois), *pooled, channels), 0, dtype)
    total = samples.fold(lambda pixels, weights, found: found + weights * rows[pixels], start)
    return cast(jnp.moveaxis(total / samples.count, 3, 1), input.dtype)


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
    samples = _Samples(cast(rois, dtype), shape[2:], pooled, spatial_scale, sampling_ratio, aligned)
    share = jnp.moveaxis(cast(grad, dtype), 1, 3) / samples.count
    start = lax.full((batch_size * height * width, channels), 0, dtype)
    rows = samples.fold(lambda pixels, weights, found: found.at[pixels].add(weights * share), start)
    return cast(_pictures(rows, shape), grad.dtype)


def _windows(rois: jax.Array, size: int, pooled: int, scale: float, axis: int) -> tuple[jax.Array, jax.Array]:
    """The first pixel of each bin along an axis, and that after the last: (regions, bins) each."""
    kind = rois.dtype.type
    corners = rois[:, 1:] * scale
    rounded = cast(lax.round(corners, lax.RoundingMethod.AWAY_FROM_ZERO), np.int32)
    start, end = rounded[:, 1 - axis, None], rounded[:, 3 - axis, None]
    bins = cast(jnp.maximum(end - start + 1, 1), rois.dtype) / kind(pooled)
    position = lax.iota(rois.dtype, pooled)

    def pixel(edge: jax.Array) -> jax.Array:
        return jnp.clip(cast(edge, np.int32) + start, 0, size)

    return pixel(jnp.floor(position * bins)), pixel(jnp.ceil((position + kind(1)) * bins))


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
    rows, rois = _rows_of_channels(input), cast(rois, dtype)
    top, bottom = (e[:, :, None] for e in _windows(rois, height, pooled_height, spatial_scale, 0))
    left, right = (e[:, None, :] for e in _windows(rois, width, pooled_width, spatial_scale, 1))
    image = cast(rois[:, 0], np.int32)[:, None, None] * (height * width)
    most = jnp.max(right - left)

    def at_a_pixel(i: Any, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, x = top + i // most, left + i % most
        is_there, pixel = ((y < bottom) & (x < right))[..., None], y * width + x
        values = rows.at[image + pixel].get(mode="clip")
        is_more = is_there & (values > best[0])
        return jnp.where(is_more, values, best[0]), jnp.where(is_more, pixel[..., None], best[1])

    lowest = lax.full(shape, jnp.finfo(input.dtype).min, input.dtype), lax.full(shape, -1, np.int32)
    values, pixels = lax.fori_loop(0, jnp.max(bottom - top) * most, at_a_pixel, lowest)
    values = jnp.where(((bottom <= top) | (right <= left))[..., None], input.dtype.type(0), values)
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
    image, channel = cast(rois[:, 0], np.int32)[:, None, None, None], lax.iota(np.int32, channels)[:, None, None]
    planes = lax.full((batch_size, channels, height * width), 0, grad.dtype)
    pixels = jnp.where(argmax >= 0, argmax, height * width)  # of no bin without pixels
    return lax.reshape(planes.at[image, channel, pixels].add(grad, mode="drop"), (batch_size, channels, height, width))
