"""Convolutions that are one product of matrices, of images with channels last, on a CPU.

Their kernels have one element, or their windows lie side by side.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import Windows
from ..kernel_base.promotion import cast
from .dot_reductions import contract, product_over_rows


def is_one_product(windows: Windows) -> bool:
    """True if a convolution is one product of what the image and the kernel have, each in another order at most."""
    if windows.groups > 1 or any(windows.padding):
        return False
    return math.prod(windows.kernel) == 1 or (windows.stride == windows.kernel and max(windows.dilation) == 1)


def _under_windows(x: jax.Array, windows: Windows, positions: Shape) -> jax.Array:
    """A matrix (positions, terms) whose rows are the elements under each window."""
    if math.prod(windows.kernel) == 1:
        x = lax.slice(x, (0,) * x.ndim, x.shape, (1, *windows.stride, 1))
    else:
        stop = [n * k for n, k in zip(positions, windows.kernel, strict=True)]
        x = lax.slice(x, (0,) * x.ndim, (x.shape[0], *stop, x.shape[-1]))
        sizes = [n for pair in zip(positions, windows.kernel, strict=True) for n in pair]
        x = lax.transpose(lax.reshape(x, (x.shape[0], *sizes, x.shape[-1])), _windows_last(len(positions)))
    return lax.reshape(x, (math.prod((x.shape[0], *positions)), math.prod(windows.kernel) * x.shape[-1]))


def _windows_last(n: int) -> list[int]:
    """The dimensions (N, positions and kernel by turns, C) with all positions first: (N, positions, kernel, C)."""
    return [0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1]


def _matrix(weight: jax.Array) -> jax.Array:
    """The weight as (outputs, terms), as programs have it: XLA would copy it into the other order at each call."""
    last = weight.ndim - 1
    first = lax.transpose(weight, (last, *range(last)))
    return lax.reshape(first, (first.shape[0], math.prod(first.shape[1:])))


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """The product over a dimension of each, terms of half precision exact, in the dtype of sums."""
    return contract(a, b, (((of_a,), (of_b,)), ((), ())))


def _rows(grad: jax.Array) -> jax.Array:
    return lax.reshape(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    return lax.reshape(_product(_under_windows(x, windows, shape[1:-1]), _matrix(weight), 1, 1), shape)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape."""
    product, positions = _product(_rows(grad), _matrix(weight), 1, 0), grad.shape[1:-1]
    if math.prod(windows.kernel) == 1:
        image = lax.reshape(product, (*grad.shape[:-1], shape[-1]))
        between = [s - 1 for s in windows.stride]
    else:
        n = len(positions)
        parts = lax.reshape(product, (grad.shape[0], *positions, *windows.kernel, shape[-1]))
        by_turns = [d for pair in zip(range(1, n + 1), range(n + 1, 2 * n + 1), strict=True) for d in pair]
        sizes = [n * k for n, k in zip(positions, windows.kernel, strict=True)]
        image = lax.reshape(lax.transpose(parts, (0, *by_turns, 2 * n + 1)), (grad.shape[0], *sizes, shape[-1]))
        between = [0] * n
    sizes = [m * (b + 1) - b for m, b in zip(image.shape[1:-1], between, strict=True)]
    widths = [(0, size - m, b) for size, m, b in zip(shape[1:-1], sizes, between, strict=True)]
    return lax.pad(image, np.zeros((), image.dtype), [(0, 0, 0), *widths, (0, 0, 0)])


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    rows = _rows(grad)
    product = cast(product_over_rows(rows, _under_windows(x, windows, grad.shape[1:-1])), rows.dtype)
    return lax.transpose(lax.reshape(product, (shape[-1], *shape[:-1])), (*range(1, len(shape)), 0))
