"""Convolutions with a kernel for each channel, and their gradients, of images with channels last, on a CPU.

Each is a sum of products with the elements of a kernel. An image is (N, ..., C) here, a kernel (..., 1, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.materialize import stored
from .conv_nchw import Shape, Windows


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    image = padded(x, weight, windows.padding, windows.padding, (0,) * len(windows.kernel))
    return stored(lambda x, w: _sum_of_taps(x, w, windows, shape), image, weight)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose, as such a sum too: of the gradient with zeros between its elements and the kernel from its end."""
    turned = lax.rev(weight, range(weight.ndim - 2))
    image = padded(grad, turned, *windows.around_gradient(grad.shape[1:-1], shape[1:-1]))
    ones = windows._replace(stride=(1,) * len(windows.kernel))
    return stored(lambda x, w: _sum_of_taps(x, w, ones, shape), image, turned)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The products of each element of a kernel, all elements in one pass, row by row: a row's are added at the end."""
    image = padded(x, grad, windows.padding, windows.padding, (0,) * len(windows.kernel))
    outer = grad.shape[1:-2]  # the rows of an image
    row, channels = grad.shape[-2:]
    rows = lax.reshape(grad, (grad.shape[0] * math.prod(outer), row, channels))
    reach = [*(r + 1 for r in windows.reach()[:-1]), image.shape[-2]]
    taps = list(np.ndindex(*windows.kernel))

    def add(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start = [jnp.zeros((), i.dtype)] * 2
        rest = i
        for size, stride in zip(reversed(outer), reversed(windows.stride[:-1]), strict=True):
            start.insert(0, lax.rem(rest, i.dtype.type(size)) * i.dtype.type(stride))
            rest = lax.div(rest, i.dtype.type(size))
        start.insert(0, rest)
        block = lax.dynamic_slice(image, start, (1, *reach, channels))
        by_row = lax.dynamic_index_in_dim(rows, i, keepdims=False)
        products = [
            lax.reshape(under(block, tap, windows, (1,) * len(outer) + (row,)), by_row.shape) * by_row for tap in taps
        ]
        return tuple(map(lax.add, sums, products))

    zeros = tuple(jnp.zeros((row, channels), grad.dtype) for _ in taps)
    sums = lax.fori_loop(0, rows.shape[0], add, zeros)
    return lax.reshape(lax.concatenate([lax.reduce_sum(s, (0,))[None] for s in sums], 0), shape)


def _sum_of_taps(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """Of a padded input."""
    total: jax.Array | None = None
    for index in np.ndindex(*windows.kernel):
        factor = lax.broadcast_in_dim(weight[(*index, 0)], shape, (len(shape) - 1,))
        product = under(x, index, windows, shape[1:-1]) * factor
        total = product if total is None else total + product
    assert total is not None
    return total


def under(x: jax.Array, index: Sequence[int], windows: Windows, positions: Sequence[int]) -> jax.Array:
    """What lies under one element of the kernel at all positions of a padded input."""
    start = [d * i for d, i in zip(windows.dilation, index, strict=True)]
    stop = [b + s * (n - 1) + 1 for b, s, n in zip(start, windows.stride, positions, strict=True)]
    return lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *windows.stride, 1))


def padded(x: jax.Array, beside: jax.Array, *widths: Sequence[int]) -> jax.Array:
    """Padded, and stored before it is used; `beside` is some other operand, which is not empty."""
    if not any(map(any, widths)):
        return x
    sides = [(0, 0, 0), *zip(*widths, strict=True), (0, 0, 0)]
    return stored(lambda x, _: lax.pad(x, np.zeros((), x.dtype), sides), x, beside)
