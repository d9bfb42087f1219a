"""Sorting, top-k, order statistics, binary search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base import checks
from ..kernel_base.platform import is_open
from ..kernel_base.promotion import cast, is_complex, is_float, promote, size_number
from .reduction import chosen_values, extremum_index, gather_along, positions, share_of_ties, with_axis, without_axis

# Order

_UNSIGNED = {1: np.dtype("uint8"), 2: np.dtype("uint16"), 4: np.dtype("uint32"), 8: np.dtype("uint64")}


def order_key(x: jax.Array) -> jax.Array:
    """Unsigned integers of the same width in ATen's order: -0.0 equals 0.0, NaN comes last and equals NaN."""
    if is_complex(x.dtype):
        raise RuntimeError("Sort does not support complex dtypes on CPU")
    if x.dtype == bool:
        return cast(x, "uint8")
    unsigned = _UNSIGNED[x.dtype.itemsize]
    sign = np.array(1 << (8 * x.dtype.itemsize - 1), unsigned)
    if not is_float(x.dtype):
        bits = lax.bitcast_convert_type(x, unsigned)
        return bits if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else bits ^ sign
    x = jnp.where(x == 0, jnp.zeros((), x.dtype), jnp.where(x != x, jnp.full((), np.nan, x.dtype), x))
    bits = lax.bitcast_convert_type(x, unsigned)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def argsort(x: jax.Array, axis: int, descending: bool = False) -> jax.Array:
    """The indices that sort x, stably."""
    key = order_key(x)
    key = ~key if descending else key
    if key.dtype == np.uint64 or x.shape[axis] >= 2**32:
        operands = (key, positions(x.shape, axis))
        return lax.sort(operands, dimension=axis, is_stable=True, num_keys=1)[1]
    # one integer of key and index sorts three times as fast as a pair, and is stable by itself
    packed = (cast(key, "uint64") << np.uint64(32)) | lax.broadcasted_iota(np.dtype("uint64"), x.shape, axis)
    packed = lax.sort(packed, dimension=axis, is_stable=False)
    return cast(packed & np.uint64(2**32 - 1), "uint32" if x.shape[axis] >= 2**31 else "int32")


# aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
# aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@kernel("sort", "sort.stable")
def sort(self, dim=-1, descending=False, stable=None):
    x, axis = with_axis(self, dim)
    indices = argsort(lax.stop_gradient(x), axis, descending)
    values = gather_along(x, indices, axis)
    return lax.reshape(values, self.shape), cast(lax.reshape(indices, self.shape), "int64")


# aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)
@kernel("topk")
def topk(self, k, dim=-1, largest=True, sorted=True):
    if self.dtype == bool:
        raise RuntimeError("topk does not support bool dtypes on CPU")
    x, axis = with_axis(self, dim)
    indices = _top_indices(lax.stop_gradient(x), k, axis, largest)
    values = gather_along(x, indices, axis)
    shape = values.shape if self.ndim else ()
    return lax.reshape(values, shape), cast(lax.reshape(indices, shape), "int64")


def _top_indices(x: jax.Array, k: int, axis: int, largest: bool) -> jax.Array:
    # XLA selects in float32 alone without a full sort, in the total order where -NaN < -inf and inf < NaN
    exact = x.dtype == np.float32 or x.dtype.itemsize <= 2
    if not exact or is_open(x) or not 0 < 8 * k <= x.shape[axis]:
        return lax.slice_in_dim(argsort(x, axis, largest), 0, k, axis=axis)
    score = cast(x, "float32")
    score = jnp.where(score == 0, np.float32(0), score)
    nan = np.array(0x7FC00000 if largest else 0xFFC00000, "uint32").view("float32")
    score = jnp.where(score != score, nan, score if largest else -score)
    _, indices = lax.top_k(jnp.moveaxis(score, axis, -1), k)
    return jnp.moveaxis(indices, -1, axis)


# Order statistics


def kth_smallest(key: jax.Array, k: jax.Array, axis: int) -> jax.Array:
    """The k-th smallest (from 0) of the unsigned integers along an axis, which stays as 1.

    Found bit by bit from the highest: a pass over the data for each bit, without sorting.

    Args:
        key: unsigned integers.
        k: int32 or int64, broadcastable to key with 1 at the axis.
    """
    bits = 8 * key.dtype.itemsize
    one = np.array(1, key.dtype)
    shape = tuple(1 if i == axis else n for i, n in enumerate(key.shape))

    def step(i: jax.Array, found: jax.Array) -> jax.Array:
        candidate = found | (one << cast(bits - 1 - i, key.dtype))
        below = lax.expand_dims(lax.reduce_sum(cast(key < candidate, k.dtype), (axis,)), (axis,))
        return jnp.where(below <= k, candidate, found)

    return lax.fori_loop(0, bits, step, jnp.zeros(shape, key.dtype))


