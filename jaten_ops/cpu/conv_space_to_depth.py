"""Images as blocks of neighbouring elements, whose elements are channels: for convolutions on a CPU.

Eigen takes a convolution in stretches of channels and of outputs; with few of either, as pictures have and small nets,
it takes several times as long for each product. And the weight's gradient of a convolution with strides slides the
output's gradient over the input element by element. Of blocks of as many rows and columns as the stride a convolution
has no stride any more, and more channels; with several windows side by side as the outputs of one, which has zeros
before or behind them then, more of both. An image is (N, ..., C) here, a kernel (..., C, O).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import Windows
from ..kernel_base.materialize import stored
from ..xla import cpu_features
from . import conv_direct
from .dot_reductions import all_finite


def side_by_side(windows: Windows, channels: int, outputs: int) -> int:
    """The number of windows, side by side, that are best computed as one; 1 if none are.

    Measured on one core: 3x3 and 5x5 kernels, 1 to 32 channels, 6 to 64 outputs. Where products take long, the products
    with zeros do not pay if stretches are full without them.
    """
    if max(windows.stride) > 1:
        return 2 if channels * math.prod(windows.stride) < _A_STRETCH and channels <= FEW_CHANNELS else 1
    if channels < FEW_CHANNELS:
        return 4
    uneven = channels % _A_STRETCH != 0 and channels < 3 * _A_STRETCH
    if cpu_features.halves_vectors():
        are_full = channels > _A_STRETCH and outputs % _A_STRETCH == 0
        return 2 if uneven or (outputs <= 2 * _A_STRETCH and not are_full) else 1
    if outputs <= _A_STRETCH:
        return 4 if channels <= _A_STRETCH or windows.kernel[-1] > 3 else 2
    return 2 if outputs <= 2 * _A_STRETCH or uneven else 1


def blocks_possible(part: str, windows: Windows) -> bool:
    """True if a part of a convolution can be computed on blocks."""
    if windows.groups > 1 or max(windows.dilation) > 1:
        return False
    within = all(p <= r for p, r in zip(windows.padding, windows.reach(), strict=True))
    return part != "input_gradient" or (within and max(windows.stride) == 1)


def blocks_pay(part: str, windows: Windows, channels: int, outputs: int) -> bool:
    """True if a part of a convolution, which blocks take, is best computed on them; of the weight's gradient False."""
    if part == "forward":
        strided = max(windows.stride) > 1 and channels <= FEW_CHANNELS
        return strided or side_by_side(windows, channels, outputs) > 1
    return part == "input_gradient" and side_by_side(windows, outputs, channels) > 1


FEW_CHANNELS = 4
_A_STRETCH = 8


