"""Convolutions as one matrix product with what lies under each window, of images with channels first, on a CPU."""

from __future__ import annotations

import itertools
import math
import operator

import jax
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import FIRST, Windows

_FEW_POSITIONS = 64  # of an image: below, a matrix product of all images beats one for each


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    groups, outputs = windows.groups, weight.shape[0]
    positions = windows.positions(x.shape[2:])
    terms = math.prod(weight.shape[1:])
    matrix = lax.reshape(weight, (groups, outputs // groups, terms))
    if x.shape[0] == 1 or math.prod(positions) >= _FEW_POSITIONS:
        columns = lax.reshape(_under_windows(x, windows, 2), (x.shape[0], groups, terms, math.prod(positions)))
        matrices = lax.broadcast_in_dim(matrix, (x.shape[0], *matrix.shape), (1, 2, 3))
        out = lax.dot_general(matrices, columns, (((3,), (2,)), ((0, 1), (0, 1))))
        return lax.reshape(out, (x.shape[0], outputs, *positions))
    # (C, elements of a kernel, N, ...)
    columns = _under_windows(lax.transpose(x, (1, 0, *range(2, x.ndim))), windows, 1)
    columns = lax.reshape(columns, (groups, terms, x.shape[0] * math.prod(positions)))
    out = lax.dot_general(matrix, columns, (((2,), (1,)), ((0,), (0,))))
    out = lax.reshape(out, (outputs, x.shape[0], *positions))
    return lax.transpose(out, (1, 0, *range(2, x.ndim)))


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape."""
    by_input = lambda x: forward(x, weight, windows, ())  # noqa: E731  # as an argument
    return jax.linear_transpose(by_input, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    by_weight = lambda w: forward(x, w, windows, ())  # noqa: E731  # as an argument
    return jax.linear_transpose(by_weight, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def _under_windows(x: jax.Array, windows: Windows, axis: int) -> jax.Array:
    """The elements of x (A, B, ...) under the windows, with an axis more, for the elements of a kernel."""
    positions = windows.positions(x.shape[2:])
    if apart(windows):
        x = lax.slice(x, (0,) * x.ndim, (*x.shape[:2], *map(operator.mul, positions, windows.kernel)))
        split = lax.reshape(x, (*x.shape[:2], *itertools.chain(*zip(positions, windows.kernel, strict=True))))
        of_kernel, of_position = range(3, split.ndim, 2), range(2, split.ndim, 2)
        columns = lax.transpose(split, (*range(axis), *of_kernel, *range(axis, 2), *of_position))
        return lax.reshape(columns, (*x.shape[:axis], math.prod(windows.kernel), *x.shape[axis:2], *positions))
    padded = FIRST.pad(x, windows.padding, windows.padding)
    under = [FIRST.under(padded, windows, index, positions) for index in np.ndindex(*windows.kernel)]
    return lax.concatenate([lax.expand_dims(u, (axis,)) for u in under], axis)


def apart(windows: Windows) -> bool:
    """True if the windows lie side by side, without a gap: to take the elements under each moves none twice."""
    return windows.stride == windows.kernel and not any(windows.padding) and max(windows.dilation) == 1
