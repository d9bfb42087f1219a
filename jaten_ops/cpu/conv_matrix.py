"""Convolutions by kernels of one element: products of matrices, of images with channels last, on a CPU."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import Windows
from ..kernel_base.promotion import cast
from .dot_reductions import contract, product_over_rows


def _taken(x: jax.Array, windows: Windows) -> jax.Array:
    """Every stride-th element, as a matrix of channels."""
    x = lax.slice(x, (0,) * x.ndim, x.shape, (1, *windows.stride, 1))
    return lax.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _matrix(weight: jax.Array) -> jax.Array:
    """The weight as (outputs, channels), as programs have it: XLA would copy it into the other order at each call."""
    last = weight.ndim - 1
    first = lax.transpose(weight, (last, last - 1, *range(last - 1)))
    return lax.reshape(first, first.shape[:2])


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """The product over a dimension of each, terms of half precision exact, in the dtype of the factors."""
    return cast(contract(a, b, (((of_a,), (of_b,)), ((), ()))), a.dtype)


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    return lax.reshape(_product(_taken(x, windows), _matrix(weight), 1, 1), shape)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape."""
    rows = lax.reshape(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))
    product = _product(rows, _matrix(weight), 1, 0)
    image = lax.reshape(product, (*grad.shape[:-1], shape[-1]))
    rest = zip(shape[1:-1], image.shape[1:-1], windows.stride, strict=True)
    widths = [(0, size - s * (n - 1) - 1, s - 1) for size, n, s in rest]
    return lax.pad(image, np.zeros((), image.dtype), [(0, 0, 0), *widths, (0, 0, 0)])


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    rows = lax.reshape(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))
    product = cast(product_over_rows(rows, _taken(x, windows)), rows.dtype)
    matrix = lax.reshape(product, (shape[-1], shape[-2], *shape[:-2]))
    return lax.transpose(matrix, (*range(2, len(shape)), 1, 0))
