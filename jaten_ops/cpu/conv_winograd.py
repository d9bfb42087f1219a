"""Convolutions by kernels of three elements, without strides, with fewer products: on a CPU, with channels last.

Winograd's minimal filtering F(2, 3) [Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016]: four
products give two neighbouring outputs in a dimension, where six would be needed; sixteen give the four of an image,
where 36 would. Its factors are 0, 1, -1 and 1/2, which keeps rounding near a plain sum's. Larger tiles would save more
products, and lose digits.

What is in a tile, but not under a window, cancels in that window's sum. An infinity, a NaN or a huge number would not:
where there is one, the plain convolution is computed. And what is zero because its whole window is, as the background
of a picture, stays exactly zero.

An image is (N, ..., C) here, a kernel (..., C, O).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.xla import cpu_features

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, Windows
from .conv_direct import MANY_IMAGES, turned
from .dot_reductions import all_finite

Plain = Callable[[jax.Array, jax.Array, Windows, Shape], jax.Array]

_OUTPUTS, _INPUTS = 2, 4  # of a tile, in a dimension
# at each place of a transformed tile: one element of the input, and with this sign another
_FIRST, _SECOND, _SIGN = (0, 1, 2, 1), (2, 2, 1, 3), (-1, 1, -1, -1)
_OF_KERNEL = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_OF_OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))
_HUGE = 1e15  # a product of two such, and a sum of many of them, is finite
_BLOCK = 2**20  # elements of what a block's tiles are made into: they stay in a core's caches


def takes(windows: Windows) -> bool:
    """True if windows can be computed here; those of their input's gradient can, too."""
    ones = (1, 1)
    plain = windows.groups == 1 and windows.stride == windows.dilation == ones
    return plain and windows.kernel == (3, 3) and max(windows.padding) <= 2


