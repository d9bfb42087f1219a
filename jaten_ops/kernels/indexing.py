"""Reading by index: index, gather, select, take, masks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.observers import known_values
from ..arrays.partitioned import put_beside
from ..kernel_base.checks import require
from ..kernel_base.number_ranges import scalar
from ..kernel_base.promotion import size_number
from .views import at_least_1d, broadcast_to, wrap_dim

# Indices are checked, so XLA need not guard them; it still clamps a wrong one.
IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def is_mask(index: jax.Array | None) -> bool:
    """True if an index is a mask: bool, or uint8 as in old programs."""
    return index is not None and index.dtype in (np.bool_, np.uint8)


def warn_of_bytes(mask: jax.Array) -> None:
    if mask.dtype != bool:
        warnings.warn(
            "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.", stacklevel=2
        )


def in_range(index: jax.Array, size: int, error: type[Exception], message: str) -> jax.Array:
    """An index that may not be negative."""
    require((index >= 0) & (index < size), error, message)
    return index


def wrapped_index(index: jax.Array, size: int, message: str = "", check: bool = True) -> jax.Array:
    """An index whose negative values count from the end."""
    if check:
        require((index >= -size) & (index < size), IndexError, message)
    return lax.select(index < 0, index + size_number(size, index.dtype), index)


def broadcast_select(mask: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` where the mask holds, else `y`; all broadcast, `x` and `y` of one dtype."""
    shape = jnp.broadcast_shapes(mask.shape, x.shape, y.shape)
    return lax.select(*(broadcast_to(a, shape) for a in (mask, x, y)))


class Places:
    """The elements that advanced indices select: the indices broadcast together, and the layout of the result.

    Args:
        shape: of the indexed tensor.
        indices: one index for each of its first dimensions, None for those taken whole. No masks.
        check: whether an index out of range raises.

    Attributes:
        dims: the indexed dimensions.
        index: of shape (*batch, len(dims)).
        shape: of the result. The batch dimensions stand where the indexed ones did if those are adjacent, and in front
            if not.
        window: the dimensions of the result that are not batch dimensions.
    """

    def __init__(self, shape: Sequence[int], indices: Sequence[jax.Array | None], check: bool = True) -> None:
        self.dims = [d for d, index in enumerate(indices) if index is not None]
        arrays = []
        for d in self.dims:
            which = f"{d} " if shape[d] else ""
            message = f"index is out of bounds for dimension {which}with size {shape[d]}"
            arrays.append(wrapped_index(jnp.asarray(indices[d]), shape[d], message, check))
        dtype = np.result_type(*(a.dtype for a in arrays))
        batch = _broadcast([a.shape for a in arrays])
        columns = [lax.convert_element_type(broadcast_to(a, batch), dtype) for a in arrays]
        last = len(batch)
        self.index = lax.concatenate([lax.expand_dims(c, (last,)) for c in columns], last)
        adjacent = self.dims[-1] - self.dims[0] == len(self.dims) - 1
        lead = self.dims[0] if adjacent else 0
        rest = [n for d, n in enumerate(shape) if d not in self.dims]
        self.shape = (*rest[:lead], *batch, *rest[lead:])
        self.window = [*range(lead), *range(lead + last, len(self.shape))]


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return jnp.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            + ", ".join(str(list(s)) for s in shapes)
        ) from None


# aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
@kernel("index.Tensor", eager=lambda self, indices: any(map(is_mask, indices)))
def index_tensor(self, indices):
    return _index(self, indices, check=True)


# aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
@kernel("_unsafe_index.Tensor", eager=lambda self, indices: any(map(is_mask, indices)))
def unsafe_index(self, indices):
    return _index(self, indices, check=False)


def _index(self: jax.Array, indices: Sequence[jax.Array | None], check: bool) -> jax.Array:
    indices = expand_masks(self.shape, indices)
    if all(index is None for index in indices):
        return self
    places = Places(self.shape, indices, check)
    if 0 in (self.shape[d] for d in places.dims) or 0 in places.shape:
        return lax.full(places.shape, 0, self.dtype)
    return _gathered(self, places.dims, places.index, places.window, places.shape)


