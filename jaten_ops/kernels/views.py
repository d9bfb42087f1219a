"""View ops, as copies, and their backward ops.

A kernel sees row-major arrays, so a view is a reshape, a transpose, a broadcast or a slice, which XLA fuses away. The
backward of a slice is a `lax.pad`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim, min_dim
from jax.export import is_symbolic_dim

from jaten_ops.registry import kernel

from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, is_complex, to_real


def wrap_dim(dim: int, ndim: int) -> int:
    """A dimension counted from the front; a 0-d tensor has one dimension."""
    return dim + max(ndim, 1) if dim < 0 else dim


def at_least_1d(x: jax.Array) -> jax.Array:
    """A 0-d tensor as a tensor of one element."""
    return x if x.ndim else lax.reshape(x, (1,))


def broadcast_to(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`x` with dimensions added in front and those of size 1 repeated."""
    return lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))


def move_axis(x: jax.Array, source: int, target: int) -> jax.Array:
    """`x` with one dimension moved to another place."""
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return lax.transpose(x, order)


# aten::{alias, alias_copy, detach, detach_copy, lift, lift_fresh, lift_fresh_copy, _lazy_clone}(Tensor self) -> Tensor
# aten::_pin_memory(Tensor self, Device? device=None) -> Tensor
@kernel("alias", "alias_copy", "detach", "detach_copy", "lift", "lift_fresh", "lift_fresh_copy")
@kernel("_lazy_clone", "_pin_memory")
def identity(self):
    return self


# Reshapes


# aten::{view, view_copy, _unsafe_view, _reshape_copy}(Tensor self, SymInt[] size) -> Tensor
# aten::{_reshape_alias, _reshape_alias_copy}(Tensor self, SymInt[] size, SymInt[] stride) -> Tensor
@kernel("view", "view_copy", "_unsafe_view", "_reshape_alias", "_reshape_alias_copy", "_reshape_copy")
def view(self, size, stride=None):
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size = tuple(self.size // max(rest, 1) if s == -1 else s for s in size)
    return lax.reshape(self, size)


# aten::{unsqueeze, unsqueeze_copy}(Tensor self, int dim) -> Tensor
@kernel("unsqueeze", "unsqueeze_copy")
def unsqueeze(self, dim):
    return lax.expand_dims(self, (wrap_dim(dim, self.ndim + 1),))


# aten::{squeeze, squeeze_copy}(Tensor self) -> Tensor
# aten::{squeeze, squeeze_copy}.dim(Tensor self, int dim) -> Tensor
# aten::{squeeze, squeeze_copy}.dims(Tensor self, int[] dim) -> Tensor
@kernel("squeeze", "squeeze_copy", "squeeze.dim", "squeeze_copy.dim", "squeeze.dims", "squeeze_copy.dims")
def squeeze(self, dim=None):
    if dim is None:
        dim = range(self.ndim)
    dims = {wrap_dim(d, self.ndim) for d in ((dim,) if isinstance(dim, int) else dim)}
    return lax.squeeze(self, [d for d in dims if self.ndim and self.shape[d] == 1])


# aten::{expand, expand_copy}(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor
@kernel("expand", "expand_copy")
def expand(self, size, *, implicit=False):
    lead = len(size) - self.ndim
    shape = [*size[:lead], *(n if s == -1 else s for s, n in zip(size[lead:], self.shape, strict=True))]
    return lax.broadcast_in_dim(self, shape, range(lead, len(size)))


# aten::{permute, permute_copy}(Tensor self, int[] dims) -> Tensor
@kernel("permute", "permute_copy")
def permute(self, dims):
    return lax.transpose(self, [wrap_dim(d, self.ndim) for d in dims])


# aten::{transpose, transpose_copy}.int(Tensor self, int dim0, int dim1) -> Tensor
@kernel("transpose.int", "transpose_copy.int")
def transpose(self, dim0, dim1):
    if self.ndim == 0:
        return self
    order = list(range(self.ndim))
    dim0, dim1 = wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim)
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return lax.transpose(self, order)


# aten::{t, t_copy}(Tensor self) -> Tensor
@kernel("t", "t_copy")
def t(self):
    return self.T


