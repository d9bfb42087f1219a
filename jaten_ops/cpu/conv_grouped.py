"""Convolutions of groups of channels, and their gradients, of images with channels last, on a CPU.

XLA has no good way: Eigen's for groups takes a multiple of the time, and patches are as many copies of the image as a
kernel has elements. Groups of few channels are SUMS here: of products with an element of a kernel for each channel
of a group, a loop whose vectors are a group's outputs; the weight's gradient is one of products with the positions of
a stretch of rows. Groups of more channels are a convolution each, ONE BY ONE. No zero stands between groups, so that
an infinity stays in its own. An image is (N, ..., C) here, a kernel (..., C / groups, O).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, Windows
from ..kernel_base.materialize import stored
from .conv_phases import Phases, interleaved
from .conv_taps import padded, products

# Measured on one core: 3x3 kernels, 4 to 64 channels of a group, images of 7 to 56 rows.
_MOST_TERMS = 100  # of a sum: each is an instruction of the loop
_LANES = 8  # of a vector, of float32
_CHAINS = 4  # sums side by side: an addition waits for the one before it
_OF_A_PART = 32  # outputs whose weights stay in the first cache
_OF_A_STRETCH = 64  # positions that a sum of the weight's gradient goes over
_AT_ONCE = 16  # outputs that such a stretch's elements stay in the first cache for
_LEAST_BY_ITSELF = 64  # products of a group's channels and outputs that are worth a convolution of their own
_FEW_GROUPS = 8  # a convolution each in the program; of more there is one, in a loop


def are_sums(part: str, kernel: Shape, channels: int, outputs: int) -> bool:
    """True if groups of so many channels and outputs are best computed as SUMS."""
    terms, vector = {
        "forward": (channels, outputs),
        "input_gradient": (outputs, channels),
        "weight_gradient": (channels, outputs),
    }[part]
    return vector % (_LANES // 2) == 0 and terms * math.prod(kernel) <= _MOST_TERMS


def are_large(channels: int, outputs: int) -> bool:
    """True if groups of so many channels and outputs are worth a convolution each."""
    return channels * outputs >= _LEAST_BY_ITSELF


# --- sums of products, with vectors of a group's outputs --------------------------------------------------------------


class _Cut(NamedTuple):
    """A partition of outputs, and of the channels that they are made of.

    Attributes:
        parts: one after the other, so that what they are multiplied with stays in the cache.
        groups: of a part.
        channels: of a group.
        vectors: a group's outputs, as (vectors, lanes).
    """

    parts: int
    groups: int
    channels: int
    vectors: tuple[int, int]

    @classmethod
    def of(cls, groups: int, channels: int, outputs: int, most: int) -> _Cut:
        """For a group's channels and outputs, and so many outputs of a part at most."""
        lanes = _LANES if outputs % _LANES == 0 else outputs
        together = max(n for n in range(1, groups + 1) if groups % n == 0 and (n == 1 or n * outputs <= most))
        return cls(groups // together, together, channels, (outputs // lanes, lanes))

    def image(self, x: jax.Array) -> jax.Array:
        """(N, ..., C) as (N, ..., parts, groups, channels)."""
        return lax.reshape(x, (*x.shape[:-1], self.parts, self.groups, self.channels))

    def kernel(self, weight: jax.Array) -> jax.Array:
        """(..., C / groups, O) as (parts, ..., C / groups, groups, vectors, lanes)."""
        split = lax.reshape(weight, (*weight.shape[:-1], self.parts, self.groups, *self.vectors))
        return _part_first(split, split.ndim - 4)

    def joined(self, found: jax.Array) -> jax.Array:
        """(parts, ..., groups, vectors, lanes) as (..., O)."""
        n = found.ndim - 4
        moved = lax.transpose(found, (*range(1, n + 1), 0, *range(n + 1, n + 4)))
        return lax.reshape(moved, (*found.shape[1 : n + 1], self.parts * self.groups * math.prod(self.vectors)))


def _part_first(x: jax.Array, dim: int) -> jax.Array:
    return lax.transpose(x, (dim, *(d for d in range(x.ndim) if d != dim)))


def _in_chains(every: Sequence[jax.Array]) -> jax.Array:
    length = -(-len(every) // _CHAINS)
    chains = [functools.reduce(operator.add, every[i : i + length]) for i in range(0, len(every), length)]
    return functools.reduce(operator.add, chains)


def _sum_over_kernel(
    image: jax.Array, kernel: jax.Array, starts: dict[Shape, Shape], stride: Shape, positions: Shape
) -> jax.Array:
    """The sum over a kernel, of an image and a kernel as `_Cut` has them; `starts` has the elements that count."""
    n = len(positions)
    parts, groups, vectors = kernel.shape[0], kernel.shape[-3], kernel.shape[-2:]
    shape = (parts, image.shape[0], *positions, groups, *vectors)

    def pair(index: Shape, start: Shape, channel: int) -> tuple[jax.Array, jax.Array]:
        stop = [b + s * (size - 1) + 1 for b, s, size in zip(start, stride, positions, strict=True)]
        low, high = (0, *start, 0, 0, channel), (image.shape[0], *stop, parts, groups, channel + 1)
        taken = lax.slice(image, low, high, (1, *stride, 1, 1, 1))
        return lax.squeeze(taken, (n + 3,)), kernel[(slice(None), *index, channel)]

    pairs = (pair(i, start, c) for i, start in starts.items() for c in range(image.shape[-1]))
    return _in_chains(products(pairs, shape, (*range(1, n + 2), 0, n + 2), (0, n + 2, n + 3, n + 4)))


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape, as SUMS."""
    groups = windows.groups
    cut = _Cut.of(groups, weight.shape[-2], weight.shape[-1] // groups, _OF_A_PART)
    image = cut.image(padded(x, LAST, windows.padding, windows.padding))
    kernel = stored(cut.kernel, weight)
    starts = {i: _times(i, windows.dilation) for i in np.ndindex(*windows.kernel)}
    sums = functools.partial(_sum_over_kernel, starts=starts, stride=windows.stride, positions=shape[1:-1])
    return cut.joined(stored(sums, image, kernel))


def _times(a: Sequence[int], b: Sequence[int]) -> Shape:
    return tuple(map(operator.mul, a, b))


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose, as SUMS: of every stride-th element by itself, which only so many elements of a kernel meet."""
    groups, n, sizes = windows.groups, len(windows.kernel), shape[1:-1]
    channels, outputs = weight.shape[-2], weight.shape[-1] // groups
    cut = _Cut.of(groups, outputs, channels, _OF_A_PART)
    kernel = stored(lambda w: cut.kernel(_swapped(w, groups)), weight)
    phases = Phases.of(windows, sizes, grad.shape[1:-1])
    image = cut.image(padded(grad, LAST, phases.low, phases.high))
    found = []
    for starts in phases.starts:
        sums = functools.partial(_sum_over_kernel, starts=starts, stride=(1,) * n, positions=phases.sizes)
        none = jnp.zeros((grad.shape[0], *phases.sizes, shape[-1]), grad.dtype)
        found.append(cut.joined(stored(sums, image, kernel)) if starts else none)
    return interleaved(found, windows.stride, shape, first=1)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, as SUMS over the positions of some rows, or of a piece of one, which are added."""
    groups, row = windows.groups, grad.shape[-2]
    cut = _Cut.of(groups, shape[-2], shape[-1] // groups, _AT_ONCE)
    if len(windows.kernel) == 1:  # an image of one row
        windows = Windows(*((extra, *s) for extra, s in zip((1, 1, 0, 1), windows[:4], strict=True)), groups)
        x, grad = lax.expand_dims(x, (1,)), lax.expand_dims(grad, (1,))
    piece = _largest_factor(row, _OF_A_STRETCH)
    rows = _largest_factor(grad.shape[1], _OF_A_STRETCH // row) if row <= _OF_A_STRETCH else 1
    image = padded(x, LAST, windows.padding, windows.padding)
    columns = stored(lambda x: _columns(_part_first(cut.image(x), 3), windows, row, piece), image)
    pieces = stored(lambda g: _pieces(g, cut, rows, piece), grad)
    by_row = []
    for i in range(windows.kernel[0]):
        sums = functools.partial(_sum_of_positions, first=i * windows.dilation[0], step=windows.stride[0], rows=rows)
        by_row.append(lax.reduce_sum(stored(sums, columns, pieces), (1, 2, 3)))
    found = lax.transpose(jnp.stack(by_row), (0, 2, 3, 1, 4, 5, 6))
    return lax.reshape(found, shape)


def _largest_factor(n: int, most: int) -> int:
    return max(m for m in range(1, max(1, most) + 1) if n % m == 0)


def _columns(image: jax.Array, windows: Windows, row: int, piece: int) -> jax.Array:
    """(parts, N, rows, elements, ...) as (..., rows, pieces of a row, elements, columns of a kernel, ...)."""
    step, shape = windows.stride[1], image.shape
    firsts = [windows.dilation[1] * j for j in range(windows.kernel[1])]
    taken = [lax.slice_in_dim(image, first, first + step * (row - 1) + 1, step, 3) for first in firsts]
    return lax.reshape(jnp.stack(taken, 4), (*shape[:3], row // piece, piece, len(firsts), *shape[-2:]))


def _pieces(grad: jax.Array, cut: _Cut, rows: int, piece: int) -> jax.Array:
    """The output's gradient as (parts, N, stretches of rows, rows, pieces of a row, elements, groups, ...)."""
    images, height, row, _ = grad.shape
    split = (images, height // rows, rows, row // piece, piece, cut.parts, cut.groups, *cut.vectors)
    return _part_first(lax.reshape(grad, split), 5)


def _sum_of_positions(columns: jax.Array, pieces: jax.Array, first: int, step: int, rows: int) -> jax.Array:
    """(parts, N, stretches, pieces, columns of a kernel, channels, groups, ...) for one row of a kernel."""
    parts, images, stretches, _, across, piece, groups, *vectors = pieces.shape
    kernel, channels = columns.shape[5], columns.shape[-1]
    shape = (parts, images, stretches, across, kernel, channels, groups, *vectors)

    def pair(row: int, at: int) -> tuple[jax.Array, jax.Array]:
        start, stride = first + step * row, step * rows
        low = (0, 0, start, 0, at, 0, 0, 0)
        high = (parts, images, start + stride * (stretches - 1) + 1, across, at + 1, kernel, groups, channels)
        taken = lax.slice(columns, low, high, (1, 1, stride, 1, 1, 1, 1, 1))
        return lax.squeeze(taken, (4,)), pieces[:, :, :, row, :, at]

    pairs = (pair(row, at) for row in range(rows) for at in range(piece))
    return _in_chains(products(pairs, shape, (0, 1, 2, 3, 4, 6, 5), (0, 1, 2, 3, 6, 7, 8)))


# --- a convolution for each group -------------------------------------------------------------------------------------


def one_by_one(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape, of each group by itself."""
    sides = [(p, p) for p in windows.padding]
    one = functools.partial(_convolved, stride=windows.stride, sides=sides, between=None, dilation=windows.dilation)
    return _for_each(windows.groups, one, x, weight, shape)


def gradient_one_by_one(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The input's gradient, of each group by itself: by the kernel from its end, its channels swapped, beforehand.

    In a loop XLA would not see that the transpose of a convolution is one.
    """
    n = len(windows.kernel)
    turned = stored(lambda w: lax.rev(_swapped(w, windows.groups), range(n)), weight)
    low, high, _ = windows.around_gradient(grad.shape[1:-1], shape[1:-1])
    sides, ones = list(zip(low, high, strict=True)), (1,) * n
    one = functools.partial(_convolved, stride=ones, sides=sides, between=windows.stride, dilation=windows.dilation)
    return _for_each(windows.groups, one, grad, turned, shape)


def _convolved(
    x: jax.Array,
    weight: jax.Array,
    *,
    stride: Shape,
    sides: Sequence[tuple[int, int]],
    between: Shape | None,
    dilation: Shape,
) -> jax.Array:
    return lax.conv_general_dilated(
        x, weight, stride, sides, lhs_dilation=between, rhs_dilation=dilation, dimension_numbers=LAST.numbers(x.ndim)
    )


def _swapped(weight: jax.Array, groups: int) -> jax.Array:
    """(..., C / groups, O) as (..., O / groups, C)."""
    *kernel, channels, outputs = weight.shape
    n, of_group = len(kernel), outputs // groups
    moved = lax.transpose(lax.reshape(weight, (*kernel, channels, groups, of_group)), (*range(n), n + 2, n + 1, n))
    return lax.reshape(moved, (*kernel, of_group, groups * channels))


def weight_one_by_one(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The weight's gradient: for each element of a kernel the product of what lies under it and the gradient."""
    image = padded(x, LAST, windows.padding, windows.padding)
    positions = grad.shape[1:-1]
    count = math.prod(grad.shape[:-1])

    def one(x: jax.Array, grad: jax.Array) -> jax.Array:
        rows = lax.reshape(grad, (count, grad.shape[-1]))
        taken = [LAST.under(x, windows, index, positions) for index in np.ndindex(*windows.kernel)]
        matrices = [lax.reshape(t, (count, t.shape[-1])) for t in taken]
        found = [lax.dot_general(m, rows, (((0,), (0,)), ((), ()))) for m in matrices]
        return lax.reshape(jnp.stack(found), (*shape[:-1], rows.shape[-1]))

    return _for_each(windows.groups, one, image, grad, shape, few=0)  # as many products each as it has elements


def _for_each(
    groups: int,
    one: Callable[[jax.Array, jax.Array], jax.Array],
    a: jax.Array,
    b: jax.Array,
    shape: Shape,
    *,
    few: int = _FEW_GROUPS,
) -> jax.Array:
    """The results of each group, of the channels of two operands, side by side."""
    last, sizes = len(shape) - 1, [x.shape[-1] // groups for x in (a, b)]
    if groups <= few:
        pairs = [
            [lax.slice_in_dim(x, i * n, (i + 1) * n, 1, last) for x, n in zip((a, b), sizes, strict=True)]
            for i in range(groups)
        ]
        return lax.concatenate([one(*pair) for pair in pairs], last)

    def add(i: jax.Array, found: jax.Array) -> jax.Array:
        taken = [lax.dynamic_slice_in_dim(x, i * n, n, last) for x, n in zip((a, b), sizes, strict=True)]
        return lax.dynamic_update_slice_in_dim(found, one(*taken), i * (shape[-1] // groups), last)

    return lax.fori_loop(0, groups, add, jnp.zeros(shape, a.dtype))
