"""Convolutions as one matrix product with what lies under each window, of images with channels first, on a CPU."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import FIRST, Windows
from ..kernel_base.materialize import stored
from ..kernel_base.promotion import cast, moved_as_bits
from .conv_phases import Phases, interleaved
from .dot_reductions import contract, is_better_exchanged

_FEW_POSITIONS = 64  # of an image: below, a matrix product of all images beats one for each


def windows_overlap(windows: Windows) -> bool:
    """True if an element may lie under several windows, so that what they say of it has to be added."""
    return math.prod(windows.kernel) > 1 and not apart(windows)


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The output, of this shape."""
    positions = windows.positions(x.shape[2:])
    images = _batch(x.shape, windows)
    matrices = _matrices(weight, windows.groups, images)
    out = contract(matrices, _columns_of(x, windows), _dims(matrices))
    if images:
        return lax.reshape(out, (x.shape[0], weight.shape[0], *positions))
    out = lax.reshape(out, (weight.shape[0], x.shape[0], *positions))
    return lax.transpose(out, (1, 0, *range(2, x.ndim)))


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input, of this shape; of half precision in single precision if terms are added up."""
    overlap = windows_overlap(windows)
    if overlap and grad.dtype != jnp.bfloat16:
        if math.prod(grad.shape[2:]) >= _FEW_POSITIONS:  # of fewer, the zeros around would be many
            return _by_phases(grad, weight, windows, shape)
        image = jax.ShapeDtypeStruct(shape, grad.dtype)
        return jax.linear_transpose(lambda x: forward(x, weight, windows, ()), image)(grad)[0]
    images = _batch(shape, windows)
    matrices, rows = _matrices(weight, windows.groups, images), _rows(grad, windows.groups, images)
    if overlap:  # of few positions, which are turned instead of the weight
        columns = _turned(contract(_turned(rows), matrices, _dims(matrices)))
    elif grad.dtype == np.float32 and is_better_exchanged(matrices.shape[-1], *reversed(rows.shape[-2:])):
        columns = _turned(lax.optimization_barrier(contract(_turned(rows), matrices, _dims(matrices))))
    else:
        columns = contract(_turned(matrices), rows, _dims(matrices))
    image = jax.ShapeDtypeStruct(shape, columns.dtype)
    return jax.linear_transpose(lambda x: _columns(x, windows), image)(columns)[0]


def _by_phases(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the input: a product of the kernel and the gradient, and for each element the sum over it."""
    images, sizes = shape[0], shape[2:]
    phases = Phases.of(windows, sizes, grad.shape[2:])
    padded = FIRST.pad(grad, phases.low, phases.high)
    matrices = _matrices(weight, windows.groups, images)
    columns = contract(_turned(matrices), _rows(padded, windows.groups, images), _dims(matrices))
    columns = lax.reshape(columns, (*shape[:2], *windows.kernel, *padded.shape[2:]))

    def under(index: Shape, start: Shape) -> jax.Array:
        stop = tuple(map(operator.add, start, phases.sizes))
        return lax.slice(columns[(slice(None), slice(None), *index)], (0, 0, *start), (*shape[:2], *stop))

    none = jnp.zeros((*shape[:2], *phases.sizes), grad.dtype)
    found = [functools.reduce(operator.add, itertools.starmap(under, s.items())) if s else none for s in phases.starts]
    return interleaved(found, windows.stride, shape, first=2)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose by the weight, of this shape."""
    if windows_overlap(windows) and grad.dtype != jnp.bfloat16:
        kernel = jax.ShapeDtypeStruct(shape, grad.dtype)
        return jax.linear_transpose(lambda w: forward(x, w, windows, ()), kernel)(grad)[0]
    images = _batch(x.shape, windows)
    rows = _rows(grad, windows.groups, images)
    last, batch = rows.ndim - 1, tuple(range(rows.ndim - 2))
    found = contract(rows, _columns_of(x, windows), (((last,), (last,)), (batch, batch)))
    total = lax.reduce_sum(found, (0,)) if images else found
    if total.dtype != grad.dtype and total.size:
        total = stored(functools.partial(cast, dtype=grad.dtype), total)  # rounded in rows, longer than a kernel's
    return lax.reshape(total, shape)


def _batch(image: Shape, windows: Windows) -> int:
    """The number of images, if each is a product of its own; 0 if all are one."""
    return image[0] if image[0] == 1 or math.prod(windows.positions(image[2:])) >= _FEW_POSITIONS else 0


def _turned(matrices: jax.Array) -> jax.Array:
    n = matrices.ndim
    return lax.transpose(matrices, (*range(n - 2), n - 1, n - 2))


def _dims(matrices: jax.Array) -> Any:
    """The dimensions of products of as many matrices."""
    n = matrices.ndim
    return ((n - 1,), (n - 2,)), (tuple(range(n - 2)),) * 2


def _matrices(weight: jax.Array, groups: int, images: int) -> jax.Array:
    """The weight as (groups, outputs of a group, terms), for each of some images, or for all."""
    matrix = lax.reshape(weight, (groups, weight.shape[0] // groups, math.prod(weight.shape[1:])))
    return lax.broadcast_in_dim(matrix, (images, *matrix.shape), (1, 2, 3)) if images else matrix


def _rows(grad: jax.Array, groups: int, images: int) -> jax.Array:
    """The output's gradient as (N, groups, outputs of a group, positions), or (groups, outputs, N x positions)."""
    count, of_group = math.prod(grad.shape[2:]), grad.shape[1] // groups
    if images:
        return lax.reshape(grad, (images, groups, of_group, count))
    turned = lax.transpose(grad, (1, 0, *range(2, grad.ndim)))
    return lax.reshape(turned, (groups, of_group, grad.shape[0] * count))


def _columns_of(x: jax.Array, windows: Windows) -> jax.Array:
    """As `_columns`, for what is not transposed."""
    if x.dtype != jnp.bfloat16:
        return _columns(x, windows)
    return moved_as_bits(lambda x: _columns(x, windows), x)


def _columns(x: jax.Array, windows: Windows) -> jax.Array:
    """The elements under the windows: as `_rows` has them, with the terms of a sum in the place of outputs."""
    terms = x.shape[1] // windows.groups * math.prod(windows.kernel)
    count = math.prod(windows.positions(x.shape[2:]))
    if _batch(x.shape, windows):
        return lax.reshape(_under_windows(x, windows, 2), (x.shape[0], windows.groups, terms, count))
    columns = _under_windows(lax.transpose(x, (1, 0, *range(2, x.ndim))), windows, 1)
    return lax.reshape(columns, (windows.groups, terms, x.shape[0] * count))


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
