"""Convolutions of images with channels first by XLA's own, which Eigen computes, in the order that it takes.

XLA would bring its operands into that order itself. Where the program has it done, behind barriers, the rest is a call
of a library and moves of elements, which need not be compiled for a first call (`interpreter/library_calls.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base import conv_parts
from ..kernel_base.conv_parts import FIRST, LAST, Windows
from .conv_direct import padded_first


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    if windows.groups > 1:
        return conv_parts.forward(x, weight, windows, shape, FIRST)
    padding, ones = [(p, p) for p in windows.padding], [1] * len(windows.kernel)
    found = _convolved(_image(x, 0, 1), _kernel(weight, 1, 0), windows.stride, padding, ones, windows.dilation)
    return _channels_first(found)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape: by the kernel from its end, with zeros between the gradients."""
    if windows.groups > 1:
        return conv_parts.input_gradient(grad, weight, windows, shape, FIRST)
    low, high, _ = windows.around_gradient(grad.shape[2:], shape[2:])
    turned, ones = lax.rev(weight, range(2, weight.ndim)), [1] * len(windows.kernel)
    padding = list(zip(low, high, strict=True))
    found = _convolved(_image(grad, 0, 1), _kernel(turned, 0, 1), ones, padding, windows.stride, windows.dilation)
    return _channels_first(found)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape: the output's gradient slides over the padded input."""
    if windows.groups > 1:
        return padded_first(x, grad, windows, shape, FIRST)
    high, ones = windows.behind(grad.shape[2:], x.shape[2:]), [1] * len(windows.kernel)
    image = FIRST.pad(x, windows.padding, high)
    none = [(0, 0)] * len(windows.kernel)
    found = _convolved(_image(image, 1, 0), _kernel(grad, 0, 1), windows.dilation, none, ones, windows.stride)
    return lax.transpose(found, (found.ndim - 1, 0, *range(1, found.ndim - 1)))


def _image(x: jax.Array, batch: int, channels: int) -> jax.Array:
    """As (batch, ..., channels), for the dimensions that are those."""
    return lax.transpose(x, (batch, *range(2, x.ndim), channels))


def _channels_first(x: jax.Array) -> jax.Array:
    return lax.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _kernel(x: jax.Array, terms: int, outputs: int) -> jax.Array:
    """As (..., terms, outputs), for the dimensions that are added up and not."""
    return lax.transpose(x, (*range(2, x.ndim), terms, outputs))


def _convolved(
    image: jax.Array, kernel: jax.Array, stride: Sequence[int], padding: Sequence[tuple[int, int]],
    between: Sequence[int], dilation: Sequence[int],
) -> jax.Array:  # fmt: skip
    """The image (N, ..., I) by the kernel (..., I, O)."""
    image, kernel = lax.optimization_barrier((image, kernel))
    found = lax.conv_general_dilated(
        image, kernel, stride, padding, lhs_dilation=between, rhs_dilation=dilation,
        dimension_numbers=LAST.numbers(image.ndim),
    )  # fmt: skip
    return lax.optimization_barrier(found)
