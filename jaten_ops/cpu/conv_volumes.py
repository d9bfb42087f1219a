"""Convolutions of volumes, and their gradients, with channels last, on a CPU: of an image for each place in depth.

XLA has a loop over every product for volumes. The images under one element of the kernel in depth are convolved by
that part of it, and what they give is added up; where there are few channels the images under all of them are one
with as many more channels, as Eigen takes channels in stretches. A volume is (N, D, ..., C) here, a kernel
(D, ..., C, O). Each function takes how a part of a convolution of images is computed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from . import conv_grouped
from .conv_depthwise import padded
from .conv_nchw import Shape, Windows
from .conv_space_to_depth import FEW_CHANNELS

OfImages = Callable[[str, jax.Array, jax.Array, Windows, Shape], jax.Array]


def are_sums(part: str, kernel: Shape, channels: int, outputs: int) -> bool:
    """Whether they are best computed as groups of few channels are."""
    summed = {"forward": channels, "input_gradient": outputs}.get(part)
    return summed is not None and summed <= FEW_CHANNELS and conv_grouped.are_sums(part, kernel, channels, outputs)


def _slices(x: jax.Array, windows: Windows, positions: int) -> list[jax.Array]:
    """For each element of the kernel in depth the images under it, of a volume that is padded in depth."""
    step = windows.stride[0]
    starts = [windows.dilation[0] * i for i in range(windows.kernel[0])]
    return [_images(lax.slice_in_dim(x, s, s + step * (positions - 1) + 1, step, 1)) for s in starts]


def _images(x: jax.Array) -> jax.Array:
    return lax.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _in_depth(x: jax.Array, beside: jax.Array, low: int, high: int) -> jax.Array:
    rest = (0,) * (x.ndim - 3)
    return padded(x, beside, (low, *rest), (high, *rest), (0, *rest))


def _added(parts: list[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, parts)


def forward(of_images: OfImages, x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    image, flat = (shape[0] * shape[1], *shape[2:]), windows.flat()
    slices = _slices(_in_depth(x, weight, *[windows.padding[0]] * 2), windows, shape[1])
    if x.shape[-1] <= FEW_CHANNELS:
        last = weight.ndim - 2
        kernel = lax.transpose(weight, (*range(1, last), 0, last, last + 1))
        kernel = lax.reshape(kernel, (*windows.kernel[1:], len(slices) * x.shape[-1], shape[-1]))
        found = of_images("forward", lax.concatenate(slices, x.ndim - 2), kernel, flat, image)
    else:
        found = _added([of_images("forward", s, weight[i], flat, image) for i, s in enumerate(slices)])
    return lax.reshape(found, shape)


def input_gradient(
    of_images: OfImages, grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape
) -> jax.Array:
    """The transpose: without strides in depth each image's is a sum of those of the images around it."""
    flat, depth = windows.flat(), windows.kernel[0]
    if windows.stride[0] == 1:
        around = windows.reach()[0] - windows.padding[0]
        slices = _slices(_in_depth(grad, weight, around, around), windows, shape[1])
        image = (shape[0] * shape[1], *shape[2:])
        parts = [of_images("input_gradient", s, weight[depth - 1 - i], flat, image) for i, s in enumerate(slices)]
        return lax.reshape(_added(parts), shape)
    image = (grad.shape[0] * grad.shape[1], *shape[2:])
    parts = [of_images("input_gradient", _images(grad), weight[i], flat, image) for i in range(depth)]

    def slices_of(x: jax.Array) -> list[jax.Array]:
        both = (windows.padding[0], windows.padding[0], 0)
        widened = lax.pad(x, jnp.zeros((), x.dtype), [both if d == 1 else (0, 0, 0) for d in range(x.ndim)])
        return _slices(widened, windows, grad.shape[1])

    return jax.linear_transpose(slices_of, jax.ShapeDtypeStruct(shape, grad.dtype))(parts)[0]


def weight_gradient(of_images: OfImages, x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """That of each element of the kernel in depth by itself."""
    grad = lax.optimization_barrier(grad)  # or what it is made of is computed once more for each
    flat, images = windows.flat(), _images(grad)
    slices = _slices(_in_depth(x, grad, *[windows.padding[0]] * 2), windows, grad.shape[1])
    return jnp.stack([of_images("weight_gradient", s, images, flat, shape[1:]) for s in slices])
