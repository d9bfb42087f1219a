"""Sampling an image at the points of a grid, and affine grids.

Source: aten/src/ATen/native/GridSampler.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.dot_reductions import sum_of_last
from ..kernel_base.division import quotient
from ..kernel_base.platform import by_platform, is_open
from ..kernel_base.promotion import cast, compute_type
from .indexing import IN_BOUNDS
from .resampling import cubic_weights

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


class _Settings(NamedTuple):
    interpolation: int
    padding: int
    align_corners: bool
    is_volume: bool = False


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


def _clip(x: jax.Array, size: int, is_volume: bool) -> jax.Array:
    # NaN becomes 0 in images, and the end in volumes; no gradient at the borders
    inside = (x > 0) & (x < size - 1)
    is_beyond = ~(x < size - 1) if is_volume else x >= size - 1
    limit = jnp.where(is_beyond, np.asarray(size - 1, x.dtype), np.asarray(0, x.dtype))
    return jnp.where(inside, x, limit)


def _into(x: jax.Array, size: int, settings: _Settings) -> jax.Array:
    """Positions brought into the image as the padding mode says."""
    if settings.padding == _REFLECTION:
        ends = (0, 2 * (size - 1)) if settings.align_corners else (-1, 2 * size - 1)
        x = _reflect(x, *ends)
    return x if settings.padding == _ZEROS else _clip(x, size, settings.is_volume)


def _places(sizes: Sequence[int], positions: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """A mask of the integer positions (N, P), one array a dimension, inside an image, and the pixels' numbers, or 0."""
    valid = jnp.ones(positions[0].shape, bool)
    at = jnp.zeros(positions[0].shape, jnp.int32)
    for p, size in zip(positions, sizes, strict=True):
        valid = valid & (p >= 0) & (p < size)
        at = at * size + jnp.where(valid, p, 0).astype(at.dtype)
    return valid, jnp.where(valid, at, 0)


def _weights(sizes: Sequence[int], corner: Sequence[Any]) -> list[jax.Array]:
    """The weights of one neighbour along the dimensions; outside of a volume 0, by which ATen does not multiply."""
    weights = [weight for _, weight in corner if weight is not None]
    if not weights or len(sizes) < 3:
        return weights
    valid, _ = _places(sizes, [position for position, _ in corner])
    return [jnp.where(valid, weight, np.zeros((), weight.dtype)) for weight in weights]


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


def _axes(grid: jax.Array, sizes: Sequence[int], settings: _Settings) -> list[Any]:
    """The neighbours of the points (N, ..., n) of a grid along each dimension of an image, as (N, P)."""
    batch, *shape, n = grid.shape
    settings = settings._replace(is_volume=n == 3)
    points = grid.reshape(batch, math.prod(shape), n)
    # a grid's coordinates are in the opposite order of the image's dimensions
    return [_neighbours(points[..., n - 1 - i], size, settings) for i, size in enumerate(sizes)]


def _sample(input, grid, interpolation_mode, padding_mode, align_corners, pick=_pick):
    settings = _Settings(interpolation_mode, padding_mode, align_corners)
    compute = compute_type(input.dtype)
    image, points = cast(input, compute), cast(grid, compute)
    total = None
    for corner in product(*_axes(points, image.shape[2:], settings)):
        term = pick(image, [position for position, _ in corner])
        for weight in _weights(image.shape[2:], corner):
            term = term * weight[:, None]
        total = term if total is None else total + term
    return cast(total.reshape(*input.shape[:2], *grid.shape[1:-1]), input.dtype)


# On a CPU. XLA would compute positions and weights anew for each channel, and the numbers of pixels element by element.


class _Read(NamedTuple):
    """One pixel for each point of a grid: whether there is one, its row, and its weight; all (N * P, 1)."""

    valid: jax.Array
    row: jax.Array
    weight: jax.Array


def _reads(grid: jax.Array, sizes: Sequence[int], settings: _Settings) -> list[_Read]:
    found = []
    for corner in product(*_axes(grid, sizes, settings)):
        valid, at = _places(sizes, [position for position, _ in corner])
        first = lax.broadcasted_iota(np.int32, at.shape, 0) * np.int32(prod(sizes))
        factors = _weights(sizes, corner)
        weight = reduce(lax.mul, factors) if factors else jnp.ones(at.shape, grid.dtype)
        found.append(_Read(*(a.reshape(-1, 1) for a in (valid, at + first, weight))))
    return found


