"""Reductions: sums, means, extrema, any and all."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.reductions import reduce_prod
from ..kernel_base.extrema import Reduce, reduce_max, reduce_min
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import (
    cast,
    compute_type,
    is_complex,
    is_float,
    is_inexact,
    is_integral,
    size_number,
    to_real,
)

# Dimensions


def axes_of(x: jax.Array, dim: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The dimensions to reduce as sorted non-negative ints; None and () stand for all of them."""
    if dim is None or dim == () or x.ndim == 0:
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    return tuple(sorted(d % x.ndim for d in dims))


def keep(out: jax.Array, axes: tuple[int, ...], keepdim: bool) -> jax.Array:
    """A reduced array, with the reduced dimensions as 1 if `keepdim`."""
    return lax.expand_dims(out, axes) if keepdim else out


def with_axis(x: jax.Array, dim: int) -> tuple[jax.Array, int]:
    """An array of at least one dimension, and `dim` as a non-negative int."""
    return (x, dim % x.ndim) if x.ndim else (lax.reshape(x, (1,)), 0)


def without_axis(out: jax.Array, axis: int, keepdim: bool, ndim: int) -> jax.Array:
    """A result that has 1 at the reduced axis, as the result for an input of `ndim` dimensions."""
    return out if keepdim and ndim else lax.squeeze(out, (axis,))


def count(x: jax.Array, axes: tuple[int, ...]) -> int:
    """The number of elements that each result is made of."""
    return math.prod(x.shape[a] for a in axes)


def positions(shape: tuple[int, ...], axis: int) -> jax.Array:
    """The index along an axis of each element, in the narrowest type that is safe and fast."""
    dtype = np.dtype("int32") if shape[axis] < 2**31 else np.dtype("int64")
    return lax.broadcasted_iota(dtype, shape, axis)


# Sums and products


def in_result_dtype(x: jax.Array, dtype: np.dtype | None) -> jax.Array:
    """The operand of a sum or product in its result's dtype: integers are summed as int64."""
    if dtype is None:
        dtype = np.dtype("int64") if is_integral(x.dtype) else x.dtype
    return cast(x, dtype)