@dataclass(frozen=True)
class Blocks:
    """A partition of an image, and of the windows of a kernel without dilation, into blocks.

    Attributes:
        windows: those on the elements.
        positions: how many there are of them, in each dimension.
        across: how many of them, side by side in the last dimension, are a window on blocks.
    """

    windows: Windows
    positions: Shape
    across: int = 1

    @property
    def _across(self) -> Shape:
        return (*(1,) * (len(self.positions) - 1), self.across)

    @property
    def size(self) -> Shape:
        """Elements of a block, in each dimension."""
        return tuple(a * s for a, s in zip(self._across, self.windows.stride, strict=True))

    @property
    def kernel_size(self) -> Shape:
        """Blocks that a window lies on."""
        each = zip(self._across, self.windows.stride, self.windows.kernel, self.size, strict=True)
        return tuple(-(-((a - 1) * s + k) // b) for a, s, k, b in each)

    @property
    def positions_in_blocks(self) -> Shape:
        """The number of windows in whole blocks, in each dimension."""
        return tuple(-(-n // a) * a for n, a in zip(self.positions, self._across, strict=True))

    @property
    def without_zeros(self) -> bool:
        """True if the windows on blocks are those on the elements, so that no zero meets an infinity."""
        whole = tuple(n * b for n, b in zip(self.kernel_size, self.size, strict=True))
        return self.across == 1 and whole == self.windows.kernel

    @property
    def windows_on_blocks(self) -> Windows:
        n = len(self.positions)
        return Windows(self.kernel_size, (1,) * n, (0,) * n, (1,) * n, 1)

    def image(self, x: jax.Array) -> jax.Array:
        """The blocks of an image, with zeros around it, or elements away, such that they are whole."""
        each = zip(self.positions_in_blocks, self._across, self.kernel_size, self.size, strict=True)
        whole = [(n // a + k - 1) * b for n, a, k, b in each]
        sides = [(p, w - p - n, 0) for p, w, n in zip(self.windows.padding, whole, x.shape[1:-1], strict=True)]
        padded = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), *sides, (0, 0, 0)])
        return jax.vmap(self._split)(padded)

    def kernel(self, weight: jax.Array) -> jax.Array:
        """The kernel on blocks: its outputs are those of each window in turn."""
        *first, last = (n * b for n, b in zip(self.kernel_size, self.size, strict=True))
        before = [(0, w - k, 0) for w, k in zip(first, self.windows.kernel[:-1], strict=True)]
        shifted = []
        for i in range(self.across):
            start = i * self.windows.stride[-1]
            widths = [*before, (start, last - start - self.windows.kernel[-1], 0), (0, 0, 0), (0, 0, 0)]
            shifted.append(lax.pad(weight, np.zeros((), weight.dtype), widths))
        outputs_first = lax.concatenate(shifted, weight.ndim - 1).transpose(-1, *range(weight.ndim - 1))
        return jax.vmap(self._split, out_axes=-1)(outputs_first)

    def _split(self, x: jax.Array) -> jax.Array:
        """(..., C), each dimension a number of blocks, as (blocks, ..., channels of a block)."""
        n, counts = len(self.size), [m // b for m, b in zip(x.shape, self.size, strict=False)]
        sizes = [m for pair in zip(counts, self.size, strict=True) for m in pair]
        split = lax.reshape(x, (*sizes, x.shape[-1]))
        moved = lax.transpose(split, (*range(0, 2 * n, 2), *range(1, 2 * n, 2), 2 * n))
        return lax.reshape(moved, (*counts, math.prod(self.size) * x.shape[-1]))

    def output(self, found: jax.Array) -> jax.Array:
        """The output, at all positions in blocks, of what the windows on blocks give."""
        *first, last, outputs = found.shape
        return lax.reshape(found, (*first, last * self.across, outputs // self.across))


def _on_blocks(image: jax.Array, weight: jax.Array, blocks: Blocks) -> jax.Array:
    return blocks.output(conv_direct.forward(image, blocks.kernel(weight), blocks.windows_on_blocks, ()))


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape.

    On blocks where no element is infinite or NaN: the zeros between the windows on blocks would spread it.
    """
    blocks = Blocks(windows, shape[1:-1], side_by_side(windows, x.shape[-1], shape[-1]))
    image = stored(blocks.image, x)
    if blocks.without_zeros:
        return _on_blocks(image, weight, blocks)

    def on_blocks(image: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        return _on_blocks(image, weight, blocks)

    def on_elements(image: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        more = [(0, m - n, 0) for n, m in zip(blocks.positions, blocks.positions_in_blocks, strict=True)]
        return lax.pad(
            conv_direct.forward(x, weight, windows, shape), np.zeros((), x.dtype), [(0, 0, 0), *more, (0, 0, 0)]
        )

    found = lax.cond(all_finite(image), on_blocks, on_elements, image, x, weight)
    return lax.slice(found, (0,) * found.ndim, shape)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape; without strides."""
    return forward(grad, *conv_direct.turned(weight, windows), shape)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    blocks = Blocks(windows, grad.shape[1:-1])
    image = stored(blocks.image, x)
    by_weight = functools.partial(_on_blocks, image, blocks=blocks)
    return jax.linear_transpose(by_weight, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]
