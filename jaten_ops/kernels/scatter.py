"""Writing by index: index_put, scatter, masked fills."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.slice_writes import write_one
from ..kernel_base.checks import require
from ..kernel_base.number_ranges import scalar
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, is_complex, is_float, is_integral
from .indexing import (
    IN_BOUNDS,
    Places,
    broadcast_select,
    clamped,
    cut,
    expand_masks,
    in_range,
    is_mask,
    warn_of_bytes,
    wrapped_index,
)
from .views import at_least_1d, wrap_dim

_SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "sum": lax.scatter_add,
    "mean": lax.scatter_add,
    "prod": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}
_OF_BOOL = {
    "set": "set",
    "add": "amax",
    "multiply": "amin",
    "sum": "amax",
    "prod": "amin",
    "amax": "amax",
    "amin": "amin",
}


_COMBINED: dict[str, Callable[..., jax.Array]] = {
    "add": lax.add,
    "multiply": lax.mul,
    "sum": lax.add,
    "mean": lax.add,
    "prod": lax.mul,
    "amax": lax.max,
    "amin": lax.min,
}


def _scatter(
    how: str, x: jax.Array, index: jax.Array, updates: jax.Array, numbers: Any, drops: bool = False
) -> jax.Array:
    """Updates in the order of the index, so that among equal indices the last one stays.

    With `drops`, updates whose index is out of range are dropped; otherwise there are none.
    """
    several = functools.partial(_write_several, how, numbers=numbers)
    if index.size == index.shape[-1] and not numbers.operand_batching_dims and not drops:
        return by_platform(
            *(x, index, updates), cpu=functools.partial(_write_one, how, numbers=numbers), default=several
        )
    return several(x, index, updates)


def _write_several(how: str, x: jax.Array, index: jax.Array, updates: jax.Array, numbers: Any) -> jax.Array:
    if x.dtype == bool:
        x, updates = x.astype(np.uint8), updates.astype(np.uint8)
        return _SCATTERS[_OF_BOOL[how]](x, index, updates, numbers, mode=IN_BOUNDS).astype(bool)
    return _SCATTERS[how](x, index, updates, numbers, mode=IN_BOUNDS)


def _write_one(how: str, x: jax.Array, index: jax.Array, updates: jax.Array, numbers: Any) -> jax.Array:
    """The update at one index, such as a token's place in a cache, on a CPU."""
    how = _OF_BOOL[how] if x.dtype == bool else how
    return write_one(_COMBINED.get(how), x, index, updates, numbers)


def _same_dtype(self: jax.Array, source: jax.Array, what: str) -> None:
    if self.dtype != source.dtype:
        raise RuntimeError(f"{what}: expected self and source to have the same dtype, got {self.dtype}, {source.dtype}")


# Advanced indices


def _needs_values(self, indices, *ignored):
    # A single mask becomes a select; with other indices the number of its true elements must be known.
    # For masks of bytes there is a warning at each call.
    masks = [i for i in indices if is_mask(i)]
    return bool(masks) and (sum(i is not None for i in indices) > 1 or masks[0].dtype != bool)


# aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
# aten::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False,
#     bool unsafe=False) -> Tensor
@kernel("index_put", "_index_put_impl", eager=_needs_values)
def index_put(self, indices, values, accumulate=False, unsafe=False):
    return _index_put(self, indices, values, accumulate, check=not unsafe)


# aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
@kernel("_unsafe_index_put", eager=_needs_values)
def unsafe_index_put(self, indices, values, accumulate=False):
    return _index_put(self, indices, values, accumulate, check=False)