def total(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The sum, computed in ATen's accumulation type and rounded once."""
    if x.dtype == bool:
        return lax.reduce_or(x, axes)
    return cast(_narrow_sum(cast(x, compute_type(x.dtype)), axes), x.dtype)


def _narrow_sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The sum without dimensions of one element between others, with which XLA's CPU takes ten times as long."""
    ones = [d for d, n in enumerate(x.shape) if isinstance(n, int) and n == 1 and d not in axes]
    between = [d for d in ones if any(d > a and a not in ones for a in range(x.ndim))]
    if not between or not axes:
        return lax.reduce_sum(x, axes)
    kept = [d for d in range(x.ndim) if d not in between]
    total = lax.reduce_sum(lax.squeeze(x, between), tuple(map(kept.index, axes)))
    return lax.reshape(total, [n for d, n in enumerate(x.shape) if d not in axes])


# aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@kernel("sum.dim_IntList")
def sum_dim(self, dim, keepdim=False, dtype=None):
    axes, terms = axes_of(self, dim), in_result_dtype(self, dtype)
    if is_integral(self.dtype) and is_float(terms.dtype):  # large terms may cancel and leave the small ones
        sums = cast(lax.reduce_sum(cast(terms, "float64"), axes), terms.dtype)
    else:
        sums = total(terms, axes)
    return keep(sums, axes, keepdim)


# aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
@kernel("sum")
def sum_(self, dtype=None):
    return sum_dim(self, None, dtype=dtype)


# aten::nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@kernel("nansum")
def nansum(self, dim=None, keepdim=False, dtype=None):
    if is_complex(self.dtype):
        raise RuntimeError("nansum does not support complex inputs")
    if is_float(self.dtype):
        self = jnp.where(lax.ne(self, self), jnp.zeros((), self.dtype), self)
    return sum_dim(self, dim, keepdim, dtype)


# aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor
@kernel("prod")
def prod(self, dtype=None):
    return _product(in_result_dtype(self, dtype), axes_of(self, None))


# aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@kernel("prod.dim_int")
def prod_dim(self, dim, keepdim=False, dtype=None):
    axes = axes_of(self, dim)
    return keep(_product(in_result_dtype(self, dtype), axes), axes, keepdim)


def _product(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    if x.dtype == bool:
        return lax.reduce_and(x, axes)
    return cast(reduce_prod(cast(x, compute_type(x.dtype)), axes), x.dtype)


# aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor
@kernel("mean")
def mean(self, dtype=None):
    return mean_dim(self, None, dtype=dtype)


# aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@kernel("mean.dim")
def mean_dim(self, dim, keepdim=False, dtype=None):
    self = self if dtype is None else cast(self, dtype)
    axes = axes_of(self, dim)
    sums = _narrow_sum(cast(self, compute_type(self.dtype)), axes)
    n = size_number(count(self, axes), to_real(sums.dtype))
    return keep(cast(sums / n, self.dtype), axes, keepdim)


# aten::count_nonzero(Tensor self, int? dim=None) -> Tensor
# aten::count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor
@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self, dim=None):
    axes = axes_of(self, dim)
    narrow = "int32" if count(self, axes) < 2**31 else "int64"  # twice as many fit into a vector
    return cast(lax.reduce_sum(cast(cast(self, bool), narrow), axes), "int64")


# aten::hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor
@kernel("hash_tensor")
def hash_tensor(self, dim=(), keepdim=False, mode=0):
    """The xor of all elements as 64 bits: floats as float64, integers as int64 (aten/src/ATen/native/ReduceOps.cpp)."""
    wide = cast(self, "float64" if is_inexact(self.dtype) else "int64")
    axes = axes_of(self, dim)
    return keep(lax.reduce_xor(lax.bitcast_convert_type(wide, np.dtype("uint64")), axes), axes, keepdim)


# any and all


def _logical_type(x: jax.Array) -> np.dtype:
    """bool, or uint8 for uint8, which was ATen's bool once."""
    return x.dtype if x.dtype == np.uint8 else np.dtype(bool)


def _logical(reduce):
    def logical(self, dim=None, keepdim=False):
        axes = axes_of(self, dim)
        return cast(keep(reduce(cast(self, bool), axes), axes, keepdim), _logical_type(self))

    return logical


def _logical_dims(reduce):
    def logical(self, dim=None, keepdim=False):
        if dim == ():  # here an empty list means no dimension
            return cast(cast(self, bool), _logical_type(self))
        return _logical(reduce)(self, dim, keepdim)

    return logical


# aten::{any, all}(Tensor self) -> Tensor
# aten::{any, all}.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
# aten::{any, all}.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
for _name, _reduce in {"any": lax.reduce_or, "all": lax.reduce_and}.items():
    kernel(_name, f"{_name}.dim")(_logical(_reduce))
    kernel(f"{_name}.dims")(_logical_dims(_reduce))


# aten::_is_any_true(Tensor self) -> Tensor
@kernel("_is_any_true")
def is_any_true(self):
    return lax.reduce_or(self, axes_of(self, None))


# aten::_is_all_true(Tensor self) -> Tensor
@kernel("_is_all_true")
def is_all_true(self):
    return lax.reduce_and(self, axes_of(self, None))


# Extrema


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def chosen(x: jax.Array, values: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    """`values`, which are those of `x` at `indices` along an axis, differentiable as such.

    The indices are needed only for the gradient, so they cost nothing in a program that has none.
    """
    return values


@chosen.defjvp
def _chosen_jvp(axis, primals, tangents):
    x, values, indices = primals
    out = chosen(x, values, indices, axis)
    if indices.shape[axis] != 1:
        return out, gather_along(tangents[0], indices, axis)
    picked = jnp.where(positions(x.shape, axis) == indices, tangents[0], jnp.zeros((), x.dtype))
    return out, lax.expand_dims(lax.reduce_sum(picked, (axis,)), (axis,))


def gather_along(x: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    """`torch.gather` with indices that are known to be in bounds."""
    return jnp.take_along_axis(x, indices, axis, mode="promise_in_bounds")


def chosen_values(x: jax.Array, values: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    """`chosen` without gradients into `values` itself."""
    return chosen(x, lax.stop_gradient(values), indices, axis) if is_inexact(x.dtype) else values


def extremum_index(x: jax.Array, extremum: jax.Array, axis: int) -> jax.Array:
    """The first position along an axis of the extremum (1 long there), which is NaN if there is one."""
    hit = lax.eq(x, jnp.broadcast_to(extremum, x.shape))
    if is_float(x.dtype):
        hit = hit | lax.ne(x, x)
    at = positions(x.shape, axis)
    first = lax.reduce_min(jnp.where(hit, at, size_number(x.shape[axis], at.dtype)), (axis,))
    return lax.expand_dims(first, (axis,))


def _index_of(reduce: Reduce, x: jax.Array, axis: int, values: jax.Array | None = None) -> jax.Array:
    """The first position of the greatest or the least element along an axis, which stays as 1; a NaN counts as both.

    `values` are those elements, if they are known.
    """
    find, index_type = lax.argmax if reduce is reduce_max else lax.argmin, positions(x.shape, axis).dtype

    def compared(x: jax.Array, values: jax.Array | None) -> jax.Array:
        found = lax.expand_dims(reduce(x, (axis,)), (axis,)) if values is None else values
        return extremum_index(x, found, axis)

    # two plain reductions are vectorised by XLA's CPU compiler, the reduction of pairs in `find` is not
    return by_platform(
        *(x, values),
        cpu=compared,
        default=lambda x, _: lax.expand_dims(find(x, axis, index_type), (axis,)),
    )


def _refuse_complex(x: jax.Array, reduce: Reduce) -> None:
    if is_complex(x.dtype):
        raise RuntimeError(f"{'max' if reduce is reduce_max else 'min'}(): does not support complex input")


def _max_dim(reduce):
    def max_dim(self, dim, keepdim=False):
        _refuse_complex(self, reduce)
        x, axis = with_axis(self, dim)
        fixed = lax.stop_gradient(x)
        values = lax.expand_dims(reduce(fixed, (axis,)), (axis,))
        indices = _index_of(reduce, fixed, axis, values)
        values = chosen_values(x, values, indices, axis)
        return tuple(without_axis(out, axis, keepdim, self.ndim) for out in (values, cast(indices, "int64")))

    return max_dim


def _argmax(reduce):
    def argmax(self, dim=None, keepdim=False):
        if self.dtype == bool:
            raise RuntimeError("argmax() and argmin() do not support bool input")
        _refuse_complex(self, reduce)
        x, axis = with_axis(lax.reshape(self, (self.size,)) if dim is None else self, 0 if dim is None else dim)
        indices = cast(_index_of(reduce, lax.stop_gradient(x), axis), "int64")
        if dim is not None:
            return without_axis(indices, axis, keepdim, self.ndim)
        return lax.reshape(indices, (1,) * self.ndim if keepdim else ())

    return argmax


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def extremum(x: jax.Array, reduce: Reduce, axes: tuple[int, ...], nan_ties: bool) -> jax.Array:
    """The extremum over some axes, which stay as 1; its gradient goes evenly to all ties.

    Where the result is NaN, the gradient goes to the NaN if `nan_ties`, and is NaN everywhere if not.
    """
    return lax.expand_dims(reduce(x, axes), axes)


@extremum.defjvp
def _extremum_jvp(reduce, axes, nan_ties, primals, tangents):
    (x,), (tangent,) = primals, tangents
    out = extremum(x, reduce, axes, nan_ties)
    weights = cast(share_of_ties(x, out, axes, nan_ties), x.dtype)
    return out, lax.expand_dims(lax.reduce_sum(weights * tangent, axes), axes)


def share_of_ties(x: jax.Array, value: jax.Array, axes: tuple[int, ...], nan_ties: bool) -> jax.Array:
    """1 / n for the n elements that equal `value`, 0 for the others."""
    hit = x == value
    if nan_ties:
        hit = hit | ((x != x) & (value != value))
    hit = cast(hit, compute_type(x.dtype))
    return hit / lax.expand_dims(lax.reduce_sum(hit, axes), axes)


def _even_extremum(x: jax.Array, reduce: Reduce, axes: tuple[int, ...], keepdim: bool = False, nan_ties: bool = False):
    if not is_float(x.dtype):
        _refuse_complex(x, reduce)
        return keep(reduce(x, axes), axes, keepdim)
    out = extremum(x, reduce, axes, nan_ties)
    return out if keepdim else lax.squeeze(out, axes)


def _amax(reduce):
    def amax(self, dim=(), keepdim=False):
        return _even_extremum(self, reduce, axes_of(self, dim), keepdim)

    return amax


def _max(reduce):
    def max_(self):
        return _even_extremum(self, reduce, axes_of(self, None), nan_ties=True)

    return max_


# aten::{max, min}(Tensor self) -> Tensor
# aten::{max, min}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
# aten::{argmax, argmin}(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
# aten::{amax, amin}(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
for _name, _reduce in {"max": reduce_max, "min": reduce_min}.items():
    kernel(_name)(_max(_reduce))
    kernel(f"{_name}.dim")(_max_dim(_reduce))
    kernel(f"arg{_name}")(_argmax(_reduce))
    kernel(f"a{_name}")(_amax(_reduce))


# aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)
# aten::_aminmax(Tensor self) -> (Tensor, Tensor)
# aten::_aminmax.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)
@kernel("aminmax", "_aminmax", "_aminmax.dim")
def aminmax(self, dim=None, keepdim=False):
    axes = axes_of(self, dim)
    return tuple(_even_extremum(self, reduce, axes, keepdim) for reduce in (reduce_min, reduce_max))
