"""The elements of an input by the remainders of their places by the strides, for the transpose of a convolution.

Every stride-th element lies under the same elements of a kernel, one window after the other: what the windows say of
those elements is a sum of slices, without zeros between the output's gradients and without a test of each element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import Windows


class Phases(NamedTuple):
    """The phases of the elements of an input.

    Attributes:
        sizes: elements of a phase, in each spatial dimension.
        low, high: the zeros around the output's gradient, with which no slice of it ends too early.
        starts: for each phase, by the elements of a kernel that lie on it, the place in the gradient with these zeros
            of the window that has them on the phase's first element.
    """

    sizes: Shape
    low: Shape
    high: Shape
    starts: list[dict[Shape, Shape]]

    @classmethod
    def of(cls, windows: Windows, sizes: Sequence[int], positions: Sequence[int]) -> Phases:
        """For an input of these sizes, and so many windows on it."""
        met = [_met(windows, phase) for phase in np.ndindex(*windows.stride)]
        of_phase = tuple(-(-size // s) for size, s in zip(sizes, windows.stride, strict=True))
        at = list(zip(*(start for starts in met for start in starts.values()), strict=True))
        low = tuple(max(0, -min(a)) for a in at)
        ends = zip(of_phase, at, positions, strict=True)
        high = tuple(max(0, size - 1 + max(a) - (there - 1)) for size, a, there in ends)
        return cls(of_phase, low, high, [{i: _sum(start, low) for i, start in starts.items()} for starts in met])


def _met(windows: Windows, phase: Shape) -> dict[Shape, Shape]:
    """The elements of a kernel that lie on every stride-th element from `phase` on, and the first window of each."""
    met = {}
    for index in np.ndindex(*windows.kernel):
        offsets = zip(phase, windows.padding, windows.dilation, index, windows.stride, strict=True)
        starts = [divmod(at + p - d * i, s) for at, p, d, i, s in offsets]
        if not any(rest for _, rest in starts):
            met[index] = tuple(start for start, _ in starts)
    return met


def _sum(a: Sequence[int], b: Sequence[int]) -> Shape:
    return tuple(map(operator.add, a, b))


def interleaved(phases: Sequence[jax.Array], stride: Shape, shape: Shape, first: int) -> jax.Array:
    """Images of the phases as one of this shape, whose spatial dimensions come from `first` on."""
    n, small = len(stride), phases[0].shape
    if math.prod(stride) > 1:
        every = lax.reshape(jnp.stack(phases), (*stride, *small))
        mixed = [d for pair in zip(range(n + first, 2 * n + first), range(n), strict=True) for d in pair]
        moved = lax.transpose(every, (*range(n, n + first), *mixed, *range(2 * n + first, every.ndim)))
        sizes = map(operator.mul, small[first : first + n], stride)
        image = lax.reshape(moved, (*small[:first], *sizes, *small[first + n :]))
    else:
        (image,) = phases
    return lax.slice(image, (0,) * len(shape), shape)