# Slices


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The bounds of a slice as ATen reads them: negative ones from the end, and all clamped."""
    start, end = start or 0, sys.maxsize if end is None else end
    if any(map(is_symbolic_dim, (size, start, end))):
        return _open_bounds(size, start, end)
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


def _open_bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """`slice_bounds` with symbolic dimensions, for which min and max are expressions, and which are not negative."""

    def from_start(bound: Any) -> Any:
        return max_dim(bound + size, 0) if isinstance(bound, int) and bound < 0 else bound

    start = min_dim(from_start(start), size)
    whole = isinstance(end, int) and end >= sys.maxsize
    return start, size if whole else max_dim(min_dim(from_start(end), size), start)


# aten::{slice, slice_copy}.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None,
#     SymInt step=1) -> Tensor
@kernel("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(self, dim=0, start=None, end=None, step=1):
    dim = wrap_dim(dim, self.ndim)
    start, end = slice_bounds(self.shape[dim], start, end)
    return lax.slice_in_dim(self, start, end, step, dim)


# aten::{select, select_copy}.int(Tensor self, int dim, SymInt index) -> Tensor
@kernel("select.int", "select_copy.int")
def select(self, dim, index):
    return lax.index_in_dim(self, index, wrap_dim(dim, self.ndim), keepdims=False)


# aten::narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor
@kernel("narrow_copy")
def narrow(self, dim, start, length):
    dim = wrap_dim(dim, self.ndim)
    start = start + self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, start, start + length, 1, dim)


# aten::{split_with_sizes, split_with_sizes_copy, unsafe_split_with_sizes}(Tensor self, SymInt[] split_sizes,
#     int dim=0) -> Tensor[]
@kernel("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split_with_sizes(self, split_sizes, dim=0):
    return lax.split(self, split_sizes, wrap_dim(dim, self.ndim))


# aten::{split, split_copy, unsafe_split}.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]
@kernel("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor")
def split(self, split_size, dim=0):
    length = self.shape[wrap_dim(dim, self.ndim)]
    if split_size == 0 or length == 0:
        return [self]
    starts = range(0, length, split_size)
    return split_with_sizes(self, [min(split_size, length - s) for s in starts], dim)


# aten::{unbind, unbind_copy}.int(Tensor self, int dim=0) -> Tensor[]
@kernel("unbind.int", "unbind_copy.int")
def unbind(self, dim=0):
    dim = wrap_dim(dim, self.ndim)
    length = self.shape[dim]
    return [lax.squeeze(part, (dim,)) for part in lax.split(self, (1,) * length, dim)] if length else []


# aten::{diagonal, diagonal_copy}(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor
@kernel("diagonal", "diagonal_copy")
def diagonal(self, offset=0, dim1=0, dim2=1):
    """A strided slice of the flattened matrices."""
    x = _matrices(self, dim1, dim2)
    *batch, rows, columns = x.shape
    start, length = _diagonal_extent(rows, columns, offset)
    if length == 0:
        return lax.full((*batch, 0), 0, self.dtype)
    flat = lax.reshape(x, (*batch, rows * columns))
    return lax.slice_in_dim(flat, start, start + (length - 1) * (columns + 1) + 1, columns + 1, len(batch))


def _matrices(x: jax.Array, dim1: int, dim2: int) -> jax.Array:
    """`x` with two of its dimensions made the last two."""
    dim1, dim2 = wrap_dim(dim1, x.ndim), wrap_dim(dim2, x.ndim)
    return lax.transpose(x, [*(d for d in range(x.ndim) if d not in (dim1, dim2)), dim1, dim2])


def _from_matrices(x: jax.Array, dim1: int, dim2: int) -> jax.Array:
    """The inverse of `_matrices`."""
    dim1, dim2 = wrap_dim(dim1, x.ndim), wrap_dim(dim2, x.ndim)
    rest = [d for d in range(x.ndim) if d not in (dim1, dim2)]
    return lax.transpose(x, np.argsort([*rest, dim1, dim2]))


def _diagonal_extent(rows: int, columns: int, offset: int) -> tuple[int, int]:
    """Start of a diagonal in a flattened matrix, and its length."""
    if offset >= 0:
        return offset, max(min(rows, columns - offset), 0)
    return -offset * columns, max(min(rows + offset, columns), 0)


def _on_diagonal(x: jax.Array, rows: int, columns: int, offset: int) -> jax.Array:
    """Zero matrices with the last dimension of `x` on a diagonal."""
    start, length = _diagonal_extent(rows, columns, offset)
    if length == 0:
        return lax.full((*x.shape[:-1], rows, columns), 0, x.dtype)

    def padded(x: jax.Array) -> jax.Array:
        rest = rows * columns - (start + (length - 1) * (columns + 1) + 1)
        flat = lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(start, rest, columns)])
        return lax.reshape(flat, (*x.shape[:-1], rows, columns))

    def selected(x: jax.Array) -> jax.Array:
        shape, n, first = (*x.shape[:-1], rows, columns), x.ndim, max(offset, 0)
        zero = np.zeros((), x.dtype)
        in_columns = lax.pad(x, zero, [(0, 0, 0)] * (n - 1) + [(first, columns - first - length, 0)])
        row, column = (lax.broadcasted_iota(np.int32, shape, d) for d in (n - 1, n))
        repeated = lax.broadcast_in_dim(in_columns, shape, (*range(n - 1), n))
        return lax.select(column - row == np.int32(offset), repeated, lax.full(shape, zero))

    # XLA's CPU tests each element for whether it is padding, after a division
    return by_platform(x, cpu=selected, default=padded)


# Backward of slices


# aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end,
#     SymInt step) -> Tensor
@kernel("slice_backward")
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    dim = wrap_dim(dim, len(input_sizes))
    start, _ = slice_bounds(input_sizes[dim], start, end)
    return _pad_slice(grad_output, input_sizes[dim], dim, start, step)


def _pad_slice(x: jax.Array, size: int, dim: int, start: int, step: int) -> jax.Array:
    """Zeros with `x` where a slice of one dimension, which now has `size` elements, reads."""
    length = x.shape[dim]
    if length == 0:
        return lax.full((*x.shape[:dim], size, *x.shape[dim + 1 :]), 0, x.dtype)
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (start, size - (start + (length - 1) * step + 1), step - 1)
    return lax.pad(x, np.zeros((), x.dtype), config)


# aten::select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor
@kernel("select_backward")
def select_backward(grad_output, input_sizes, dim, index):
    dim = wrap_dim(dim, len(input_sizes))
    index = index + input_sizes[dim] if index < 0 else index
    return _pad_slice(lax.expand_dims(grad_output, (dim,)), input_sizes[dim], dim, index, 1)


# aten::diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) -> Tensor
@kernel("diagonal_backward")
def diagonal_backward(grad_output, input_sizes, offset, dim1, dim2):
    rows, columns = (input_sizes[wrap_dim(d, len(input_sizes))] for d in (dim1, dim2))
    return _from_matrices(_on_diagonal(grad_output, rows, columns, offset), dim1, dim2)


# aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor
@kernel("diag_embed")
def diag_embed(self, offset=0, dim1=-2, dim2=-1):
    size = self.shape[-1] + abs(offset)
    return _from_matrices(_on_diagonal(self, size, size, offset), dim1, dim2)


# A slice replaced in a copy


def _fitting(src: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """`src` in the dtype of the tensor into which it is written; raises unless it has the shape of the slice."""
    if src.shape != tuple(shape):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self."
            f" src size = {list(src.shape)}, slice size = {list(shape)}"
        )
    return cast(src, dtype)


# aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor
@kernel("slice_scatter")
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    start, end = slice_bounds(size, start, end)
    length = -(-(end - start) // step)
    src = _fitting(src, (*self.shape[:dim], length, *self.shape[dim + 1 :]), self.dtype)
    if length == 0:
        return self

    def updated(self: jax.Array, src: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(self, src, np.int32(start), dim)

    def selected(self: jax.Array, src: jax.Array) -> jax.Array:
        at = np.zeros(size, bool)
        at[start:end:step] = True
        at = lax.broadcast_in_dim(at, self.shape, (dim,))
        return lax.select(at, _pad_slice(src, size, dim, start, step), self)

    if length == 1 or (step == 1 and 2 * length < size):
        return updated(self, src)
    # most of the tensor is new: on a CPU a select is one loop, where an update would copy first. And in a scan its XLA
    # (0.10) makes a wrong update if `src` depends on a slice that overlaps this one: it reads what it has just written.
    return by_platform(self, src, cpu=selected, default=updated) if step == 1 else selected(self, src)


# aten::slice_inverse(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor
@kernel("slice_inverse")
def slice_inverse(self, src, dim=0, start=None, end=None, step=1):
    """`src` with `self` as its slice. ATen takes the rest from the memory that they share."""
    return slice_scatter(src, self, dim, start, end, step)


# aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor
@kernel("select_scatter")
def select_scatter(self, src, dim, index):
    dim = wrap_dim(dim, self.ndim)
    index = index + self.shape[dim] if index < 0 else index
    src = _fitting(lax.expand_dims(src, (dim,)), (*self.shape[:dim], 1, *self.shape[dim + 1 :]), self.dtype)
    return lax.dynamic_update_slice_in_dim(self, src, np.int32(index), dim)


# aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor
@kernel("diagonal_scatter")
def diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    x = _matrices(self, dim1, dim2)
    rows, columns = x.shape[-2:]
    src = _fitting(src, (*x.shape[:-2], _diagonal_extent(rows, columns, offset)[1]), self.dtype)
    placed = _on_diagonal(src, rows, columns, offset)
    row, column = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - k) for k in (2, 1))
    return _from_matrices(lax.select(column - row == np.int32(offset), placed, x), dim1, dim2)


# Bits read as another dtype


# aten::{view_as_real, view_as_real_copy}(Tensor self) -> Tensor
@kernel("view_as_real", "view_as_real_copy")
def view_as_real(self):
    return jnp.stack([self.real, self.imag], -1)


# aten::{view_as_complex, view_as_complex_copy}(Tensor self) -> Tensor
@kernel("view_as_complex", "view_as_complex_copy")
def view_as_complex(self):
    real, imag = (lax.index_in_dim(self, i, self.ndim - 1, keepdims=False) for i in (0, 1))
    return lax.complex(real, imag)


# aten::{_conj, _conj_copy, _conj_physical}(Tensor self) -> Tensor
@kernel("_conj", "_conj_copy", "_conj_physical")
def conj(self):
    return lax.conj(self) if is_complex(self.dtype) else self


# aten::{_neg_view, _neg_view_copy}(Tensor self) -> Tensor
@kernel("_neg_view", "_neg_view_copy")
def neg_view(self):
    return lax.neg(self)


# aten::{view, view_copy}.dtype(Tensor self, ScalarType dtype) -> Tensor
@kernel("view.dtype", "view_copy.dtype")
def view_dtype(self, dtype):
    old, new = self.dtype.itemsize, dtype.itemsize
    shape = (*self.shape[:-1], self.shape[-1] * old // new) if self.ndim else ()
    if dtype == self.dtype:
        return self
    flat = lax.reshape(self, (self.size,))
    if is_complex(self.dtype):
        flat = lax.reshape(view_as_real(flat), (2 * self.size,))
    bits = _bitcast(flat.astype(np.uint8) if flat.dtype == bool else flat, _bits_dtype(dtype))
    if is_complex(dtype):
        bits = view_as_complex(lax.reshape(bits, (bits.size // 2, 2)))
    return lax.reshape(cast(bits, dtype), shape)


def _bits_dtype(dtype: np.dtype) -> np.dtype:
    """A dtype that `lax.bitcast_convert_type` makes, from which a cast gives `dtype`."""
    return np.dtype(np.uint8) if dtype.kind == "b" else to_real(dtype)


def _bitcast(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """The memory of a flat array read as another dtype."""
    ratio = dtype.itemsize // flat.dtype.itemsize
    if ratio > 1:
        flat = lax.reshape(flat, (flat.size // ratio, ratio))
    bits = lax.bitcast_convert_type(flat, dtype)
    return lax.reshape(bits, (bits.size,))
