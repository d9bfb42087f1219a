"""Views by sizes, strides and an offset, of row-major tensors: their memory is their elements in order."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast


# aten::{as_strided, as_strided_copy}(Tensor self, SymInt[] size, SymInt[] stride,
#     SymInt? storage_offset=None) -> Tensor
@kernel("as_strided", "as_strided_copy")
def as_strided(self, size, stride, storage_offset=None):
    """The elements of a row-major tensor at sizes and strides: its memory holds its elements in order."""
    if 0 in size:
        return lax.full(size, 0, self.dtype)
    _check_reach(self, size, stride, storage_offset or 0)
    flat = lax.reshape(self, (self.size,))
    kept = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d] > 0), key=lambda d: -stride[d])
    sizes, strides = [size[d] for d in kept], [stride[d] for d in kept]
    offset = storage_offset or 0
    if _nested(sizes, strides):
        x = _strided_slices(flat, offset, sizes, strides)
    else:
        x = flat.at[_flat_index(sizes, strides, offset)].get(mode="promise_in_bounds")
    return lax.broadcast_in_dim(lax.transpose(x, np.argsort(kept)), size, sorted(kept))


def _check_reach(x: jax.Array, size: Sequence[int], stride: Sequence[int], offset: int) -> None:
    reach = offset + sum((n - 1) * st for n, st in zip(size, stride, strict=True))
    if offset < 0 or not 0 <= reach < x.size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} are out of bounds for a"
            f" row-major tensor of {x.size} elements"
        )


def _nested(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if each dimension lies within one step of the one before, so that no element is read twice."""
    spans = [sum((n - 1) * st for n, st in zip(sizes[i:], strides[i:], strict=True)) for i in range(1, len(sizes))]
    return all(span < stride for span, stride in zip(spans, strides, strict=False))


def _strided_slices(flat: jax.Array, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> jax.Array:
    """Elements of a flat array by nested strides, without a gather: cut into rows, and keep the start of each."""
    x = lax.slice_in_dim(flat, offset, flat.size)
    for n, stride in zip(sizes, strides, strict=True):
        last = x.ndim - 1
        x = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * last + [(0, n * stride - x.shape[last], 0)])
        x = lax.reshape(x, (*x.shape[:-1], n, stride))
    return lax.index_in_dim(x, 0, x.ndim - 1, keepdims=False)


def _flat_index(size: Sequence[int], stride: Sequence[int], offset: int) -> jax.Array:
    """The positions in memory of the elements of a strided tensor."""
    reach = offset + sum((n - 1) * st for n, st in zip(size, stride, strict=True))
    dtype = np.int32 if reach < 2**31 else np.int64
    index = lax.full(size, offset, dtype)
    for d, step in enumerate(stride):
        index = index + lax.broadcasted_iota(dtype, size, d) * dtype(step)
    return index


# aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride,
#     SymInt? storage_offset=None) -> Tensor
@kernel("as_strided_scatter")
def as_strided_scatter(self, src, size, stride, storage_offset=None):
    if 0 in size:
        return self
    _check_reach(self, size, stride, storage_offset or 0)
    flat = lax.reshape(self, (self.size,))
    index = _flat_index(size, stride, storage_offset or 0)
    return lax.reshape(flat.at[index].set(cast(src, self.dtype), mode="promise_in_bounds"), self.shape)
