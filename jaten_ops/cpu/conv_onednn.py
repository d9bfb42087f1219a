"""Convolutions of images with channels last by oneDNN, which XLA's CPU compiler has; it takes groups and dilation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, ConvCall, Windows
from ..xla import onednn


def computes_part(call: ConvCall) -> bool:
    """True if a part of a convolution is one that oneDNN computes."""
    windows = call.windows
    if call.part == "input_gradient":  # zeros between the gradients are none of oneDNN's settings
        return max(windows.stride) == 1
    return call.part == "forward" or windows.groups == 1  # groups of images are not, either


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    return onednn.convolve(
        x, weight, windows.stride, [(p, p) for p in windows.padding], windows.dilation, windows.groups
    )


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape; without strides: by the kernel from its end."""
    low, high, _ = windows.around_gradient(grad.shape[1:-1], shape[1:-1])
    image, padding = _cropped(grad, low, high)
    kernel = _turned(weight, windows.groups)
    return onednn.convolve(image, kernel, windows.stride, padding, windows.dilation, windows.groups)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape, for one group: the output's gradient slides over the input."""
    spatial = range(1, x.ndim - 1)
    sizes = [s * (n - 1) + r + 1 for s, n, r in zip(windows.stride, grad.shape[1:-1], windows.reach(), strict=True)]
    high = [size - n - p for size, n, p in zip(sizes, x.shape[1:-1], windows.padding, strict=True)]
    image, padding = _cropped(x, windows.padding, high)
    images, terms = (x.ndim - 1, *spatial, 0), (*spatial, 0, x.ndim - 1)
    found = onednn.convolve(
        lax.transpose(image, images), lax.transpose(grad, terms), windows.dilation, padding, windows.stride, 1
    )
    return lax.transpose(found, terms)


def _cropped(x: jax.Array, low: Sequence[int], high: Sequence[int]) -> tuple[jax.Array, list[tuple[int, int]]]:
    """An image without the elements that negative padding takes away, which oneDNN has not; and the rest of it."""
    if min(*low, *high) < 0:
        x = LAST.pad(x, [min(n, 0) for n in low], [min(n, 0) for n in high])
    return x, [(max(before, 0), max(behind, 0)) for before, behind in zip(low, high, strict=True)]


def _turned(weight: jax.Array, groups: int) -> jax.Array:
    """The kernel from its end, its channels and outputs swapped within each group."""
    *kernel, channels, outputs = weight.shape
    spatial = range(len(kernel))
    split = lax.reshape(lax.rev(weight, spatial), (*kernel, channels, groups, outputs // groups))
    swapped = lax.transpose(split, (*spatial, len(kernel) + 2, len(kernel) + 1, len(kernel)))
    return lax.reshape(swapped, (*kernel, outputs // groups, groups * channels))