def _as_rows(x: jax.Array) -> jax.Array:
    """(N, C, ...) as stored rows (N * P, C), of which each is in the cache at once."""
    n, channels, *inner = x.shape
    return lax.optimization_barrier(jnp.moveaxis(x.reshape(n, channels, prod(inner)), 1, 2).reshape(-1, channels))


def _from_rows(rows: jax.Array, like: Sequence[int]) -> jax.Array:
    """Rows as an array of the shape (N, C, ...)."""
    n, channels, *inner = like
    return jnp.moveaxis(lax.optimization_barrier(rows).reshape(n, prod(inner), channels), 2, 1).reshape(like)


def _read(rows: jax.Array, read: _Read) -> jax.Array:
    found = rows.at[read.row[:, 0]].get(mode=IN_BOUNDS)
    return jnp.where(read.valid, found, np.zeros((), rows.dtype))


def _sample_in_rows(input: jax.Array, grid: jax.Array, *settings: Any) -> jax.Array:
    compute = compute_type(input.dtype)
    rows = _as_rows(cast(input, compute))
    reads = lax.optimization_barrier(_reads(cast(grid, compute), input.shape[2:], _Settings(*settings)))
    total = reduce(lax.add, [_read(rows, r) * r.weight for r in reads])
    return cast(_from_rows(total, (*input.shape[:2], *grid.shape[1:-1])), input.dtype)


def _backward_in_rows(
    grad: jax.Array, image: jax.Array, grid: jax.Array, *settings: Any
) -> tuple[jax.Array, jax.Array]:
    compute = compute_type(image.dtype)
    rows, added = _as_rows(cast(image, compute)), _as_rows(cast(grad, compute))

    def weights_of(grid: jax.Array) -> tuple[list[jax.Array], list[_Read]]:
        reads = _reads(grid, image.shape[2:], _Settings(*settings))
        return [r.weight for r in reads], reads

    _, pull, reads = jax.vjp(weights_of, cast(grid, compute), has_aux=True)
    reads = lax.optimization_barrier(reads)
    of_weights = [sum_of_last(_read(rows, r) * added, (1,)) for r in reads]
    # one scatter for all that a point reads: each has a cost of its own
    at = jnp.concatenate([r.row for r in reads], 1)
    weights = jnp.concatenate([r.weight for r in reads], 1)[:, :, None]
    valid = jnp.concatenate([r.valid for r in reads], 1)[:, :, None]
    # not by a weight of 0: the gradient of a point outside of the image may be NaN
    updates = jnp.where(valid, added[:, None] * weights, np.zeros((), compute)).reshape(at.size, rows.shape[1])
    of_rows = jnp.zeros_like(rows).at[at.reshape(-1)].add(updates, mode=IN_BOUNDS)
    (of_grid,) = pull(lax.optimization_barrier(of_weights))
    return cast(_from_rows(of_rows, image.shape), image.dtype), cast(of_grid, grid.dtype)


def _suits_rows(input: jax.Array, grid: jax.Array) -> bool:
    if is_open(input) or is_open(grid) or not input.size or not grid.size:
        return False
    return input.size // input.shape[1] < 2**31


def _sampled(input: jax.Array, grid: jax.Array, *settings: Any) -> jax.Array:
    plain = partial(_sample, interpolation_mode=settings[0], padding_mode=settings[1], align_corners=settings[2])
    if not _suits_rows(input, grid):
        return plain(input, grid)
    return by_platform(input, grid, cpu=lambda x, g: _sample_in_rows(x, g, *settings), default=plain)


# aten::{grid_sampler_2d, grid_sampler_3d, _grid_sampler_2d_cpu_fallback}(Tensor input, Tensor grid,
#     int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
@kernel("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    return _sampled(input, grid, interpolation_mode, padding_mode, align_corners)


_ROWS = 8  # channels that make a row


def _sample_backward(grad: jax.Array, image: jax.Array, grid: jax.Array, *settings: Any) -> tuple[jax.Array, jax.Array]:
    has_rows = image.shape[1] >= _ROWS

    def plain(grad: jax.Array, image: jax.Array, grid: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, pull = jax.vjp(lambda x, g: _sample(x, g, *settings, _pick_rows if has_rows else _pick), image, grid)
        return pull(grad)

    if not has_rows or not _suits_rows(image, grid):
        return plain(grad, image, grid)
    return by_platform(grad, image, grid, cpu=lambda *operands: _backward_in_rows(*operands, *settings), default=plain)


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
    return _sampled(self, grid, _BILINEAR, _ZEROS, True)


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