def _index_put(
    self: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array, accumulate: bool, check: bool
) -> jax.Array:
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and is_mask(indices[given[0]]):
        return _masked_put(self, indices[given[0]], given[0], values, accumulate)
    if any(map(is_mask, indices)) and any(isinstance(i, jax.core.Tracer) for i in indices):
        indices = expand_masks(self.shape, indices, _count(indices, values))
        check, drops = False, True  # positions out of range are not written
    else:
        indices, drops = expand_masks(self.shape, indices), False
    if not given:
        _same_dtype(self, values, "Index put")
        return self + values if accumulate else jnp.broadcast_to(values, self.shape)
    places = Places(self.shape, indices, check)
    if 0 in places.shape:
        return self
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(places.window),
        inserted_window_dims=tuple(places.dims),
        scatter_dims_to_operand_dims=tuple(places.dims),
    )
    values = _spread(values, places.shape)
    _same_dtype(self, values, "Index put")
    return _scatter("add" if accumulate else "set", self, places.index, values, numbers, drops)


def _spread(values: jax.Array, shape: Sequence[int]) -> jax.Array:
    try:
        return jnp.broadcast_to(values, shape)
    except ValueError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of"
            f" shape {list(shape)}"
        ) from None


def _count(indices: Sequence[jax.Array | None], values: jax.Array) -> int:
    """The number of true elements of the masks among indices, as far as shapes tell."""
    others = [i.shape for i in indices if i is not None and not is_mask(i)]
    length = np.broadcast_shapes(*others, (1,))[-1]
    if length > 1:
        return length
    known = values.shape[0] if values.ndim else 1
    return known if known > 1 else min(i.size for i in indices if is_mask(i))


def _masked_put(self: jax.Array, mask: jax.Array, dim: int, values: jax.Array, accumulate: bool) -> jax.Array:
    """`self` with values where a mask over some of its dimensions, from `dim` on, is true."""
    expected = self.shape[dim : dim + mask.ndim]
    if mask.shape != expected:
        raise IndexError(
            f"The shape of the mask {list(mask.shape)} at index {dim} does not match the shape of the indexed tensor"
            f" {list(self.shape)} at index {dim}"
        )
    warn_of_bytes(mask)
    after = self.ndim - dim - mask.ndim
    mask = cast(mask, bool)
    if values.size == 1 and not accumulate and (is_complex(self.dtype) or not is_complex(values.dtype)):
        number = lax.reshape(values, ())  # to fill with, as masked_fill
        values = lax.broadcast(number if number.dtype == self.dtype else scalar(number, self.dtype), values.shape)
    at = values.ndim - after - 1  # the dimension of values that runs over the true elements
    if at < 0 or values.shape[at] == 1:
        shape = (*values.shape[: max(at, 0)], *(1,) * mask.ndim, *values.shape[max(at + 1, 0) :])
        values = lax.reshape(values, shape) if at >= 0 else values
    else:
        count = values.shape[at]
        require(jnp.sum(mask) == count, RuntimeError, f"shape mismatch: {count} values for another number of elements")
        if count == 0:
            return self
        values = jnp.take(values, _ranks(mask, count), axis=at, mode="clip")
    written = lax.broadcast_in_dim(mask, self.shape, range(dim, dim + mask.ndim))
    values = _spread(values, self.shape)
    _same_dtype(self, values, "Index put")
    return broadcast_select(written, self + values if accumulate else values, self)


def _ranks(mask: jax.Array, count: int) -> jax.Array:
    """For each true element of a mask, how many true elements come before it."""
    dtype = np.int32 if mask.size < 2**31 else np.int64
    before = lax.cumsum(lax.reshape(mask, (mask.size,)).astype(dtype)) - dtype(1)
    return lax.reshape(jnp.clip(before, 0, max(count - 1, 0)), mask.shape)


