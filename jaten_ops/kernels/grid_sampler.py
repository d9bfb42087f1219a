"""Sampling an image at the points of a grid, and affine grids.

Source: aten/src/ATen/native/GridSampler.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.division import quotient
from ..kernel_base.promotion import cast, compute_type
from .indexing import IN_BOUNDS
from .resampling import cubic_weights

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


class _Settings(NamedTuple):
    interpolation: int
    padding: int
    align_corners: bool


def _unnormalize(x: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """From [-1, 1] to pixel positions."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _reflect(x: jax.Array, twice_low: int, twice_high: int) -> jax.Array:
    if twice_low == twice_high:
        return jnp.zeros_like(x)
    low, span = np.asarray(twice_low / 2, x.dtype), np.asarray((twice_high - twice_low) / 2, x.dtype)
    x = x - low
    x = jnp.where(x < 0, -x, x)
    extra = lax.rem(x, jnp.broadcast_to(span, x.shape))
    is_even = lax.rem(jnp.floor(quotient(lax.stop_gradient(x), span)), jnp.full(x.shape, 2, x.dtype)) == 0
    return jnp.where(is_even, extra, span - extra) + low


def _clip(x: jax.Array, size: int) -> jax.Array:
    # NaN becomes 0; no gradient at the borders
    inside = (x > 0) & (x < size - 1)
    limit = jnp.where(x >= size - 1, np.asarray(size - 1, x.dtype), np.asarray(0, x.dtype))
    return jnp.where(inside, x, limit)


def _into(x: jax.Array, size: int, settings: _Settings) -> jax.Array:
    """Positions brought into the image as the padding mode says."""
    if settings.padding == _REFLECTION:
        ends = (0, 2 * (size - 1)) if settings.align_corners else (-1, 2 * size - 1)
        x = _reflect(x, *ends)
    return x if settings.padding == _ZEROS else _clip(x, size)


