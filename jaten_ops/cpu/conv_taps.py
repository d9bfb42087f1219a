"""Convolutions as sums of products with the elements of a kernel: where groups are of one channel, or of few.

XLA's CPU has no good way for groups: a loop over every product, 10 to 100 times as long.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import ConvLayout, Windows
from ..kernel_base.materialize import stored

MOST_TAPS = 128  # each is an instruction of the loop
# From here on each row of a kernel is a sum of its own: in a single one each addition waits for that before it.
_MANY_TAPS, _MANY_TAPS_LAST = 25, 49

Pair = tuple[jax.Array, jax.Array]


def products(pairs: Iterable[Pair], shape: Shape, of_image: Sequence[int], of_kernel: Sequence[int]) -> list[jax.Array]:
    """The products of elements of an image with elements of a kernel, pair by pair, repeated to a shape.

    Args:
        pairs: what lies under an element of the kernel, and that element.
        shape: of each product.
        of_image, of_kernel: the dimensions of `shape` that those of the two are.
    """
    return [
        lax.broadcast_in_dim(under, shape, of_image) * lax.broadcast_in_dim(element, shape, of_kernel)
        for under, element in pairs
    ]


def padded(x: jax.Array, layout: ConvLayout, *widths: Sequence[int]) -> jax.Array:
    """Padded, and stored before it is used.

    XLA would compute what x is made of together with the zeros, and ask at each element which it is: an exponential
    there takes five times as long.
    """
    return stored(lambda x: layout.pad(x, *widths), x) if any(map(any, widths)) else x


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The output, of this shape."""
    image = padded(x, layout, windows.padding, windows.padding)
    return stored(lambda x, w: _sum_of_taps(x, w, windows, shape, layout), image, weight)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The transpose, as such a sum too: of the gradient with zeros between its elements and the kernel from its end."""
    turned = lax.rev(weight, layout.numbers(weight.ndim).rhs_spec[2:])
    if not layout.last:
        groups, (outputs, channels) = windows.groups, weight.shape[:2]
        split = lax.reshape(turned, (groups, outputs // groups, channels, *windows.kernel))
        swapped = lax.transpose(split, (0, 2, 1, *range(3, split.ndim)))
        turned = lax.reshape(swapped, (groups * channels, outputs // groups, *windows.kernel))
    image = padded(grad, layout, *windows.around_gradient(layout.sizes(grad.shape), layout.sizes(shape)))
    ones = windows._replace(stride=(1,) * len(windows.kernel))
    return stored(lambda x, w: _sum_of_taps(x, w, ones, shape, layout), image, turned)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The sum over all positions of each element's products, all elements in one pass over the input."""
    image = padded(x, layout, windows.padding, windows.padding)
    return (_row_by_row if layout.last else _all_at_once)(image, grad, windows, shape, layout)