def _order_statistic(x: jax.Array, k: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """The k-th smallest along an axis, which stays as 1, and its first position."""
    key = order_key(lax.stop_gradient(x))
    indices = extremum_index(key, kth_smallest(key, k, axis), axis)
    values = chosen_values(x, gather_along(lax.stop_gradient(x), indices, axis), indices, axis)
    return values, indices


def _finished(x, values, indices, axis, keepdim):
    return tuple(without_axis(out, axis, keepdim, x.ndim) for out in (values, cast(indices, "int64")))


# aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)
@kernel("kthvalue")
def kthvalue(self, k, dim=-1, keepdim=False):
    x, axis = with_axis(self, dim)
    if not 1 <= k <= x.shape[axis]:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    return _finished(self, *_order_statistic(x, jnp.full((1,) * x.ndim, k - 1, "int32"), axis), axis, keepdim)


def _nan_count(x: jax.Array, axis: int) -> jax.Array:
    nan = x != x if is_float(x.dtype) else jnp.zeros(x.shape, bool)
    return lax.expand_dims(lax.reduce_sum(cast(nan, "int32"), (axis,)), (axis,))


def _median_rank(x: jax.Array, axis: int, skip_nan: bool) -> jax.Array:
    """The rank of the lower median; with NaNs, that of the first NaN, or the median of the others if `skip_nan`."""
    nans = _nan_count(lax.stop_gradient(x), axis)
    n = size_number(x.shape[axis], np.int32)
    if skip_nan:
        return lax.max((n - nans - 1) // 2, np.int32(0))
    return jnp.where(nans > 0, n - nans, (n - 1) // 2)


def _median_dim(skip_nan):
    def median_dim(self, dim, keepdim=False):
        x, axis = with_axis(self, dim)
        return _finished(self, *_order_statistic(x, _median_rank(x, axis, skip_nan), axis), axis, keepdim)

    return median_dim


@jax.custom_jvp
def _tied(x: jax.Array, value: jax.Array) -> jax.Array:
    """`value`, an element of the vector x, whose gradient goes evenly to all elements that equal it."""
    return value


@_tied.defjvp
def _tied_jvp(primals, tangents):
    x, value = primals
    weights = cast(share_of_ties(x, value, (0,), nan_ties=True), x.dtype)
    return value, lax.reduce_sum(weights * tangents[0], (0,))


def _median(skip_nan):
    def median(self):
        if not self.size:
            return cast(jnp.full((), np.nan), self.dtype)
        x = lax.reshape(self, (self.size,))
        fixed = lax.stop_gradient(x)
        value = lax.squeeze(_order_statistic(fixed, _median_rank(fixed, 0, skip_nan), 0)[0], (0,))
        return _tied(x, value) if is_float(x.dtype) else value

    return median


# aten::{median, nanmedian}(Tensor self) -> Tensor
# aten::{median, nanmedian}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
for _name, _skip in {"median": False, "nanmedian": True}.items():
    kernel(_name)(_median(_skip))
    kernel(f"{_name}.dim")(_median_dim(_skip))


# aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)
@kernel("mode")
def mode(self, dim=-1, keepdim=False):
    """The smallest of the most frequent values, and its last position (aten/src/ATen/native/cpu/SortingKernel.cpp)."""
    x, axis = with_axis(self, dim)
    order = argsort(lax.stop_gradient(x), axis)
    ordered = gather_along(lax.stop_gradient(x), order, axis)
    at = positions(x.shape, axis)
    new = (ordered != jnp.roll(ordered, 1, axis)) | (at == 0)
    run = at - lax.cummax(jnp.where(new, at, jnp.zeros((), at.dtype)), axis)
    longest = lax.expand_dims(lax.reduce_max(run, (axis,)), (axis,)) if x.shape[axis] else run
    indices = gather_along(order, extremum_index(run, longest, axis), axis)
    values = chosen_values(x, gather_along(lax.stop_gradient(x), indices, axis), indices, axis)
    return _finished(self, values, indices, axis, keepdim)


# Binary search


# aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False,
#     str? side=None, Tensor? sorter=None) -> Tensor
# aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False,
#     str? side=None, Tensor? sorter=None) -> Tensor
@kernel("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    self, sorted_sequence = _search_operands(self, sorted_sequence)
    if sorter is not None:
        ok = (sorter >= 0) & (sorter < sorted_sequence.shape[-1])
        checks.require(ok, RuntimeError, "torch.searchsorted(): sorter index out of range")
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1, mode="clip")
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if right and side == "left":
        raise RuntimeError("torch.searchsorted(): side and right can't be set to opposites")
    right = right or side == "right"
    scalar = self.ndim == 0
    found = binary_search(sorted_sequence, lax.reshape(self, (1,)) if scalar else self, right)
    return cast(lax.reshape(found, ()) if scalar else found, "int32" if out_int32 else "int64")


# aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
# aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
@kernel("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self, boundaries, out_int32=False, right=False):
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _search_operands(values, sequence: jax.Array) -> tuple[jax.Array, jax.Array]:
    if isinstance(values, jax.Array) and values.dtype == sequence.dtype:
        return values, sequence
    return promote(values, sequence)


def binary_search(sequence: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    """The first position (the last if `right`) at which inserting each value keeps its row of the sequence sorted.

    The comparisons are those of ATen's binary search, so NaN ends up where ATen puts it.
    """
    n = sequence.shape[-1]
    index = np.dtype("int32") if n < 2**31 else np.dtype("int64")
    rows = sequence.ndim > 1
    start, end = jnp.zeros(values.shape, index), jnp.full(values.shape, n, index)
    if n == 0:
        return start

    def step(_, bounds):
        start, end = bounds
        middle = lax.min((start + end) // 2, np.array(n - 1, index))
        found = gather_along(sequence, middle, -1) if rows else sequence.at[middle].get(mode="promise_in_bounds")
        beyond = ~(found > values) if right else ~(found >= values)
        active = start < end
        return jnp.where(active & beyond, middle + 1, start), jnp.where(active & ~beyond, middle, end)

    return lax.fori_loop(0, n.bit_length(), step, (start, end))[0]
