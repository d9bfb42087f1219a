"""Convolutions as `conv_nchw` has them, but for spatial dimensions that the kernel spans: they become channels.

There is one window in such a dimension, so that its elements are terms of one sum, as channels are. XLA's convolution
would slide a kernel of hundreds of elements, and for the weight's gradient one as large over every element of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
from jax import lax

from . import conv_nchw
from .conv_nchw import Shape, Windows


class _Folding(NamedTuple):
    """Which dimensions become channels.

    Attributes:
        windows: those that are left.
        spanned: the dimensions of an input, and of a weight, that become channels.
        left: the other spatial dimensions; none if a dimension of one element stands for them.
    """

    windows: Windows
    spanned: Shape
    left: Shape

    def fold(self, x: jax.Array) -> jax.Array:
        """An input (N, C, ...) or a weight (O, C / groups, ...)."""
        moved = lax.transpose(x, (0, 1, *self.spanned, *self.left))
        return lax.reshape(moved, self.folded(x.shape))

    def folded(self, shape: Shape) -> Shape:
        """The shape of what `fold` makes of a shape."""
        channels = shape[1] * math.prod(shape[d] for d in self.spanned)
        return (shape[0], channels, *([shape[d] for d in self.left] or [1]))

    def unfold(self, x: jax.Array, shape: Shape) -> jax.Array:
        """The inverse of `fold`, to this shape."""
        order = (0, 1, *self.spanned, *self.left)
        split = lax.reshape(x, tuple(shape[d] for d in order))
        return lax.transpose(split, tuple(order.index(d) for d in range(len(shape))))

    def fold_output(self, x: jax.Array) -> jax.Array:
        """An output, or its gradient, (N, O, ...): of one element in each dimension that the kernel spans."""
        return lax.reshape(x, (*x.shape[:2], *([x.shape[d] for d in self.left] or [1])))


def _folding(windows: Windows, sizes: Shape) -> _Folding | None:
    """For an input of these spatial sizes; None if the kernel spans no dimension of several elements."""
    settings = list(zip(*windows[:4], strict=True))
    whole = (1, 1, 0, 1)
    spans = [
        kernel == size > 1 and padding == 0 and dilation == 1
        for (kernel, _, padding, dilation), size in zip(settings, sizes, strict=True)
    ]
    if not any(spans):
        return None
    rest = [setting for setting, is_spanned in zip(settings, spans, strict=True) if not is_spanned] or [whole]
    kernel, stride, padding, dilation = zip(*rest, strict=True)
    return _Folding(
        Windows(kernel, stride, padding, dilation, windows.groups),
        tuple(d for d, is_spanned in enumerate(spans, 2) if is_spanned),
        tuple(d for d, is_spanned in enumerate(spans, 2) if not is_spanned),
    )


def forward(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    """As `conv_nchw.forward`."""
    folding = _folding(windows, x.shape[2:])
    if folding is None:
        return conv_nchw.forward(x, weight, windows)
    found = conv_nchw.forward(folding.fold(x), folding.fold(weight), folding.windows)
    return lax.reshape(found, (x.shape[0], weight.shape[0], *windows.positions(x.shape[2:])))


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """As `conv_nchw.input_gradient`."""
    folding = _folding(windows, shape[2:])
    if folding is None:
        return conv_nchw.input_gradient(grad, weight, windows, shape)
    grad = folding.fold_output(conv_nchw.resized(grad, windows.positions(shape[2:])))
    found = conv_nchw.input_gradient(grad, folding.fold(weight), folding.windows, folding.folded(shape))
    return folding.unfold(found, shape)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """As `conv_nchw.weight_gradient`."""
    folding = _folding(windows, x.shape[2:])
    if folding is None:
        return conv_nchw.weight_gradient(x, grad, windows, shape)
    grad = folding.fold_output(conv_nchw.resized(grad, windows.positions(x.shape[2:])))
    found = conv_nchw.weight_gradient(folding.fold(x), grad, folding.windows, folding.folded(shape))
    return folding.unfold(found, shape)