def _gathered(
    x: jax.Array, dims: Sequence[int], index: jax.Array, window: Sequence[int], shape: Sequence[int]
) -> jax.Array:
    """The slices of `x` that indices of some dimensions name.

    XLA's CPU computes the place of each element of a slice with dimensions of one element, which takes four times as
    long as copying the slice: they are left out.

    Args:
        dims: those dimensions.
        index: of shape (*batch, len(dims)), within bounds.
        window: the dimensions of the result that are those of a slice.
        shape: the result's.
    """
    rest = [d for d in range(x.ndim) if d not in dims]
    ones = [d for d in rest if isinstance(x.shape[d], int) and x.shape[d] == 1]
    left_out = [w for d, w in zip(rest, window, strict=True) if d in ones]
    kept = [d for d in range(x.ndim) if d not in ones]
    narrow = lax.squeeze(x, ones)
    places = tuple(map(kept.index, dims))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(w - sum(o < w for o in left_out) for w in window if w not in left_out),
        collapsed_slice_dims=places,
        start_index_map=places,
    )
    sizes = [1 if d in places else n for d, n in enumerate(narrow.shape)]
    return lax.reshape(lax.gather(narrow, index, numbers, sizes, mode=IN_BOUNDS), shape)


def values_beside(values: Any, x: jax.Array) -> jax.Array:
    """Values on the device of an array, one of which JAX may trace."""
    is_traced = isinstance(x, jax.core.Tracer) or isinstance(values, jax.core.Tracer)
    return jnp.asarray(values) if is_traced else put_beside(values, x)


def true_places(mask: jax.Array) -> Sequence[Any]:
    """The places of the true elements, an array for each dimension; of a traced mask if their number is known."""
    if isinstance(mask, jax.core.Tracer):
        return jnp.nonzero(mask, size=int(known_values(jnp.count_nonzero(mask))))
    return np.nonzero(np.asarray(mask))


def expand_masks(shape: Sequence[int], indices: Sequence[jax.Array | None], count: int | None = None) -> list[Any]:
    """Indices with each mask replaced by the positions of its true elements, one index for each of its dimensions.

    A mask that is a tracer needs `count`, how many true elements it is to have; if it has fewer, the rest of the
    positions lie out of range.
    """
    expanded: list[Any] = []
    for index in indices:
        if not is_mask(index):
            expanded.append(index)
            continue
        warn_of_bytes(index)
        if not index.ndim:
            raise IndexError("a mask without dimensions is no index: x[mask] in Python adds one to it and to x")
        at = len(expanded)
        if index.shape != tuple(shape[at : at + index.ndim]):
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {at} does not match the shape of the indexed"
                f" tensor {list(shape)} at index {at}"
            )
        if count is None:
            expanded.extend(true_places(index))
        else:
            expanded.extend(jnp.nonzero(index, size=count, fill_value=max(shape)))
    return expanded


# One index along one dimension


def cut(x: jax.Array, shape: Sequence[int], dim: int) -> jax.Array:
    """The leading part of `x` with this shape in all dimensions but one."""
    limits = [n if d == dim else m for d, (n, m) in enumerate(zip(x.shape, shape, strict=True))]
    return x if tuple(limits) == x.shape else lax.slice(x, [0] * x.ndim, limits)


# aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor
@kernel("gather")
def gather(self, dim, index, *, sparse_grad=False):
    x, i = at_least_1d(self), at_least_1d(index)
    dim = wrap_dim(dim, x.ndim)
    if i.size == 0:
        return lax.full(index.shape, 0, self.dtype)
    message = f"index is out of bounds for dimension {dim} with size {x.shape[dim]}"
    i = in_range(i, x.shape[dim], RuntimeError, message)
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    found = lax.gather(cut(x, i.shape, dim), lax.expand_dims(i, (x.ndim,)), numbers, (1,) * x.ndim, mode=IN_BOUNDS)
    return lax.reshape(found, index.shape)


# aten::index_select(Tensor self, int dim, Tensor index) -> Tensor
@kernel("index_select")
def index_select(self, dim, index):
    x, i = at_least_1d(self), at_least_1d(index)
    if i.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if i.dtype not in (np.int32, np.int64):
        raise RuntimeError(f"index_select(): Expected dtype int32 or int64 for index, got {i.dtype}")
    if self.ndim == 0 and i.size != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {i.size} value(s)")
    dim = wrap_dim(dim, x.ndim)
    i = in_range(i, x.shape[dim], IndexError, "index out of range in self")
    found = _rows(x, dim, i)
    return lax.reshape(found, ()) if self.ndim == 0 else found


