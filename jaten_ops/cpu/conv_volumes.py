"""Convolutions of volumes, and their gradients, on a CPU: of an image for each place in depth.

XLA has a loop over every product for volumes. The images under one element of the kernel in depth are convolved by
that part of it, and what they give is added up; with channels last, where there are few of them, the images under all
of them are one with as many more channels, as Eigen takes channels in stretches. Each function takes how a part of a
convolution of images is computed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import ConvLayout, Windows
from . import conv_grouped
from .conv_space_to_depth import FEW_CHANNELS
from .conv_taps import padded

OfImages = Callable[[str, jax.Array, jax.Array, Windows, Shape], jax.Array]


def are_sums_of_volumes(part: str, kernel: Shape, channels: int, outputs: int) -> bool:
    """True if volumes are best computed as groups of few channels are."""
    summed = {"forward": channels, "input_gradient": outputs}.get(part)
    return summed is not None and summed <= FEW_CHANNELS and conv_grouped.are_sums(part, kernel, channels, outputs)


class _Depth:
    """Volumes as images: (N, D, ..., C) as (N * D, ..., C), (N, C, D, ...) as (N * D, C, ...); kernels likewise."""

    def __init__(self, layout: ConvLayout, windows: Windows) -> None:
        self.windows, self.layout = windows, layout
        self._axis, self._of_kernel = (1, 0) if layout.last else (2, 2)

    def images(self, x: jax.Array) -> jax.Array:
        if not self.layout.last:
            x = lax.transpose(x, (0, 2, 1, *range(3, x.ndim)))
        return lax.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))

    def flat(self, shape: Shape) -> Shape:
        """The shape of the images of volumes of a shape."""
        rest = shape[2:] if self.layout.last else (shape[1], *shape[3:])
        return (shape[0] * shape[self._axis], *rest)

    def volume(self, images: jax.Array, shape: Shape) -> jax.Array:
        """The inverse of `images`, to this shape."""
        if self.layout.last:
            return lax.reshape(images, shape)
        split = lax.reshape(images, (shape[0], shape[2], *images.shape[1:]))
        return lax.transpose(split, (0, 2, 1, *range(3, split.ndim)))

    def kernel(self, weight: jax.Array, i: int) -> jax.Array:
        return lax.index_in_dim(weight, i, self._of_kernel, keepdims=False)

    def kernel_shape(self, shape: Shape) -> Shape:
        return tuple(n for d, n in enumerate(shape) if d != self._of_kernel)

    def whole(self, kernels: list[jax.Array]) -> jax.Array:
        return jnp.stack(kernels, self._of_kernel)

    def padded(self, x: jax.Array, low: int, high: int, *, is_stored: bool = True) -> jax.Array:
        """With zeros in depth, stored with channels last: with channels first images are transposed, hence stored."""
        rest = (0,) * (x.ndim - 3)
        sides = (low, *rest), (high, *rest)
        if not (is_stored and self.layout.last):
            return self.layout.pad(x, *sides)
        return padded(x, self.layout, *sides)

    def slices(self, x: jax.Array, positions: int) -> list[jax.Array]:
        """For each element of the kernel in depth the images under it, of a volume that is padded in depth."""
        step = self.windows.stride[0]
        starts = [self.windows.dilation[0] * i for i in range(self.windows.kernel[0])]
        return [self.images(lax.slice_in_dim(x, s, s + step * (positions - 1) + 1, step, self._axis)) for s in starts]


def _added(parts: list[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, parts)


def forward(
    of_images: OfImages, x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout
) -> jax.Array:
    """The output, of this shape."""
    depth, flat = _Depth(layout, windows), windows.flat()
    image = depth.flat(shape)
    slices = depth.slices(depth.padded(x, *[windows.padding[0]] * 2), layout.sizes(shape)[0])
    if layout.last and x.shape[-1] <= FEW_CHANNELS:
        last = weight.ndim - 2
        kernel = lax.transpose(weight, (*range(1, last), 0, last, last + 1))
        kernel = lax.reshape(kernel, (*windows.kernel[1:], len(slices) * x.shape[-1], shape[-1]))
        found = of_images("forward", lax.concatenate(slices, x.ndim - 2), kernel, flat, image)
    else:
        parts = [of_images("forward", s, depth.kernel(weight, i), flat, image) for i, s in enumerate(slices)]
        found = _added(parts)
    return depth.volume(found, shape)


def input_gradient(
    of_images: OfImages, grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout
) -> jax.Array:
    """The transpose by the input, of this shape.

    With channels last and without strides in depth each image's is a sum of those of the images around it.
    """
    depth, flat, taps = _Depth(layout, windows), windows.flat(), windows.kernel[0]
    if layout.last and windows.stride[0] == 1:
        around = windows.reach()[0] - windows.padding[0]
        slices, image = depth.slices(depth.padded(grad, around, around), shape[1]), depth.flat(shape)
        kernels = [depth.kernel(weight, taps - 1 - i) for i in range(taps)]
        pairs = zip(slices, kernels, strict=True)
        return depth.volume(_added([of_images("input_gradient", s, k, flat, image) for s, k in pairs]), shape)
    images = depth.images(grad)
    image = (images.shape[0], *depth.flat(shape)[1:])
    parts = [of_images("input_gradient", images, depth.kernel(weight, i), flat, image) for i in range(taps)]

    def slices_of(x: jax.Array) -> Any:
        return depth.slices(depth.padded(x, *[windows.padding[0]] * 2, is_stored=False), layout.sizes(grad.shape)[0])

    return jax.linear_transpose(slices_of, jax.ShapeDtypeStruct(shape, grad.dtype))(parts)[0]


def weight_gradient(
    of_images: OfImages, x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout
) -> jax.Array:
    """The transpose by the weight, of this shape: that of each element of the kernel in depth by itself."""
    depth, flat = _Depth(layout, windows), windows.flat()
    grad = lax.optimization_barrier(grad)  # or what it is made of is computed once more for each
    images, small = depth.images(grad), depth.kernel_shape(shape)
    slices = depth.slices(depth.padded(x, *[windows.padding[0]] * 2), layout.sizes(grad.shape)[0])
    return depth.whole([of_images("weight_gradient", s, images, flat, small) for s in slices])
