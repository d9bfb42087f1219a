"""Convolutions without the spatial dimensions that the kernel spans: they become channels.

There is one window in such a dimension, so that its elements are terms of one sum, as channels are. XLA's convolution
would slide a kernel of hundreds of elements, and for the weight's gradient one as large over every element of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import ConvCall, Windows


class _Folding(NamedTuple):
    """The dimensions that become channels, and the others.

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


def folded(
    compute: Callable[[ConvCall, jax.Array, jax.Array], jax.Array], call: ConvCall, a: jax.Array, b: jax.Array
) -> jax.Array:
    """The result of a call, by `compute` of one without dimensions that the kernel spans."""
    part, image, result = call.part, call.image(a), call.result(a, b)
    folding = _folding(call.windows, image[2:])
    if folding is None:
        return compute(call, a, b)
    if part == "forward":
        found = compute(call._replace(windows=folding.windows), folding.fold(a), folding.fold(b))
        return lax.reshape(found, result)
    operands = (folding.fold_output(a), folding.fold(b)) if part == "input_gradient" else (
        folding.fold(a), folding.fold_output(b)
    )  # fmt: skip
    inner = call._replace(windows=folding.windows, shape=folding.folded(result))
    return folding.unfold(compute(inner, *operands), result)
