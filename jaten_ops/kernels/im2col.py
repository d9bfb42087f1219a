"""Sliding patches as columns and back, and the rearrangements between channels and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type, is_inexact
from .windows import as_axis, per_dimension, sliding

_Ints = Sequence[int]


def columns(x: jax.Array, kernel_size: _Ints, dilation: _Ints, padding: _Ints, stride: _Ints) -> jax.Array:
    """The patches of x (N, C, ...): (N, C, taps in all, positions in all), zeros outside."""
    n = x.ndim - 2
    sizes = x.shape[2:]
    for i in range(n):  # the taps and positions of axis i come to stand at 2 + 2i and 3 + 2i
        windows = sliding(sizes[i], kernel_size[i], stride[i], padding[i], dilation[i], False)
        x = as_axis(x, windows.T, 2 + 2 * i)
    order = [0, 1, *range(2, 2 + 2 * n, 2), *range(3, 3 + 2 * n, 2)]
    x = x.transpose(order)
    return x.reshape(*x.shape[:2], prod(x.shape[2 : 2 + n]), prod(x.shape[2 + n :]))


# aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor
@kernel("im2col")
def im2col(self, kernel_size, dilation, padding, stride):
    x = self if self.ndim == 4 else self[None]
    out = columns(x, *(per_dimension(v, 2) for v in (kernel_size, dilation, padding, stride)))
    out = out.reshape(x.shape[0], x.shape[1] * out.shape[2], out.shape[3])
    return out if self.ndim == 4 else out[0]


# aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding,
#     int[2] stride) -> Tensor
@kernel("col2im")
def col2im(self, output_size, kernel_size, dilation, padding, stride):
    kernel_size, dilation, padding, stride = (per_dimension(v, 2) for v in (kernel_size, dilation, padding, stride))
    columns_ = self if self.ndim == 3 else self[None]
    batch, rows, positions = columns_.shape
    taps = prod(kernel_size)
    compute = compute_type(self.dtype)
    compute = compute if is_inexact(compute) else "float64"  # only inexact types have transposes
    image = jax.ShapeDtypeStruct((batch, rows // taps, *per_dimension(output_size, 2)), compute)
    transpose = jax.linear_transpose(lambda x: columns(x, kernel_size, dilation, padding, stride), image)
    (out,) = transpose(cast(columns_, compute).reshape(batch, rows // taps, taps, positions))
    return cast(out if self.ndim == 3 else out[0], self.dtype)