def _places(sizes: Sequence[int], positions: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """A mask of the integer positions (N, P), one array a dimension, inside an image, and the pixels' numbers, or 0."""
    valid = jnp.ones(positions[0].shape, bool)
    at = jnp.zeros(positions[0].shape, jnp.int32)
    for p, size in zip(positions, sizes, strict=True):
        valid = valid & (p >= 0) & (p < size)
        at = at * size + jnp.where(valid, p, 0).astype(at.dtype)
    return valid, jnp.where(valid, at, 0)


def _pick(image: jax.Array, positions: Sequence[jax.Array]) -> jax.Array:
    """The pixels of image (N, C, ...) at such positions: (N, C, P); 0 outside."""
    valid, at = _places(image.shape[2:], positions)
    flat = image.reshape(*image.shape[:2], prod(image.shape[2:]))
    picked = _of_each(flat, at, 2)
    return jnp.where(valid[:, None], picked, np.zeros((), image.dtype))


def _pick_rows(image: jax.Array, positions: Sequence[jax.Array]) -> jax.Array:
    """The same with channels as rows, so that gradients are added row by row."""
    valid, at = _places(image.shape[2:], positions)
    flat = image.reshape(*image.shape[:2], prod(image.shape[2:]))
    picked = jnp.moveaxis(_of_each(jnp.moveaxis(flat, 1, 2), at, 1), 2, 1)
    return jnp.where(valid[:, None], picked, np.zeros((), image.dtype))


def _of_each(images: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    """The slices of each of N images of two dimensions that `at`, (N, P), names along `axis`.

    The images are a batch of the gather's, so that XLA keeps them, and their channels, partitioned over a mesh.
    """
    other = 3 - axis
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(other,),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    sizes = [1, 1, 1]
    sizes[other] = images.shape[other]
    return lax.gather(images, at[..., None], numbers, sizes, mode=IN_BOUNDS)


def _neighbours(x: jax.Array, size: int, settings: _Settings) -> list[tuple[jax.Array, jax.Array | None]]:
    """The positions along one dimension that a sample reads, each with its weight."""
    x = _unnormalize(x, size, settings.align_corners)
    if settings.interpolation != _BICUBIC:
        x = _into(x, size, settings)
    if settings.interpolation == _NEAREST:
        return [(lax.stop_gradient(jnp.round(x)), None)]
    low = lax.stop_gradient(jnp.floor(x))
    if settings.interpolation == _BILINEAR:
        return [(low, low + 1 - x), (low + 1, x - low)]
    shifted = [_into(low + i, size, settings) for i in range(-1, 3)]
    return list(zip(map(lax.stop_gradient, shifted), cubic_weights(x - low), strict=True))


def _sample(input, grid, interpolation_mode, padding_mode, align_corners, pick=_pick):
    settings = _Settings(interpolation_mode, padding_mode, align_corners)
    compute = compute_type(input.dtype)
    image, points = cast(input, compute), cast(grid, compute)
    batch, *shape, n = grid.shape
    points = points.reshape(batch, math.prod(shape), n)
    axes = [  # a grid's coordinates are in the opposite order of the image's dimensions
        _neighbours(points[..., n - 1 - i], size, settings) for i, size in enumerate(image.shape[2:])
    ]
    total = None
    for corner in product(*axes):
        term = pick(image, [position for position, _ in corner])
        for _, weight in corner:
            term = term if weight is None else term * weight[:, None]
        total = term if total is None else total + term
    return cast(total.reshape(*input.shape[:2], *shape), input.dtype)


# aten::{grid_sampler_2d, grid_sampler_3d, _grid_sampler_2d_cpu_fallback}(Tensor input, Tensor grid,
#     int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
@kernel("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


_ROWS = 8  # channels that make a row


def _sample_backward(grad: jax.Array, image: jax.Array, grid: jax.Array, *settings: Any) -> tuple[jax.Array, jax.Array]:
    pick = _pick_rows if image.shape[1] >= _ROWS else _pick
    _, pull = jax.vjp(lambda x, g: _sample(x, g, *settings, pick), image, grid)
    return pull(grad)


# aten::{grid_sampler_2d_backward, grid_sampler_3d_backward}(Tensor grad_output, Tensor input, Tensor grid,
#     int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)
# aten::_grid_sampler_2d_cpu_fallback_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode,
#     int padding_mode, bool align_corners) -> (Tensor, Tensor)
@kernel("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_grid_sampler_2d_cpu_fallback_backward")
def grid_sampler_backward(grad_output, input, grid, *settings):
    mask = settings[3] if len(settings) == 4 else (True, True)
    grads = _sample_backward(grad_output, input, grid, *settings[:3])
    return grads[0] if mask[0] else None, grads[1]


# aten::cudnn_grid_sampler(Tensor self, Tensor grid) -> Tensor output
@kernel("cudnn_grid_sampler")
def cudnn_grid_sampler(self, grid):
    return _sample(self, grid, _BILINEAR, _ZEROS, True)


# aten::cudnn_grid_sampler_backward(Tensor self, Tensor grid, Tensor grad_output) -> (Tensor grad_self,
#     Tensor grad_grid)
@kernel("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(self, grid, grad_output):
    return _sample_backward(grad_output, self, grid, _BILINEAR, _ZEROS, True)


def _coordinates(dtype: np.dtype, size: int, align_corners: bool) -> np.ndarray:
    """The centers of `size` pixels in [-1, 1]; with align_corners the outer ones lie on the ends."""
    if size <= 1:
        return np.zeros(size, dtype)
    ends = np.linspace(-1, 1, size)
    return (ends if align_corners else ends * ((size - 1) / size)).astype(dtype)


# aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor
@kernel("affine_grid_generator")
def affine_grid_generator(theta, size, align_corners):
    n = len(size) - 2
    compute = compute_type(theta.dtype)
    base = np.ones((*size[2:], n + 1), compute)
    for i in range(n):
        shape = [1] * n
        shape[n - 1 - i] = -1
        base[..., i] = _coordinates(compute, size[1 + n - i], align_corners).reshape(shape)
    out = jnp.einsum("pk,njk->npj", base.reshape(-1, n + 1), cast(theta, compute), precision="highest")
    return cast(out.reshape(size[0], *size[2:], n), theta.dtype)


# aten::cudnn_affine_grid_generator(Tensor theta, int N, int C, int H, int W) -> Tensor grid
@kernel("cudnn_affine_grid_generator")
def cudnn_affine_grid_generator(theta, N, C, H, W):
    return affine_grid_generator(theta, (N, C, H, W), True)


# aten::cudnn_affine_grid_generator_backward(Tensor grad, int N, int C, int H, int W) -> Tensor grad_theta
@kernel("cudnn_affine_grid_generator_backward")
def cudnn_affine_grid_generator_backward(grad, N, C, H, W):
    theta = jax.ShapeDtypeStruct((N, 2, 3), grad.dtype)
    return jax.linear_transpose(lambda t: affine_grid_generator(t, (N, C, H, W), True), theta)(grad)[0]
