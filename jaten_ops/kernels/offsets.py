"""Rows given by offsets: compressed indices to coordinates and back, jagged tensors to padded ones and back.

All operands are dense. Sources: aten/src/ATen/native/sparse/SparseCsrTensor.cpp (TensorConversions.cpp) and
aten/src/ATen/native/nested/NestedTensorTransformerFunctions.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.promotion import cast, is_integral
from .conversion import convert
from .sorting import binary_search


def _require_integers(name: str, x: jax.Array) -> None:
    if not is_integral(x.dtype) or x.dtype == bool:
        raise NotImplementedError(f"{name} is not implemented for {x.dtype}")


# aten::_convert_indices_from_coo_to_csr(Tensor self, int size, *, bool out_int32=False) -> Tensor
@kernel("_convert_indices_from_coo_to_csr")
def coo_to_csr(self, size, *, out_int32=False):
    """The number of row indices, which are sorted, below each of 0, ..., size."""
    if self.ndim > 1:
        raise RuntimeError(f"Input is supposed to be a vector, but got {self.ndim} dimensional tensor.")
    _require_integers("convert_indices_from_coo_to_csr", self)
    rows = cast(lax.reshape(self, (self.size,)), "int64")
    return cast(binary_search(rows, lax.iota(np.int64, size + 1), False), "int32" if out_int32 else "int64")


# aten::_convert_indices_from_csr_to_coo(Tensor crow_indices, Tensor col_indices, *, bool out_int32=False,
#     bool transpose=False) -> Tensor
@kernel("_convert_indices_from_csr_to_coo")
def csr_to_coo(crow_indices, col_indices, *, out_int32=False, transpose=False):
    """The coordinates of all elements, one in each column: of the batch, row, column (column, row if transposed)."""
    _require_integers("convert_indices_from_csr_to_coo", crow_indices)
    shape = col_indices.shape
    at = lax.broadcasted_iota(np.int64, shape, len(shape) - 1)
    bounds = cast(crow_indices, "int64")
    last = max(crow_indices.shape[-1] - 2, 0)
    # ATen leaves the row of elements beyond the last offset at 0
    row = cast(binary_search(bounds, at, True), "int64") - 1
    row = jnp.where(row > last, 0, row)
    pair = (col_indices, row) if transpose else (row, col_indices)
    batch = [lax.broadcasted_iota(np.int64, shape, d) for d in range(len(shape) - 1)]
    dtype = "int32" if out_int32 else "int64"
    return jnp.stack([lax.reshape(cast(x, dtype), (x.size,)) for x in (*batch, *pair)])


# aten::_validate_compressed_sparse_indices(bool is_crow, Tensor compressed_idx, Tensor plain_idx, int cdim, int dim,
#     int nnz) -> ()
@kernel("_validate_compressed_sparse_indices")
def validate_compressed_sparse_indices(is_crow, compressed_idx, plain_idx, cdim, dim, nnz):
    """Requires the invariants of compressed indices and their plain indices."""
    outer, inner, of_outer, of_inner = (
        ("crow", "col", "nrows", "ncols") if is_crow else ("ccol", "row", "ncols", "nrows")
    )
    name, plain_name = f"{outer}_indices", f"{inner}_indices"
    _check_shapes(compressed_idx, plain_idx, cdim, nnz, name, plain_name, of_outer)
    _require_integers("_validate_compressed_sparse_indices", compressed_idx)
    bounds, plain = cast(compressed_idx, "int64"), cast(plain_idx, "int64")

    def check(ok: jax.Array, what: str) -> None:
        require(ok, RuntimeError, f"`{what}` is not satisfied.")

    check((plain >= 0) & (plain < dim), f"0 <= {plain_name} < {of_inner}")
    check(bounds[..., 0] == 0, f"{name}[..., 0] == 0")
    check(bounds[..., -1] == nnz, f"{name}[..., -1] == nnz")
    sizes = bounds[..., 1:] - bounds[..., :-1]
    check((sizes >= 0) & (sizes <= dim), f"0 <= {name}[..., 1:] - {name}[..., :-1] <= {of_inner}")
    at = lax.broadcasted_iota(np.int64, plain.shape, plain.ndim - 1)
    row = binary_search(bounds, at, True)
    rising = (plain[..., 1:] > plain[..., :-1]) | (row[..., 1:] != row[..., :-1])
    span = f"{name}[..., i - 1]:{name}[..., i]"
    check(
        rising,
        f"{plain_name}[..., {span}] for all i = 1, ..., {of_outer} are sorted and distinct along the last dimension"
        " values",
    )


def _check_shapes(compressed, plain, cdim: int, nnz: int, name: str, plain_name: str, of_outer: str) -> None:
    if compressed.dtype != plain.dtype:
        raise RuntimeError(f"Found dtype {compressed.dtype} of {name} but {plain.dtype} of {plain_name}")
    if compressed.shape[-1] != cdim + 1:
        wrong = f"{name}.shape[-1] = {compressed.shape[-1]} is not equal to {of_outer} + 1 = {cdim + 1}"
        raise RuntimeError(f"{name} have wrong shape: {wrong}")
    if plain.shape[-1] != nnz:
        wrong = f"{plain_name}.shape[-1] = {plain.shape[-1]} is not equal to nnz = {nnz}"
        raise RuntimeError(f"{plain_name} have wrong shape: {wrong}")
    if compressed.shape[:-1] != plain.shape[:-1]:
        raise RuntimeError(f"batch sizes differ: got {compressed.shape[:-1]} of {name}, {plain.shape[:-1]}")


def _only(name: str, offsets: Sequence[jax.Array], *others: Sequence[int]) -> jax.Array:
    if any(len(x) != 1 for x in (offsets, *others)):
        raise RuntimeError(f"{name}(): only one jagged dimension is supported, got offsets of {len(offsets)}")
    return cast(offsets[0], "int64")


# aten::_jagged_to_padded_dense_forward(Tensor values, Tensor[] offsets, SymInt[] max_lengths,
#     float padding_value=0.) -> Tensor
@kernel("_jagged_to_padded_dense_forward", static=("padding_value",))
def jagged_to_padded_dense(values, offsets, max_lengths, padding_value=0.0):
    """From (total, *) to (rows, max_length, *): short rows are padded, long ones truncated."""
    bounds = _only("_jagged_to_padded_dense_forward", offsets, max_lengths)
    at = bounds[:-1, None] + lax.iota(np.int64, max_lengths[0])
    padding = convert(jnp.asarray(padding_value), values.dtype)
    inside = (at < bounds[1:, None]).reshape(*at.shape, *[1] * (values.ndim - 1))
    if not values.shape[0]:
        return jnp.full((*at.shape, *values.shape[1:]), padding)
    return jnp.where(inside, values.at[jnp.minimum(at, values.shape[0] - 1)].get(mode="promise_in_bounds"), padding)


def _total_is_unknown(dense, offsets, total_L=None) -> bool:  # the schema's name
    return total_L is None


# aten::_padded_dense_to_jagged_forward(Tensor dense, Tensor[] offsets, SymInt? total_L=None) -> Tensor
@kernel("_padded_dense_to_jagged_forward", eager=_total_is_unknown)
def padded_dense_to_jagged(dense, offsets, total_L=None):  # the schema's name
    """From (rows, max_length, *) to (total, *): of each row as many elements as its offsets give."""
    bounds = _only("_padded_dense_to_jagged_forward", offsets)
    name, longest = "_padded_dense_to_jagged_forward()", dense.shape[1]
    total = int(bounds[-1]) if total_L is None else total_L
    require(bounds[-1] == total, RuntimeError, f"{name}: final offset should match total_L value")
    message = f"{name}: found a batch item longer than the max length specified by padded input, {longest}"
    require(bounds[1:] - bounds[:-1] <= longest, RuntimeError, message)
    if not dense.size:
        return jnp.zeros((total, *dense.shape[2:]), dense.dtype)
    at = lax.iota(np.int64, total)
    row = jnp.clip(cast(binary_search(bounds, at, True), "int64") - 1, 0, dense.shape[0] - 1)
    column = jnp.clip(at - bounds.at[row].get(mode="promise_in_bounds"), 0, longest - 1)
    return dense.at[row, column].get(mode="promise_in_bounds")