def transforms_pay(images: int, positions: Shape, channels: int, outputs: int, *, of_weight: bool) -> bool:
    """True if it saves so many products that it is faster, transformations included.

    Fitted to measurements on one core: 16 to 512 channels and outputs, images of 4x4 to 112x112, 1 to 32 of them. Where
    products are fast they hardly save more than the transformations take, and these take long to compile. Of a weight's
    gradient XLA's own is slow for few images only.
    """
    if cpu_features.multiplies_fast() or (of_weight and images >= MANY_IMAGES):
        return False
    tiles = math.prod(-(-n // _OUTPUTS) for n in positions)
    if not images * tiles * channels * outputs:
        return False
    whole = math.prod(positions) / (tiles * _OUTPUTS ** len(positions))
    of_rows, of_kernel = (30, 20) if of_weight else (18, 60)
    return 1 + of_rows / channels + of_rows / outputs + of_kernel / (images * tiles) < 2 * whole


class _Tiles:
    """A partition of an output into tiles, and of a batch into blocks of images.

    Args:
        image: the input's shape.
        padding: zeros around it.
        positions: the output's spatial sizes.
        channels: how many the input and the output have together.
    """

    def __init__(self, image: Shape, padding: Shape, positions: Shape, channels: int) -> None:
        self.count = tuple(-(-n // _OUTPUTS) for n in positions)
        self._padding, self._sizes, self._positions = padding, image[1:-1], positions
        each = math.prod(self.count) * _INPUTS ** len(positions) * channels
        self._images = max(n for n in range(1, image[0] + 1) if image[0] % n == 0 and (n == 1 or n * each <= _BLOCK))

    def blocks(self, x: jax.Array) -> jax.Array:
        return lax.reshape(x, (x.shape[0] // self._images, self._images, *x.shape[1:]))

    def of_input(self, x: jax.Array) -> jax.Array:
        """The tiles of an input, transformed: (places, tiles, C)."""
        each = zip(self._padding, self.count, self._sizes, strict=True)
        x = LAST.pad(x, self._padding, [_OUTPUTS * n + 2 - size - p for p, n, size in each])
        n = len(self.count)
        whole = (*(_INPUTS,) * n, self._images, *self.count, x.shape[-1])
        total: jax.Array | None = None
        for elements in itertools.product((_FIRST, _SECOND), repeat=n):
            part = _taken(x, elements, self.count)
            for d in range(n):
                if elements[d] is _SECOND:
                    part = part * lax.broadcast_in_dim(np.array(_SIGN, x.dtype), whole, (d,))
            total = part if total is None else total + part
        assert total is not None
        return self._as_rows(total)

    def of_gradient(self, grad: jax.Array) -> jax.Array:
        """The output's gradient as the transpose of the output's transformation has it: (places, tiles, O)."""
        behind = [_OUTPUTS * n - size for n, size in zip(self.count, self._positions, strict=True)]
        x = LAST.pad(grad, [0] * len(behind), behind)
        for i, count in enumerate(self.count):
            axis = 1 + 2 * i
            split = lax.reshape(x, (*x.shape[:axis], count, _OUTPUTS, *x.shape[axis + 1 :]))
            shape = (*x.shape[:axis], _INPUTS, count, *x.shape[axis + 1 :])
            others = tuple(d for d in range(len(shape)) if d != axis)
            parts = [
                lax.broadcast_in_dim(np.array(factors, x.dtype), shape, (axis,))
                * lax.broadcast_in_dim(lax.index_in_dim(split, n, axis + 1, keepdims=False), shape, others)
                for n, factors in enumerate(_OF_OUTPUT)
            ]
            x = functools.reduce(lax.add, parts)
        n = len(self.count)
        return self._as_rows(lax.transpose(x, (*range(1, 2 * n, 2), 0, *range(2, 2 * n + 1, 2), 2 * n + 1)))

    def _as_rows(self, x: jax.Array) -> jax.Array:
        """(place, ..., N, tile, ..., channels) as (places, tiles, channels)."""
        rows = self._images * math.prod(self.count)
        # stored: a product would compute it anew for each of its parts
        return lax.optimization_barrier(lax.reshape(x, (_INPUTS ** len(self.count), rows, x.shape[-1])))

    def output(self, products: jax.Array) -> jax.Array:
        """The output of the products (places, tiles, O) of a block."""
        n, outputs = len(self.count), products.shape[-1]
        x = lax.reshape(products, (*(_INPUTS,) * n, self._images, *self.count, outputs))
        for axis in range(n):  # the three places that an output is the sum of follow each other
            signs = np.array([row[i : i + 3] for i, row in enumerate(_OF_OUTPUT)], x.dtype)
            parts = []
            for k in range(3):
                part = lax.slice_in_dim(x, k, k + _OUTPUTS, axis=axis)
                parts.append(lax.broadcast_in_dim(signs[:, k], part.shape, (axis,)) * part)
            x = functools.reduce(lax.add, parts)
        order = [n, *(d for i in range(n) for d in (n + 1 + i, i)), 2 * n + 1]
        sizes = [_OUTPUTS * count for count in self.count]
        whole = lax.reshape(lax.transpose(x, order), (self._images, *sizes, outputs))
        return lax.slice(whole, (0,) * whole.ndim, (self._images, *self._positions, outputs))


def _taken(x: jax.Array, elements: Sequence[Sequence[int]], count: Shape) -> jax.Array:
    """The elements of all tiles at these places in each dimension: (place, ..., N, tile, ..., C)."""
    n = len(count)
    each = [np.add.outer(places, _OUTPUTS * np.arange(tiles)) for places, tiles in zip(elements, count, strict=True)]
    open_ = [index.reshape(_spread(index.shape, d, n)) for d, index in enumerate(each)]
    indices = np.stack(np.broadcast_arrays(*open_), -1).astype(np.int32)
    spatial = tuple(range(1, n + 1))
    numbers = lax.GatherDimensionNumbers((n, 2 * n + 1), spatial, spatial)
    sizes = (x.shape[0], *(1,) * n, x.shape[-1])
    return lax.gather(x, indices, numbers, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def _spread(shape: tuple[int, ...], d: int, n: int) -> list[int]:
    """The shape of (places, tiles) of one of n dimensions among (place, ..., tile, ...)."""
    return [shape[i // n] if i % n == d else 1 for i in range(2 * n)]


def _of_kernel(dims: int, dtype: np.dtype) -> np.ndarray:
    """The kernel's transformation in all dimensions, as a matrix (places, elements)."""
    return functools.reduce(np.kron, [np.array(_OF_KERNEL, dtype)] * dims)


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, plain: Plain) -> jax.Array:
    """The output, of this shape; `plain` computes it where sums would not cancel."""
    largest = lax.expand_dims(lax.reduce_max(lax.abs(x), (x.ndim - 1,)), (x.ndim - 1,))

    def by_tiles(x: jax.Array, weight: jax.Array, largest: jax.Array) -> jax.Array:
        matrix, (channels, outputs) = _of_kernel(len(windows.kernel), x.dtype), weight.shape[-2:]
        kernel = lax.dot(matrix, lax.reshape(weight, (matrix.shape[1], channels * outputs)))
        kernel = lax.reshape(kernel, (matrix.shape[0], channels, outputs))
        tiles = _Tiles(x.shape, windows.padding, shape[1:-1], channels + outputs)

        def some(_: None, block: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
            images, largest = block
            found = tiles.output(lax.dot_general(tiles.of_input(images), kernel, (((2,), (1,)), ((0,), (0,)))))
            return None, jnp.where(_largest_under(largest, windows, shape[1:-1]) == 0, 0, found)

        _, found = lax.scan(some, None, (tiles.blocks(x), tiles.blocks(largest)))
        return lax.reshape(found, shape)

    def plainly(x: jax.Array, weight: jax.Array, largest: jax.Array) -> jax.Array:
        return plain(x, weight, windows, shape)

    return lax.cond(_is_tame(x, largest) & _is_tame(weight), by_tiles, plainly, x, weight, largest)


def _is_tame(x: jax.Array, largest: jax.Array | None = None) -> jax.Array:
    """True if all elements of x would cancel; `largest` are the largest of each position, if they are known."""
    largest = lax.abs(x) if largest is None else largest
    # a maximum alone will not do: XLA's CPU drops NaNs from some
    return all_finite(x) & (lax.reduce_max(largest, tuple(range(largest.ndim))) < np.array(_HUGE, x.dtype))


def _largest_under(largest: jax.Array, windows: Windows, positions: Shape) -> jax.Array:
    image = LAST.pad(largest, windows.padding, windows.padding)
    each = [LAST.under(image, windows, place, positions) for place in np.ndindex(*windows.kernel)]
    return functools.reduce(lax.max, each)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, plain: Plain) -> jax.Array:
    """The transpose by the input, of this shape; `plain` computes an output."""
    return forward(grad, *turned(weight, windows), shape, plain)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, plain: Plain) -> jax.Array:
    """The weight's gradient, of this shape; `plain` computes it where sums would not cancel."""

    def by_tiles(x: jax.Array, grad: jax.Array) -> jax.Array:
        matrix, (channels, outputs) = _of_kernel(len(windows.kernel), x.dtype), shape[-2:]
        tiles = _Tiles(x.shape, windows.padding, grad.shape[1:-1], channels + outputs)

        def some(sums: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            images, grads = tiles.of_input(block[0]), tiles.of_gradient(block[1])
            return sums + lax.dot_general(images, grads, (((1,), (1,)), ((0,), (0,)))), None

        zeros = lax.full((matrix.shape[0], channels, outputs), 0, x.dtype)
        sums, _ = lax.scan(some, zeros, (tiles.blocks(x), tiles.blocks(grad)))
        flat = lax.reshape(sums, (matrix.shape[0], channels * outputs))
        return lax.reshape(lax.dot(matrix.T, flat), shape)

    def plainly(x: jax.Array, grad: jax.Array) -> jax.Array:
        return plain(x, grad, windows, shape)

    return lax.cond(_is_tame(x) & _is_tame(grad), by_tiles, plainly, x, grad)
