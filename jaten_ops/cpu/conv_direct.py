"""XLA's convolution for a CPU, which Eigen computes: what has to be brought about for its gradients."""

from __future__ import annotations

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base import conv_parts
from ..kernel_base.conv_parts import LAST, ConvLayout, Windows

MANY_IMAGES = 8
"""As many images are terms enough of a weight's gradient: XLA adds those of all images at each place of the window."""


def padded_first(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The weight's gradient slides the output's over the input: padded apart, that is never the larger one."""
    padded = lax.optimization_barrier(layout.pad(x, windows.padding, windows.padding))
    windows = windows._replace(padding=(0,) * len(windows.padding))
    return conv_parts.weight_gradient(padded, grad, windows, shape, layout)


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape, with channels last; those below, too."""
    return conv_parts.forward(x, weight, windows, shape, LAST)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape."""
    return conv_parts.input_gradient(grad, weight, windows, shape, LAST)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    if max(*windows.stride, *windows.dilation) == 1 and grad.shape[-1] < x.shape[-1]:
        return _swapped(x, grad, windows, shape)
    return padded_first(x, grad, windows, shape, LAST)


def _swapped(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The same products, with the input slid over the output's gradient: XLA transposes what is slid over."""
    around = tuple(r - p for r, p in zip(windows.reach(), windows.padding, strict=True))
    swapped = (*shape[:-2], shape[-1], shape[-2])
    found = weight_gradient(grad, x, windows._replace(padding=around), swapped)
    last = len(shape) - 1
    return lax.transpose(lax.rev(found, range(last - 1)), (*range(last - 1), last, last - 1))


def turned(weight: jax.Array, windows: Windows) -> tuple[jax.Array, Windows]:
    """For the transpose, without strides a convolution: by the kernel from its end, its channels swapped by groups."""
    *kernel, channels, outputs = weight.shape
    spatial, n, groups = range(len(kernel)), len(kernel), windows.groups
    split = lax.reshape(lax.rev(weight, spatial), (*kernel, channels, groups, outputs // groups))
    swapped = lax.transpose(split, (*spatial, n + 2, n + 1, n))
    turned = lax.reshape(swapped, (*kernel, outputs // groups, groups * channels))
    around = tuple(r - p for r, p in zip(windows.reach(), windows.padding, strict=True))
    return turned, windows._replace(padding=around)
