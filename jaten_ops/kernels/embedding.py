"""Embeddings and bags of them.

A bag is a run of indices between two offsets, reduced to one row. Mode 0 sums it, 1 takes the mean, 2 the maximum.
Source: aten/src/ATen/native/Embedding.cpp, EmbeddingBag.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.extrema import reduce_max
from ..kernel_base.platform import is_over_mesh
from ..kernel_base.promotion import cast, compute_type, is_float

SUM, MEAN, MAX = 0, 1, 2


def _rows(weight: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows of (N, D) at indices of any shape: (*, D). The caller checks the range."""
    if not indices.size or not weight.shape[0]:
        return jnp.zeros((*indices.shape, weight.shape[1]), weight.dtype)
    numbers = lax.GatherDimensionNumbers(offset_dims=(indices.ndim,), collapsed_slice_dims=(0,), start_index_map=(0,))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(weight, indices[..., None], numbers, (1, weight.shape[1]), mode=mode)


def _add_rows(size: int, indices: jax.Array, rows: jax.Array) -> jax.Array:
    """The sum of the rows of each index, (size, *); an index of `size` drops its row."""
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[indices].add(rows, mode="drop")


@jax.custom_jvp
def _with_gradient_factor(x: jax.Array, factor: jax.Array) -> jax.Array:
    """`x`, with its gradient multiplied by `factor`."""
    return x


@_with_gradient_factor.defjvp
def _with_gradient_factor_jvp(primals, tangents):
    (x, factor), (dx, _) = primals, tangents
    return x, dx * factor


def _frequency(indices: jax.Array, size: int, dtype: Any) -> jax.Array:
    """For each index, the number of times that it occurs."""
    return _add_rows(size, indices, jnp.ones(indices.shape, dtype))[indices]


def _require_in_range(indices: jax.Array, size: int, error: type[Exception], message: str) -> None:
    require((indices >= 0) & (indices < size), error, message)


# aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False,
#     bool sparse=False) -> Tensor
@kernel("embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in (np.int32, np.int64):
        raise RuntimeError(f"Expected argument #1 'indices' to be of dtype int64 or int32; got {indices.dtype}")
    _require_in_range(indices, weight.shape[0], IndexError, "index out of range in self")
    rows = _rows(weight, indices)
    if padding_idx < 0 and not scale_grad_by_freq:
        return rows
    factor = cast(indices != padding_idx, weight.dtype)
    if scale_grad_by_freq:
        factor = factor / _frequency(indices.reshape(-1), weight.shape[0], weight.dtype).reshape(indices.shape)
    return _with_gradient_factor(rows, factor[..., None])


# aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx,
#     bool scale_grad_by_freq) -> Tensor
@kernel("embedding_dense_backward")
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    indices = indices.reshape(-1)
    grad = cast(grad_output, compute_type(grad_output.dtype)).reshape(indices.size, grad_output.shape[-1])
    if scale_grad_by_freq:
        grad = grad / _frequency(indices, num_weights, grad.dtype)[:, None]
    indices = jnp.where(indices == padding_idx, num_weights, indices)
    return cast(_add_rows(num_weights, indices, grad), grad_output.dtype)


# aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor
@kernel("embedding_renorm")
def embedding_renorm(self, indices, max_norm, norm_type):
    """`self` with the rows at `indices` scaled down to a norm of at most `max_norm`."""
    indices = indices.reshape(-1)
    _require_in_range(indices, self.shape[0], IndexError, "index out of range in self")
    rows = cast(_rows(self, indices), compute_type(self.dtype))
    size, p = jnp.abs(rows), cast(norm_type, rows.dtype)
    norm = jnp.where(
        p == math.inf,
        jnp.maximum(reduce_max(size, (1,)), 0),
        jnp.where(p == 0, jnp.sum(cast(size != 0, rows.dtype), 1), jnp.sum(size**p, 1) ** (1 / p)),
    )
    limit = cast(max_norm, rows.dtype)
    factor = jnp.where(norm > limit, limit / (norm + np.asarray(1e-7, rows.dtype)), 1)
    return self.at[indices].set(cast(rows * factor[:, None], self.dtype), mode="drop")


# Bags


def _check_bags(weight: jax.Array, indices: jax.Array, offsets: jax.Array) -> None:
    count = indices.shape[0]
    _require_in_range(
        indices, weight.shape[0], RuntimeError, f"Index of input is not in the valid range [0, {weight.shape[0]})"
    )
    if offsets.shape[0]:
        require(offsets[0] == 0, RuntimeError, "offsets[0] has to be 0: the first bag has to start there")
        require(offsets[-1] <= count, RuntimeError, f"offsets[-1] can not be greater than input's length {count}")


def _bag_of(indices: jax.Array, starts: jax.Array) -> jax.Array:
    """The bag of each of the indices, from the starts of the bags."""
    count = indices.shape[0]
    if not starts.shape[0]:
        return jnp.zeros((count,), starts.dtype)
    if is_over_mesh(indices):  # a cumulative sum would gather all positions
        positions = lax.iota(starts.dtype, count)
        return cast(jnp.searchsorted(jnp.sort(starts[1:]), positions, side="right"), starts.dtype)
    begun = jnp.zeros((count,), starts.dtype).at[starts[1:]].add(1, mode="drop")
    return jnp.cumsum(begun, dtype=starts.dtype)


def _bag_sizes(bag: jax.Array, bags: int, counts: jax.Array) -> jax.Array:
    return _add_rows(bags, bag, cast(counts, bag.dtype))


def _maximum(rows: jax.Array, indices: jax.Array, bag: jax.Array, bags: int, counts: jax.Array) -> Any:
    """The largest value of each bag, 0 if it is empty, and the index of the row that it is in.

    ATen takes what is larger than what it has: NaN stays where it comes first, and is passed over where it comes later.
    """
    shape, count = (bags, rows.shape[1]), rows.shape[0]
    bag = jnp.where(counts, bag, bags)
    entry = lax.iota(np.int32, count)
    leads = entry == jnp.full((bags,), count, np.int32).at[bag].min(entry, mode="drop")[bag]
    ranks = jnp.where(jnp.isnan(rows), jnp.where(leads[:, None], np.inf, -np.inf), rows)
    top = jnp.full(shape, -np.inf, rows.dtype).at[bag].max(lax.stop_gradient(ranks), mode="drop")
    position = jnp.where(ranks == _rows(top, bag), entry[:, None], count)
    first = jnp.full(shape, count, np.int32).at[bag].min(position, mode="drop")
    found = first < count
    first = jnp.where(found, first, 0)
    values = jnp.take_along_axis(rows, first, 0) if count else jnp.zeros(shape, rows.dtype)
    where = indices[first] if count else jnp.zeros(shape, indices.dtype)
    return jnp.where(found, values, 0), jnp.where(found, where, 0)


def _entry_rows(weight: jax.Array, indices: jax.Array, counts: Any, factor: Any, scale: Any) -> jax.Array:
    """The row of each entry of the bags, 0 where it does not count, with a factor of its gradient and a scale."""
    rows = cast(_rows(weight, indices), compute_type(weight.dtype))
    if factor is not None:
        rows = _with_gradient_factor(rows, factor[:, None])
    if scale is not None:
        rows = rows * cast(scale, rows.dtype)[:, None]
    return rows if counts is None else jnp.where(counts[:, None], rows, 0)


def _sums_of_any(bag: jax.Array, starts: jax.Array, weight: jax.Array, *entries: Any) -> jax.Array:
    return _add_rows(starts.shape[0], bag, _entry_rows(weight, *entries))


def _may_be_equal(bags: int, count: int, *operands: Any) -> bool:
    """True if entries may be in bags of one size, each of which one device has."""
    return bool(bags and count) and count % bags == 0 and not any(is_over_mesh(x) for x in operands if x is not None)


def _are_equal(starts: jax.Array, count: int) -> jax.Array:
    """True if bags have one size, from their starts."""
    return jnp.all(starts == lax.iota(starts.dtype, starts.shape[0]) * (count // starts.shape[0]))


def _nth_entries(n: Any, bags: int, entries: Any) -> list[Any]:
    """Values of the nth entry of each bag, from those of all entries of bags of one size."""
    return [None if x is None else lax.dynamic_index_in_dim(x.reshape(bags, -1), n, 1, False) for x in entries]


@jax.custom_jvp
def _bag_sums(bag: jax.Array, starts: jax.Array, weight: jax.Array, *entries: Any) -> jax.Array:
    """The sum of the rows of each bag, (bags, D).

    Args:
        bag: of each entry.
        starts: of the bags.
        weight: the rows, (N, D).
        entries: what `_entry_rows` takes.
    """
    bags, count = starts.shape[0], bag.shape[0]
    if not _may_be_equal(bags, count, weight, *entries):
        return _sums_of_any(bag, starts, weight, *entries)

    def of_equal() -> jax.Array:  # no sum is stored until it is whole, and no row
        def with_nth(n: Any, total: jax.Array) -> jax.Array:
            return total + _entry_rows(weight, *_nth_entries(n, bags, entries))

        return lax.fori_loop(0, count // bags, with_nth, jnp.zeros((bags, weight.shape[1]), compute_type(weight.dtype)))

    return lax.cond(_are_equal(starts, count), of_equal, lambda: _sums_of_any(bag, starts, weight, *entries))


@_bag_sums.defjvp
def _bag_sums_jvp(primals: Any, tangents: Any) -> Any:
    return _bag_sums(*primals), jax.jvp(_sums_of_any, primals, tangents)[1]


def _embedding_bag(
    weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx,
    sizes_of_sum
):  # fmt: skip
    dtype = indices.dtype if indices.dtype == offsets.dtype else np.dtype("int64")
    indices, offsets = cast(indices, dtype), cast(offsets, dtype)
    _check_bags(weight, indices, offsets)
    if not is_float(weight.dtype):
        raise RuntimeError(f"_embedding_bag: expected a weight of a floating dtype, got {weight.dtype}")
    starts = offsets[:-1] if include_last_offset else offsets
    bags, count = starts.shape[0], indices.shape[0]
    bag, counts = _bag_of(indices, starts), indices != padding_idx
    wide = compute_type(weight.dtype)
    factor = 1 / _frequency(indices, weight.shape[0], wide) if scale_grad_by_freq else None
    if mode == MAX:
        out, where = _maximum(_entry_rows(weight, indices, None, factor, None), indices, bag, bags, counts)
        return cast(out, weight.dtype), bag, _bag_sizes(bag, bags, counts), where
    entries = indices, counts if padding_idx >= 0 else None, factor, per_sample_weights
    out = _bag_sums(bag, starts, weight, *entries)
    if mode == SUM:
        # ATen fills these only where its backward needs them
        sizes = jnp.zeros((sizes_of_sum,), dtype)
        fast = padding_idx < 0 and weight.dtype != np.float64
        return cast(out, weight.dtype), bag[:0] if fast else bag, sizes, sizes
    if padding_idx < 0:  # without a look at the indices, of which each device may have a part
        sizes = jnp.diff(starts, append=np.asarray(count, dtype)) if bags else starts
    else:
        sizes = _bag_sizes(bag, bags, counts)
    out = out / cast(jnp.maximum(sizes, 1), out.dtype)[:, None]
    return cast(out, weight.dtype), bag, sizes, sizes


# aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,
#     bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False,
#     int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("_embedding_bag")
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1
):  # fmt: skip
    return _embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx,
        offsets.shape[0] - include_last_offset,
    )  # fmt: skip


# aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False,
#     int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False,
#     int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("_embedding_bag_forward_only")
def embedding_bag_forward_only(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1
):  # fmt: skip
    return _embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx,
        offsets.shape[0],
    )  # fmt: skip


# aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size,
#     Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? per_sample_weights,
#     int padding_idx=-1) -> Tensor
@kernel("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
    padding_idx=-1
):  # fmt: skip
    wide = cast(grad, compute_type(grad.dtype))
    if mode == MAX:
        columns = lax.broadcasted_iota(maximum_indices.dtype, maximum_indices.shape, 1)
        rows = jnp.where(bag_size[:, None] > 0, maximum_indices, num_weights)
        zeros = jnp.zeros((num_weights, grad.shape[1]), wide.dtype)
        return cast(zeros.at[rows, columns].add(wide, mode="drop"), grad.dtype)
    if mode == MEAN:
        wide = wide / cast(jnp.maximum(bag_size, 1), wide.dtype)[:, None]
    frequency = _frequency(indices, num_weights, wide.dtype) if scale_grad_by_freq else None
    indices = jnp.where(indices == padding_idx, num_weights, indices)
    scale = None if per_sample_weights is None else cast(per_sample_weights, wide.dtype)
    return cast(_added_of_bags(num_weights, wide, offset2bag, indices, scale, frequency), grad.dtype)


def _added_of_bags(size: int, rows: jax.Array, bag: jax.Array, indices: jax.Array, *factors: Any) -> jax.Array:
    """The sum, for each index, of the rows of the bags that it is in: (size, D).

    Args:
        size: the number of indices; that index drops its row.
        rows: of the bags, (bags, D).
        bag: of each entry.
        indices: of the entries.
        factors: what an entry multiplies its row by, and what it divides it by; None for 1.
    """

    def scaled(rows: jax.Array, scale: Any, frequency: Any) -> jax.Array:
        rows = rows if scale is None else rows * scale[:, None]
        return rows if frequency is None else rows / frequency[:, None]

    def of_any() -> jax.Array:
        return _add_rows(size, indices, scaled(_rows(rows, bag), *factors))

    bags, count = rows.shape[0], indices.shape[0]
    if not _may_be_equal(bags, count, rows, indices, *factors):
        return of_any()

    def of_equal() -> jax.Array:
        def with_nth(n: Any, total: jax.Array) -> jax.Array:
            nth, *scale = _nth_entries(n, bags, (indices, *factors))
            return total.at[nth].add(scaled(rows, *scale), mode="drop")

        return lax.fori_loop(0, count // bags, with_nth, jnp.zeros((size, rows.shape[1]), rows.dtype))

    return lax.cond(jnp.all(bag == lax.iota(bag.dtype, count) // (count // bags)), of_equal, of_any)


def _offset2bag(indices: jax.Array, offsets: jax.Array, offset2bag: jax.Array) -> jax.Array:
    """The forward's `offset2bag`, which it leaves empty in ATen's fast path."""
    return offset2bag if offset2bag.shape[0] == indices.shape[0] else _bag_of(indices, offsets)


# aten::_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size,
#     Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse,
#     Tensor? per_sample_weights, int padding_idx=-1) -> Tensor
@kernel("_embedding_bag_backward")
def embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
    per_sample_weights, padding_idx=-1
):  # fmt: skip
    """A dense gradient, also if `sparse`: XLA has no sparse tensors."""
    return embedding_bag_dense_backward(
        grad, indices, _offset2bag(indices, offsets, offset2bag), bag_size, maximum_indices, num_weights,
        scale_grad_by_freq, mode, per_sample_weights, padding_idx,
    )  # fmt: skip


# aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets,
#     Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor
@kernel("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    if mode != SUM:
        raise RuntimeError("embedding_bag_backward: per_sample_weights only supported for mode='sum'")
    wide = compute_type(grad.dtype)
    of_bag = _rows(cast(grad, wide), _offset2bag(indices, offsets, offset2bag))
    products = jnp.sum(of_bag * cast(_rows(weight, indices), wide), 1)
    return cast(jnp.where(indices == padding_idx, 0, products), grad.dtype)
