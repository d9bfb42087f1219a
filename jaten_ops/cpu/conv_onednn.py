"""Convolutions by oneDNN, which XLA's CPU compiler has; it takes groups and dilation, and both orders of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import LAST, ConvCall, ConvLayout, Windows
from ..xla import onednn
from . import conv_direct


def computes_part(call: ConvCall, sizes: Shape) -> bool:
    """True if a part of a convolution is one that oneDNN computes, for the spatial sizes of the first operand.

    For windows that lie in the padding alone, or are larger than the image, it has no kernel of its own. What it
    computes instead has threads that wait for each other: with several of XLA's the call may not return.
    """
    windows = call.windows
    reach, low = windows.reach(), windows.padding
    high: Sequence[int] = low
    if call.part == "input_gradient":
        if max(windows.stride) > 1:  # zeros between the gradients are none of oneDNN's settings
            return False
        low = high = tuple(r - p for r, p in zip(reach, low, strict=True))
    elif call.part == "weight_gradient":
        if windows.groups > 1:  # groups of images are not, either
            return False
        positions = windows.positions(sizes)
        reach = tuple(s * (n - 1) for s, n in zip(windows.stride, positions, strict=True))
        high = windows.behind(positions, sizes)
    return all(
        max(before, behind) <= r < size + min(before, behind, 0)
        for before, behind, r, size in zip(low, high, reach, sizes, strict=True)
    )


def forward(
    x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout, is_wide: bool
) -> jax.Array:
    """The output, of this shape, of float32 if it is wide."""
    return _convolved(x, weight, windows, layout.numbers(x.ndim), layout, is_wide)


def input_gradient(
    grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout, is_wide: bool
) -> jax.Array:
    """The transpose by the input, of this shape; without strides."""
    ndim = grad.ndim
    kernel = weight if layout.last else lax.transpose(weight, (*range(2, ndim), 1, 0))
    numbers = layout.numbers(ndim)._replace(rhs_spec=LAST.numbers(ndim).rhs_spec)
    return _convolved(grad, *conv_direct.turned(kernel, windows), numbers, layout, is_wide)


def weight_gradient(
    x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout, is_wide: bool
) -> jax.Array:
    """The transpose by the weight, of this shape, for one group: the output's gradient slides over the input.

    Images are channels, channels are images, and the outputs of the convolution are those of this one.
    """
    sizes = layout.sizes
    image, padding = _cropped(x, windows.padding, windows.behind(sizes(grad.shape), sizes(x.shape)), layout)
    (images, channels, *spatial), last = layout.numbers(x.ndim).lhs_spec, x.ndim - 1
    if layout.last:
        swapped, terms = (channels, *spatial, images), (*spatial, images, channels)
        kept = (*range(1, last), 0, last)
    else:
        swapped = terms = kept = (channels, images, *spatial)
    found = onednn.convolve(
        lax.transpose(image, swapped), lax.transpose(grad, terms), windows.dilation, padding, windows.stride, 1,
        layout.numbers(x.ndim), is_wide,
    )  # fmt: skip
    return lax.transpose(found, kept)


def _convolved(
    x: jax.Array, kernel: jax.Array, windows: Windows, numbers: Any, layout: ConvLayout, is_wide: bool
) -> jax.Array:
    image, padding = _cropped(x, windows.padding, windows.padding, layout)
    return onednn.convolve(image, kernel, windows.stride, padding, windows.dilation, windows.groups, numbers, is_wide)


def _cropped(
    x: jax.Array, low: Sequence[int], high: Sequence[int], layout: ConvLayout
) -> tuple[jax.Array, list[tuple[int, int]]]:
    """An image without the elements that negative padding takes away, which oneDNN has not; and the rest of it."""
    if min(*low, *high) < 0:
        x = layout.pad(x, [min(n, 0) for n in low], [min(n, 0) for n in high])
    return x, [(max(before, 0), max(behind, 0)) for before, behind in zip(low, high, strict=True)]
