"""The reading of regions of interest: points between pixels, and windows of whole pixels.

Regions (RoIs) are rows (image, x1, y1, x2, y2) in the coordinates of the picture. Features are read as rows of
channels, a row for each pixel, so that a read is one stretch of memory.
Sources: torchvision/csrc/ops/cpu/{roi_align,roi_pool,ps_roi_align,ps_roi_pool}_kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.promotion import cast


def rows_of_channels(features: jax.Array) -> jax.Array:
    """Features of shape (batch, channels, height, width) as rows of channels, one for each pixel."""
    batch, channels, height, width = features.shape
    return lax.reshape(jnp.moveaxis(features, 1, 3), (batch * height * width, channels))


def pictures(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `rows_of_channels`, for features of a shape."""
    batch, channels, height, width = shape
    return jnp.moveaxis(lax.reshape(rows, (batch, height, width, channels)), 3, 1)


def images(rois: jax.Array) -> jax.Array:
    """The image of each region, of shape (regions, 1, 1)."""
    return cast(rois[:, 0], np.int32)[:, None, None]


class Samples:
    """Points within the bins of regions, along both axes: each is read between four pixels.

    Args:
        rois: the regions, of shape (regions, 5).
        shape: the height and width of features.
        pooled: the bins of a region along both axes.
        scale: of coordinates of the features to those of the picture.
        ratio: the points of a bin along an axis; 0 or less for one for each pixel, a number that regions differ in.
        aligned: whether pixels lie at half coordinates.
        planes: the plane of rows that each bin reads, of shape (regions, bins, bins); without it, the region's image.

    Attributes:
        counts: the points of each bin, of shape (regions, 1, 1, 1): 0 for a region without extent.
    """

    def __init__(
        self,
        rois: jax.Array,
        shape: tuple[int, int],
        pooled: tuple[int, int],
        scale: float,
        ratio: int,
        aligned: bool,
        planes: jax.Array | None = None,
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
        self._planes, self._shape, self._pooled = images(rois) if planes is None else planes, shape, pooled
        self.counts = cast(self._counts[0] * self._counts[1], rois.dtype)[:, None, None, None]

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
        start_of_plane = self._planes * (height * width)

        def at_a_point(i: Any, found: Any) -> Any:
            across = self._along(1, i % self._most[1])
            for y, of_y in self._along(0, i // self._most[1]):
                for x, of_x in across:
                    pixels = start_of_plane + y[:, :, None] * width + x[:, None, :]
                    found = read(pixels, (of_y[:, :, None] * of_x[:, None, :])[..., None], found)
            return found

        return lax.fori_loop(0, self._most[0] * self._most[1], at_a_point, start)


def _edges(rois: jax.Array, bound: int, pooled: int, scale: float, axis: int, last: int) -> tuple[jax.Array, jax.Array]:
    """The first pixel of each bin along an axis, and that after the last: (regions, bins) each, up to a bound."""
    kind = rois.dtype.type
    corners = rois[:, 1:] * scale
    rounded = cast(lax.round(corners, lax.RoundingMethod.AWAY_FROM_ZERO), np.int32)
    start, end = rounded[:, 1 - axis, None], rounded[:, 3 - axis, None]
    bins = cast(jnp.maximum(end - start + last, 1), rois.dtype) / kind(pooled)
    position = lax.iota(rois.dtype, pooled)

    def pixel(edge: jax.Array) -> jax.Array:
        return jnp.clip(cast(edge, np.int32) + start, 0, bound)

    return pixel(jnp.floor(position * bins)), pixel(jnp.ceil((position + kind(1)) * bins))


class PixelWindows:
    """The whole pixels within the bins of regions.

    Args:
        rois, pooled, scale: as for `Samples`.
        bounds: the numbers of rows and columns of pixels that are read.
        width: the pixels in a row.
        has_last: whether the pixel at a region's end is in it.

    Attributes:
        areas: the pixels of each bin, of shape (regions, bins, bins, 1).
    """

    def __init__(
        self,
        rois: jax.Array,
        bounds: tuple[int, int],
        width: int,
        pooled: tuple[int, int],
        scale: float,
        *,
        has_last: bool,
    ) -> None:
        (top, bottom), (left, right) = (
            _edges(rois, bound, bins, scale, axis, int(has_last))
            for axis, (bound, bins) in enumerate(zip(bounds, pooled, strict=True))
        )
        self._top, self._left = top[:, :, None], left[:, None, :]
        self._heights, self._widths = (bottom - top)[:, :, None], (right - left)[:, None, :]
        self._width = width
        self.areas = (jnp.maximum(self._heights, 0) * jnp.maximum(self._widths, 0))[..., None]

    def fold(self, read: Callable[[jax.Array, jax.Array, Any], Any], start: Any) -> Any:
        """`read(pixels, is_there, so far)` for all pixels of a bin, row by row: both of shape (regions, bins, bins)."""
        widest = jnp.max(self._widths, initial=0)

        def at_a_pixel(i: Any, found: Any) -> Any:
            down, across = i // widest, i % widest
            is_there = (down < self._heights) & (across < self._widths)
            return read((self._top + down) * self._width + self._left + across, is_there, found)

        return lax.fori_loop(0, jnp.max(self._heights, initial=0) * widest, at_a_pixel, start)