def _sum_of_taps(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The output of a padded input; with channels last each channel has a kernel of its own."""
    if math.prod(windows.kernel) < (_MANY_TAPS_LAST if layout.last else _MANY_TAPS):
        return _sum_of_row(x, weight, windows, shape, layout)
    rows, *others = windows.kernel
    of_row = windows._replace(kernel=(1, *others))
    image_dim, kernel_dim = (layout.numbers(x.ndim)[i][2] for i in (0, 1))
    size = windows.stride[0] * (shape[image_dim] - 1) + 1
    # traced and lowered once for all rows
    total = jax.jit(lambda x, w: _sum_of_row(x, w, of_row, shape, layout))
    starts = [windows.dilation[0] * row for row in range(rows)]
    return functools.reduce(
        operator.add,
        [
            total(
                lax.slice_in_dim(x, start, start + size, axis=image_dim),
                lax.slice_in_dim(weight, row, row + 1, axis=kernel_dim),
            )
            for row, start in enumerate(starts)
        ],
    )


def _sum_of_row(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The same as one sum, each term added to those before it."""
    positions = layout.sizes(shape)
    if layout.last:
        pairs = (
            (layout.under(x, windows, index, positions), weight[(*index, 0)]) for index in np.ndindex(*windows.kernel)
        )
        return functools.reduce(operator.add, products(pairs, shape, range(len(shape)), (len(shape) - 1,)))
    groups, (outputs, channels) = windows.groups, weight.shape[:2]
    split = (shape[0], groups, outputs // groups, *positions)
    flat = lax.reshape(weight, (groups, outputs // groups, channels * math.prod(windows.kernel)))
    taps = enumerate(itertools.product(range(channels), np.ndindex(*windows.kernel)))
    pairs = (
        (layout.under(x, windows, index, positions, channel, channels), lax.index_in_dim(flat, n, 2, keepdims=False))
        for n, (channel, index) in taps
    )
    total = functools.reduce(operator.add, products(pairs, split, (0, 1, *range(3, len(split))), (1, 2)))
    return lax.reshape(total, shape)


def _all_at_once(image: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The weight's gradient as one reduction of several arrays."""
    groups, (outputs, channels), positions = windows.groups, shape[:2], grad.shape[2:]
    grad = lax.reshape(grad, (grad.shape[0], groups, outputs // groups, *positions))
    taps = itertools.product(range(channels), np.ndindex(*windows.kernel))
    pairs = ((layout.under(image, windows, index, positions, channel, channels), grad) for channel, index in taps)
    terms = products(pairs, grad.shape, (0, 1, *range(3, grad.ndim)), range(grad.ndim))
    zeros = [np.zeros((), grad.dtype)] * len(terms)
    sums = lax.reduce(terms, zeros, lambda a, b: tuple(map(lax.add, a, b)), tuple(range(3, grad.ndim)))
    by_image = lax.concatenate([lax.expand_dims(s, (3,)) for s in sums], 3)
    return lax.reshape(lax.reduce_sum(by_image, (0,)), shape)


def _row_by_row(image: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The weight's gradient, the products of a row in each of its columns: those are added at the end.

    Without strides a row and its channels are one dimension: XLA vectorizes no loop over few channels.
    """
    outer = grad.shape[1:-2]  # the rows of an image
    row, channels = grad.shape[-2:]
    is_flat = windows.stride[-1] == 1
    of_row = (row * channels,) if is_flat else (row, channels)
    rows = lax.reshape(grad, (grad.shape[0] * math.prod(outer), *of_row))
    if is_flat:
        image = lax.reshape(image, (*image.shape[:-2], image.shape[-2] * channels, 1))
        dilation = *windows.dilation[:-1], windows.dilation[-1] * channels
        windows = windows._replace(dilation=dilation)
    reach = [*(r + 1 for r in windows.reach()[:-1]), *image.shape[-2:]]
    taps = list(np.ndindex(*windows.kernel))

    def add(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start = [jnp.zeros((), i.dtype)] * 2
        rest = i
        for size, stride in zip(reversed(outer), reversed(windows.stride[:-1]), strict=True):
            start.insert(0, lax.rem(rest, i.dtype.type(size)) * i.dtype.type(stride))
            rest = lax.div(rest, i.dtype.type(size))
        start.insert(0, rest)
        block = lax.dynamic_slice(image, start, (1, *reach))
        by_row = lax.dynamic_index_in_dim(rows, i, keepdims=False)
        under = [layout.under(block, windows, tap, (*[1] * len(outer), of_row[0])) for tap in taps]
        return tuple(map(lax.add, sums, [lax.reshape(u, of_row) * by_row for u in under]))

    zeros = tuple(jnp.zeros(of_row, grad.dtype) for _ in taps)
    sums = lax.fori_loop(0, rows.shape[0], add, zeros)
    by_channel = [lax.reduce_sum(lax.reshape(s, (row, channels)), (0,)) for s in sums]
    return lax.reshape(lax.concatenate([s[None] for s in by_channel], 0), shape)