def _rows(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    """The slices of `x` along one dimension that a 1-d index names."""
    shape = (*x.shape[:dim], index.size, *x.shape[dim + 1 :])
    if 0 in shape or x.shape[dim] == 0:
        return lax.full(shape, 0, x.dtype)
    return _gathered(x, [dim], lax.expand_dims(index, (1,)), [d for d in range(x.ndim) if d != dim], shape)


# aten::take(Tensor self, Tensor index) -> Tensor
@kernel("take")
def take(self, index):
    flat = lax.reshape(self, (self.size,))
    i = wrapped_index(lax.reshape(index, (index.size,)), self.size, f"out of range on a tensor of {self.size} elements")
    return lax.reshape(_rows(flat, 0, i), index.shape)


# Masks


# aten::nonzero(Tensor self) -> Tensor
@kernel("nonzero", eager=True)
def nonzero(self):
    if self.size == 0:  # the size is static for compilers
        return lax.full((0, self.ndim), 0, np.int64)
    if isinstance(self, jax.core.Tracer):
        return nonzero_static(self, size=int(known_values(jnp.count_nonzero(self))))
    return put_beside(np.argwhere(np.asarray(self != 0)), self)


# aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor
@kernel("nonzero_static")
def nonzero_static(self, *, size, fill_value=-1):
    if self.ndim == 0:
        return lax.full((size, 0), 0, np.int64)
    if self.size == 0:  # jnp.nonzero would give zeros
        return lax.broadcast(scalar(fill_value, np.dtype("int64")), (size, self.ndim))
    found = jnp.nonzero(self, size=size, fill_value=fill_value)
    return lax.convert_element_type(jnp.stack(found, 1), np.int64)


# aten::masked_select(Tensor self, Tensor mask) -> Tensor
@kernel("masked_select", eager=True)
def masked_select(self, mask):
    if mask.dtype != bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    if not all(m == n or 1 in (m, n) for m, n in zip(self.shape[::-1], mask.shape[::-1], strict=False)):
        raise RuntimeError(f"masked_select: sizes {list(self.shape)} and {list(mask.shape)} cannot be broadcast")
    shape = np.broadcast_shapes(self.shape, mask.shape)
    self = jnp.broadcast_to(self, shape)
    flat = lax.reshape(self, (self.size,))
    if self.size == 0:
        return flat
    whole = broadcast_to(mask, shape) if isinstance(mask, jax.core.Tracer) else np.broadcast_to(np.asarray(mask), shape)
    (places,) = true_places(whole.reshape(-1))
    return _rows(flat, 0, values_beside(places, self))


# aten::_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor
@kernel("_unsafe_masked_index")
def unsafe_masked_index(self, mask, indices, fill):
    """`self[indices]` where the mask holds, with the indices clamped, and `fill` elsewhere."""
    indices = clamped(self.shape, indices, lowest=0)
    found = _index(self, indices, check=False)
    return broadcast_select(mask, found, scalar(fill, self.dtype))


def clamped(shape: Sequence[int], indices: Sequence[jax.Array | None], lowest: int | None = None) -> list[Any]:
    """Indices made valid; negative ones stay, or become `lowest`."""
    return [
        None if i is None else jnp.clip(i, -shape[d] if lowest is None else lowest, max(shape[d] - 1, 0))
        for d, i in enumerate(indices)
    ]


# Triangles


def _triangle(rows: int, columns: int, diagonal: int) -> jax.Array:
    """True on and below a diagonal: bool of shape (rows, columns)."""
    row, column = (lax.broadcasted_iota(np.int32, (rows, columns), d) for d in (0, 1))
    limit = np.int32(max(min(diagonal, columns), -rows - 1))
    return column - row <= limit


# aten::tril(Tensor self, SymInt diagonal=0) -> Tensor
@kernel("tril")
def tril(self, diagonal=0):
    keep = lax.broadcast(_triangle(*self.shape[-2:], diagonal), self.shape[:-2])
    return lax.select(keep, self, lax.full_like(self, 0))


# aten::triu(Tensor self, SymInt diagonal=0) -> Tensor
@kernel("triu")
def triu(self, diagonal=0):
    drop = lax.broadcast(_triangle(*self.shape[-2:], diagonal - 1), self.shape[:-2])
    return lax.select(drop, lax.full_like(self, 0), self)


def _ragged(starts: np.ndarray, lengths: np.ndarray, dtype: np.dtype) -> jax.Array:
    """The coordinates (row, column) of runs, one in each row, as a (2, n) array."""
    total = int(lengths.sum())
    rows = jnp.repeat(np.arange(len(lengths)), lengths, total_repeat_length=total)
    shift = starts - (np.cumsum(lengths) - lengths)
    columns = lax.iota(np.int64, total) + jnp.asarray(shift)[rows]
    return lax.convert_element_type(jnp.stack([rows, columns]), dtype)


# aten::tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("tril_indices")
def tril_indices(row, col, offset=0, *, dtype):
    lengths = np.clip(np.arange(row) + offset + 1, 0, col)
    return _ragged(np.zeros_like(lengths), lengths, dtype)


# aten::triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("triu_indices")
def triu_indices(row, col, offset=0, *, dtype):
    starts = np.clip(np.arange(row) + offset, 0, col)
    return _ragged(starts, col - starts, dtype)
