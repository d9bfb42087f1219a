"""Unique elements and rows. Their number depends on the values, which must be known when the kernels run."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.strided_elements import reshaped
from ..interpreter import interpreted
from ..kernel_base.promotion import is_integral
from .indexing import true_places, values_beside
from .sorting import argsort


@functools.partial(interpreted, static_argnums=(1,))
def _runs(rows: jax.Array, consecutive: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sorts rows lexicographically (not if `consecutive`) and finds the runs of equal ones.

    Args:
        rows: (n, m).

    Returns:
        The order, whether each row in that order begins a run, and the run of each original row; all (n,). NaN equals
        nothing, as in ATen.
    """
    n, m = rows.shape
    order = lax.iota(np.int32 if n < 2**31 else np.int64, n)
    if not consecutive:
        # a stable sort by each column, from the last to the first
        def step(i: jax.Array | int, order: jax.Array) -> jax.Array:
            column = lax.dynamic_index_in_dim(rows, m - 1 - i, 1, keepdims=False)
            by_column = argsort(column.at[order].get(mode="promise_in_bounds"), 0)
            return order.at[by_column].get(mode="promise_in_bounds")

        order = step(0, order) if m == 1 else lax.fori_loop(0, m, step, order)
    ordered = rows.at[order].get(mode="promise_in_bounds")
    new = lax.reduce_or(ordered != jnp.roll(ordered, 1, 0), (1,)) | (lax.iota(np.int32, n) == 0)
    run = lax.cumsum(lax.convert_element_type(new, np.int64)) - 1
    return order, new, jnp.zeros_like(run).at[order].set(run, mode="promise_in_bounds")


def _unique_rows(rows: jax.Array, consecutive: bool) -> tuple[Any, jax.Array, jax.Array]:
    """The distinct rows, the index of each row among them, and how often each occurs."""
    order, new, inverse = _runs(rows, consecutive)
    (starts,) = true_places(new)
    if isinstance(new, jax.core.Tracer):
        return rows[order[starts]], inverse, jnp.diff(starts, append=rows.shape[0]).astype(np.int64)
    counts = np.diff(starts, append=rows.shape[0]).astype(np.int64)
    chosen = np.asarray(rows)[np.asarray(order)[starts]]
    return chosen, inverse, values_beside(counts, rows)


@interpreted
def _sorted_runs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sorted elements of a vector, and which of them begin a run."""
    ordered = lax.sort(x)
    return ordered, (ordered != jnp.roll(ordered, 1)) | (lax.iota(np.int32, x.size) == 0)


def _unique_integers(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The distinct integers, and how often each occurs. XLA sorts integers alone six times as fast as with an index."""
    ordered, new = _sorted_runs(reshaped(x, (x.size,)))
    (starts,) = true_places(new)
    if isinstance(new, jax.core.Tracer):
        return ordered[starts], jnp.diff(starts, append=x.size).astype(np.int64)
    ordered = np.asarray(ordered)
    counts = np.diff(starts, append=x.size).astype(np.int64)
    return values_beside(ordered[starts], x), values_beside(counts, x)


def _unique_elements(x: jax.Array, consecutive: bool, return_inverse: bool, return_counts: bool):
    nothing = values_beside(np.zeros(0, np.int64), x)
    if is_integral(x.dtype) and not consecutive and not return_inverse:
        found, counts = _unique_integers(x)
        return found, nothing, counts if return_counts else nothing
    found, inverse, counts = _unique_rows(reshaped(x, (x.size, 1)), consecutive)
    inverse = reshaped(inverse, x.shape) if return_inverse else nothing
    return values_beside(found[:, 0], x), inverse, counts if return_counts else nothing


# aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor,
#     Tensor)
@kernel("_unique2", eager=True)
def unique2(self, sorted=True, return_inverse=False, return_counts=False):
    return _unique_elements(self, False, return_inverse, return_counts)


# aten::_unique(Tensor self, bool sorted=True, bool return_inverse=False) -> (Tensor, Tensor)
@kernel("_unique", eager=True)
def unique(self, sorted=True, return_inverse=False):
    return _unique_elements(self, False, return_inverse, False)[:2]


# aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor,
#     Tensor, Tensor)
@kernel("unique_consecutive", eager=True)
def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    if dim is None or self.ndim == 0:
        return _unique_elements(self, True, return_inverse, return_counts)
    return _unique_along(self, dim, True)


# aten::unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False,
#     bool return_counts=False) -> (Tensor, Tensor, Tensor)
@kernel("unique_dim", eager=True)
def unique_dim(self, dim, sorted=True, return_inverse=False, return_counts=False):
    return _unique_along(self, dim, False)


# aten::unique_dim_consecutive(Tensor self, int dim, bool return_inverse=False, bool return_counts=False) -> (Tensor,
#     Tensor, Tensor)
@kernel("unique_dim_consecutive", eager=True)
def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    return _unique_along(self, dim, True)


def _unique_along(x: jax.Array, dim: int, consecutive: bool):
    """The distinct slices along a dimension; ATen returns inverse and counts whether they are asked for or not."""
    if not -max(x.ndim, 1) <= dim < max(x.ndim, 1):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.ndim}, {x.ndim - 1}], but got {dim})"
        )
    if x.ndim == 0:
        return _unique_elements(x, consecutive, True, True)
    first = jnp.moveaxis(x, dim, 0)
    if 0 in first.shape[1:]:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    rows = reshaped(first, (first.shape[0], math.prod(first.shape[1:])))
    found, inverse, counts = _unique_rows(rows, consecutive)
    found = np.moveaxis(found.reshape(found.shape[0], *first.shape[1:]), 0, dim)
    return values_beside(found, x), inverse, counts
