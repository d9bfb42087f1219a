"""Convolutions of images with channels last by oneDNN, which XLA's CPU compiler has; it takes groups and dilation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, ConvCall, Windows
from ..xla import onednn
from . import conv_direct


def computes_part(call: ConvCall) -> bool:
    """True if a part of a convolution is one that oneDNN computes."""
    windows = call.windows
    if call.part == "input_gradient":  # zeros between the gradients are none of oneDNN's settings
        return max(windows.stride) == 1
    return call.part == "forward" or windows.groups == 1  # groups of images are not, either


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, is_wide: bool) -> jax.Array:
    """The output, of this shape, of float32 if it is wide."""
    image, padding = _cropped(x, windows.padding, windows.padding)
    return onednn.convolve(image, weight, windows.stride, padding, windows.dilation, windows.groups, is_wide)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, is_wide: bool) -> jax.Array:
    """The transpose by the input, of this shape; without strides."""
    return forward(grad, *conv_direct.turned(weight, windows), shape, is_wide)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, is_wide: bool) -> jax.Array:
    """The transpose by the weight, of this shape, for one group: the output's gradient slides over the input."""
    image, padding = _cropped(x, windows.padding, windows.behind(grad.shape[1:-1], x.shape[1:-1]))
    spatial = range(1, x.ndim - 1)
    images, terms = (x.ndim - 1, *spatial, 0), (*spatial, 0, x.ndim - 1)
    found = onednn.convolve(
        lax.transpose(image, images), lax.transpose(grad, terms), windows.dilation, padding, windows.stride, 1, is_wide
    )
    return lax.transpose(found, terms)


def _cropped(x: jax.Array, low: Sequence[int], high: Sequence[int]) -> tuple[jax.Array, list[tuple[int, int]]]:
    """An image without the elements that negative padding takes away, which oneDNN has not; and the rest of it."""
    if min(*low, *high) < 0:
        x = LAST.pad(x, [min(n, 0) for n in low], [min(n, 0) for n in high])
    return x, [(max(before, 0), max(behind, 0)) for before, behind in zip(low, high, strict=True)]