# aten::_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor
@kernel("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(self, mask, indices, values):
    values = broadcast_select(mask, values, np.zeros((), values.dtype))
    return _index_put(self, clamped(self.shape, indices), values, True, check=False)


# aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor
@kernel("put")
def put(self, index, source, accumulate=False):
    _same_dtype(self, source, "put")
    if index.size == 0:
        return self
    flat, i = lax.reshape(self, (self.size,)), lax.reshape(index, (index.size,))
    i = wrapped_index(i, self.size, f"out of range on a tensor of {self.size} elements")
    return lax.reshape(_rows("add" if accumulate else "set", flat, 0, i, lax.reshape(source, i.shape)), self.shape)


# One index along one dimension, for each element


def _along(how: str, self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    x, i, updates = at_least_1d(self), at_least_1d(index), at_least_1d(src)
    _same_dtype(self, src, "scatter")
    dim = wrap_dim(dim, x.ndim)
    if i.size == 0:
        return self
    message = f"index is out of bounds for dimension {dim} with size {x.shape[dim]}"
    i = in_range(i, x.shape[dim], RuntimeError, message)
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    part = cut(x, i.shape, dim)
    updates = lax.slice(updates, [0] * x.ndim, i.shape)
    written = _scatter(how, part, lax.expand_dims(i, (x.ndim,)), updates, numbers)
    if part.shape != x.shape:
        written = lax.dynamic_update_slice(x, written, [np.int32(0)] * x.ndim)
    return lax.reshape(written, self.shape)


# aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@kernel("scatter.src")
def scatter_src(self, dim, index, src):
    return _along("set", self, dim, index, src)


# aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
@kernel("scatter.value")
def scatter_value(self, dim, index, value):
    return _along("set", self, dim, index, lax.broadcast(scalar(value, self.dtype), index.shape))


# aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor
@kernel("scatter.reduce")
def scatter_with_reduction(self, dim, index, src, *, reduce):
    return _along(reduce, self, dim, index, src)


# aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor
@kernel("scatter.value_reduce")
def scatter_value_reduce(self, dim, index, value, *, reduce):
    return _along(reduce, self, dim, index, lax.broadcast(scalar(value, self.dtype), index.shape))


# aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@kernel("scatter_add")
def scatter_add(self, dim, index, src):
    return _along("add", self, dim, index, src)


# aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *,
#     bool include_self=True) -> Tensor
@kernel("scatter_reduce.two")
def scatter_reduce(self, dim, index, src, reduce, *, include_self=True):
    def write(how: str, x: jax.Array, values: jax.Array) -> jax.Array:
        return _along(how, x, dim, index, values)

    return _reduced(reduce, self, src, include_self, write)


def _reduced(how: str, self: jax.Array, src: jax.Array, include_self: bool, write: Callable[..., Any]) -> jax.Array:
    """A reduction of `self` and the values written to each of its elements; a mean of integers is rounded down."""
    if (how == "mean" and self.dtype == bool) or (how in ("amax", "amin") and is_complex(self.dtype)):
        raise NotImplementedError(f"the reduction {how} is not implemented for {self.dtype}")
    start = self if include_self else write("set", self, lax.full(src.shape, _neutral(how, self.dtype), self.dtype))
    total = write(how, start, src)
    if how != "mean":
        return total
    ones = lax.full(src.shape, 1, np.int32)
    counts = write("add", lax.full(self.shape, int(include_self), np.int32), ones)
    counts = cast(jnp.maximum(counts, 1), self.dtype)
    return jnp.floor_divide(total, counts) if is_integral(self.dtype) else total / counts


def _neutral(how: str, dtype: np.dtype) -> Any:
    if how in ("amax", "amin"):
        sign = -1 if how == "amax" else 1
        if dtype.kind == "b":
            return how == "amin"
        return sign * math.inf if is_float(dtype) else np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max
    return int(how == "prod")


# One index along one dimension, for whole slices


def _rows(how: str, x: jax.Array, dim: int, index: jax.Array, updates: jax.Array) -> jax.Array:
    others = tuple(d for d in range(x.ndim) if d != dim)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=others, inserted_window_dims=(dim,), scatter_dims_to_operand_dims=(dim,)
    )
    return _scatter(how, x, lax.expand_dims(index, (1,)), updates, numbers) if x.size and index.size else x


def _index_write(
    how: str, self: jax.Array, dim: int, index: jax.Array, source: jax.Array, error: type[Exception] = IndexError
) -> jax.Array:
    x, i, updates = at_least_1d(self), at_least_1d(index), at_least_1d(source)
    _same_dtype(self, source, "index write")
    dim = wrap_dim(dim, x.ndim)
    message = f"index is out of bounds for dimension {dim} with size {x.shape[dim]}"
    i = in_range(i, x.shape[dim], error, message)
    updates = lax.reshape(updates, (*x.shape[:dim], i.size, *x.shape[dim + 1 :]))
    return lax.reshape(_rows(how, x, dim, i, updates), self.shape)


def _same_shape(self: jax.Array, source: jax.Array, dim: int) -> None:
    """Raises ATen's error unless the shapes agree but for `dim`; index_copy does not ask for that."""
    dim = wrap_dim(dim, self.ndim)
    if self.ndim != source.ndim or any(
        m != n for d, (m, n) in enumerate(zip(self.shape, source.shape, strict=True)) if d != dim
    ):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape ="
            f" {list(self.shape)} source.shape = {list(source.shape)}"
        )


# aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor
@kernel("index_add")
def index_add(self, dim, index, source, *, alpha=1):
    _same_shape(self, source, dim)
    _same_dtype(self, source, "index_add")
    if type(alpha) in (int, float) and alpha == 1:  # as in most calls
        scaled = source
    else:
        alpha = cast(alpha, self.dtype)
        scaled = jnp.logical_and(source, alpha) if self.dtype == bool else source * alpha
    return _index_write("add", self, dim, index, scaled, RuntimeError)


# aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor
@kernel("index_copy")
def index_copy(self, dim, index, source):
    if index.dtype != np.int64:
        raise RuntimeError(f"index_copy_(): Expected a long tensor for index, but got {index.dtype}")
    return _index_write("set", self, dim, index, source)


# aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor
@kernel("index_reduce")
def index_reduce(self, dim, index, source, reduce, *, include_self=True):
    _same_shape(self, source, dim)

    def write(how: str, x: jax.Array, values: jax.Array) -> jax.Array:
        return _index_write(how, x, dim, index, values)

    return _reduced(reduce, self, source, include_self, write)


# aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
# aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor
@kernel("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self, dim, index, value):
    if index.dtype != np.int64:
        raise IndexError(f"index_fill_(): Expected dtype int64 for index, but got {index.dtype}")
    x, i = at_least_1d(self), at_least_1d(index)
    dim = wrap_dim(dim, x.ndim)
    size = x.shape[dim]
    i = wrapped_index(i, size, f"index is out of bounds for dimension {dim} with size {size}")
    filled = _rows("set", lax.full((size,), False), 0, i, lax.full(i.shape, True))
    value = lax.reshape(scalar(value, self.dtype), ())
    return lax.reshape(broadcast_select(lax.broadcast_in_dim(filled, x.shape, (dim,)), value, x), self.shape)


# Masks


# aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor
# aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor
@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self, mask, value):
    return broadcast_select(mask, scalar(value, self.dtype), self)


# aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor
@kernel("masked_scatter")
def masked_scatter(self, mask, source):
    if mask.dtype != bool:
        raise RuntimeError(f"masked_scatter only supports boolean masks, but got mask with dtype {mask.dtype}")
    self, mask = jnp.broadcast_arrays(self, mask)
    _same_dtype(self, source, "masked_scatter")
    message = "Number of elements of source < number of ones in mask"
    require(jnp.sum(mask) <= source.size, RuntimeError, message)
    if source.size == 0:
        return self
    taken = lax.reshape(source, (source.size,)).at[_ranks(mask, source.size)].get(mode="promise_in_bounds")
    return broadcast_select(mask, taken, self)


# aten::masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor
@kernel("masked_scatter_backward")
def masked_scatter_backward(grad_output, mask, sizes):
    """The elements under the mask in order, and zeros after them."""
    count = math.prod(sizes)
    mask = jnp.broadcast_to(mask, grad_output.shape)
    ranks = _ranks(mask, mask.size)
    ranks = broadcast_select(mask, ranks, np.array(count, ranks.dtype))
    zeros = lax.full((count,), 0, grad_output.dtype)
    return lax.reshape(zeros.at[ranks].set(grad_output, mode="drop"), sizes)


# aten::_masked_scale(Tensor self, Tensor mask, float scale) -> Tensor
@kernel("_masked_scale")
def masked_scale(self, mask, scale):
    return self * cast(mask, self.dtype) * cast(scale, self.dtype)
