"""Convolutions as one matrix product for each row of the kernel, of images with channels last, on a CPU.

What lies under a row of the kernel, at each place, is a row of a matrix: that copies the image once for each element of
the row, where `conv_patches` copies it once for each element of the kernel. It is for bfloat16 where the processor
multiplies that: Eigen's convolution computes it in float32, a product of matrices as it is, with sums in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import jax
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, Windows
from ..kernel_base.materialize import stored
from ..kernel_base.promotion import cast, moved_as_bits
from . import conv_direct
from .dot_reductions import contract


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    kernels = lax.reshape(weight, (math.prod(windows.kernel[:-1]), windows.kernel[-1] * x.shape[-1], shape[-1]))
    total: jax.Array | None = None
    for matrix, kernel in zip(_under_rows(x, windows, shape[1:-1]), kernels, strict=True):
        product = contract(matrix, kernel, (((1,), (0,)), ((), ())))
        total = product if total is None else total + product
    assert total is not None
    return lax.reshape(total, shape)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape; without strides."""
    return forward(grad, *conv_direct.turned(weight, windows), shape)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    outputs = grad.shape[-1]
    turned = lax.transpose(lax.reshape(grad, (grad.size // outputs, outputs)), (1, 0))
    rounded = functools.partial(cast, dtype=x.dtype)
    rows = [
        stored(rounded, contract(turned, matrix, (((1,), (0,)), ((), ()))))  # in longer rows than a kernel's
        for matrix in _under_rows(x, windows, grad.shape[1:-1])
    ]
    found = lax.concatenate([lax.expand_dims(row, (0,)) for row in rows], 0)
    found = lax.reshape(found, (*windows.kernel[:-1], outputs, windows.kernel[-1], x.shape[-1]))
    n = len(windows.kernel)
    return lax.transpose(found, (*range(n - 1), n, n + 1, n - 1))


def _under_rows(x: jax.Array, windows: Windows, positions: Shape) -> Iterator[jax.Array]:
    """For each row of the kernel the elements of an image under it, (positions, elements of a row x channels)."""
    spatial, n = x.shape[1:-1], len(positions)
    x = LAST.pad(x, windows.padding, windows.behind(positions, spatial))
    ones = (1,) * (n - 1)
    along = Windows((*ones, windows.kernel[-1]), (*ones, windows.stride[-1]), (0,) * n, windows.dilation, 1)
    across = windows._replace(stride=(*windows.stride[:-1], 1), padding=(0,) * n)
    in_rows = (*x.shape[1:-2], positions[-1])

    def side_by_side(x: jax.Array) -> jax.Array:
        columns = range(windows.kernel[-1])
        return lax.concatenate([LAST.under(x, along, (*(0,) * (n - 1), i), in_rows) for i in columns], n + 1)

    matrix = moved_as_bits(side_by_side, x)
    for index in np.ndindex(*windows.kernel[:-1]):
        part = LAST.under(matrix, across, (*index, 0), positions)
        yield lax.reshape(part, (math.prod(part.shape[:-1]), part.shape[-1]))
