"""New tensors from sizes and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaten_ops.registry import kernel

from ..kernel_base.number_ranges import scalar, single
from ..kernel_base.promotion import (
    cast,
    compute_type,
    get_default_float,
    is_complex,
    is_float,
    is_integral,
    result_type,
    to_complex,
)
from .conversion import convert


def _filled(size: Any, value: Any, dtype: np.dtype) -> jax.Array:
    made = single(value, dtype) if all(n == 1 for n in size) else scalar(value, dtype)
    return lax.broadcast(made, size)


# aten::{zeros, _efficientzerotensor}(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("zeros", "_efficientzerotensor", "empty.memory_format")
def zeros(size, *, dtype=None):
    return _filled(size, 0, dtype or get_default_float())


# aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("ones")
def ones(size, *, dtype=None):
    return _filled(size, 1, dtype or get_default_float())


# aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("empty_strided", "empty_permuted")
def empty_strided(size, stride, *, dtype=None):
    return zeros(size, dtype=dtype)


# aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("full")
def full(size, fill_value, *, dtype=None):
    return _filled(size, fill_value, dtype or result_type(fill_value))


# aten::scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("scalar_tensor")
def scalar_tensor(s, *, dtype=None):
    return single(s, dtype or get_default_float())


# aten::{zeros_like, empty_like}(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("zeros_like", "empty_like")
def zeros_like(self, *, dtype=None):
    return _filled(self.shape, 0, dtype or self.dtype)


# aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("ones_like")
def ones_like(self, *, dtype=None):
    return _filled(self.shape, 1, dtype or self.dtype)


# aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
@kernel("full_like")
def full_like(self, fill_value, *, dtype=None):
    return _filled(self.shape, fill_value, dtype or self.dtype)


# aten::{new_zeros, new_empty}(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("new_zeros", "new_empty")
def new_zeros(self, size, *, dtype=None):
    return _filled(size, 0, dtype or self.dtype)


# aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("new_empty_strided")
def new_empty_strided(self, size, stride, *, dtype=None):
    return _filled(size, 0, dtype or self.dtype)


# aten::new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("new_ones")
def new_ones(self, size, *, dtype=None):
    return _filled(size, 1, dtype or self.dtype)


# aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("new_full")
def new_full(self, size, fill_value, *, dtype=None):
    return _filled(size, fill_value, dtype or self.dtype)


# aten::_new_zeros_with_same_feature_meta(Tensor self, Tensor other, *, int self_num_batch_dims=0) -> Tensor
@kernel("_new_zeros_with_same_feature_meta")
def new_zeros_with_same_feature_meta(self, other, *, self_num_batch_dims=0):
    return _filled((*self.shape[:self_num_batch_dims], *other.shape), 0, other.dtype)


# aten::fill.Scalar(Tensor self, Scalar value) -> Tensor
@kernel("fill.Scalar")
def fill_scalar(self, value):
    return _filled(self.shape, value, self.dtype)


# aten::fill.Tensor(Tensor self, Tensor value) -> Tensor
@kernel("fill.Tensor")
def fill_tensor(self, value):
    return lax.broadcast(convert(value, self.dtype), self.shape)


# aten::zero(Tensor self) -> Tensor
@kernel("zero")
def zero(self):
    return _filled(self.shape, 0, self.dtype)


# aten::complex(Tensor real, Tensor imag) -> Tensor
@kernel("complex")
def complex_(real, imag):
    return lax.complex(*jnp.broadcast_arrays(real, imag))


# aten::eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("eye", "eye.m", static=("n", "m"))
def eye(n, m=None, *, dtype=None):
    shape = (n, n if m is None else m)
    row, column = (lax.broadcasted_iota(np.int32, shape, d) for d in (0, 1))
    return cast(row == column, dtype or get_default_float())


# Ranges. Source: aten/src/ATen/native/RangeFactories.cpp and cpu/RangeFactoriesKernel.cpp


# aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
@kernel("arange", static=("end",))
def arange(end, *, dtype=None):
    return arange_start_step(0, end, 1, dtype=dtype)


# aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("arange.start", "arange.start_step", static=("start", "end", "step"))
def arange_start_step(start, end, step=1, *, dtype=None):
    numbers = start, end, step
    if dtype is None:
        kinds = [0 if is_symbolic_dim(n) else n for n in numbers]
        dtype = np.dtype("int64") if is_integral(result_type(*kinds)) else get_default_float()
    if dtype == np.int64:
        start, end, step = [n if is_symbolic_dim(n) else int(n) for n in numbers]
        return _steps(start, step, -((start - end) // step), dtype)
    if any(map(is_symbolic_dim, numbers)) and all(is_symbolic_dim(n) or float(n).is_integer() for n in numbers):
        start, end, step = [n if is_symbolic_dim(n) else int(n) for n in numbers]
        return _steps(start, step, -((start - end) // step), dtype)
    return _steps(start, step, math.ceil((end - start) / step), dtype)


# aten::range(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::range.step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("range", "range.step", static=("start", "end", "step"))
def range_(start, end, step=1, *, dtype=None):
    if dtype is not None and is_integral(dtype):
        start, end, step = int(start), int(end), int(step)
    return _steps(start, step, math.floor((end - start) / step) + 1, dtype or get_default_float())


def _steps(start: float, step: float, count: int, dtype: np.dtype) -> jax.Array:
    """start, start + step, ..., in double precision for floats, as in ATen."""
    if is_symbolic_dim(start) or is_symbolic_dim(step) or is_symbolic_dim(count):  # in an exported program
        return cast(jnp.arange(count, dtype=np.int64) * step + start, dtype)
    if is_integral(dtype):
        start, step = int(start), int(step)
    exact = isinstance(start, int) and isinstance(step, int) and is_integral(dtype)
    work = np.dtype("int64") if exact else np.dtype("float64")
    if float(start).is_integer() and float(step).is_integer() and abs(start) + abs(step) * count < 2**31:
        work = np.dtype("int32")
        start, step = int(start), int(step)
    index = lax.iota(work, max(count, 0))
    if step != 1:
        index = index * np.array(step, work)
    return cast(index + np.array(start, work) if start else index, dtype)


_LINSPACE = ("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
_LOGSPACE = tuple(name.replace("lin", "log") for name in _LINSPACE)


# aten::linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::linspace.Tensor_Tensor(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::linspace.Tensor_Scalar(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::linspace.Scalar_Tensor(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel(*_LINSPACE)
def linspace(start, end, steps, *, dtype=None):
    dtype = _spaced_type(start, end, dtype)
    return convert(_spaced(scalar(start, dtype), scalar(end, dtype), steps), dtype)


# aten::logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::logspace.Tensor_Tensor(Tensor start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
# aten::logspace.Tensor_Scalar(Tensor start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
# aten::logspace.Scalar_Tensor(Scalar start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
@kernel(*_LOGSPACE, static=("base",))
def logspace(start, end, steps, base=10.0, *, dtype=None):
    dtype = _spaced_type(start, end, dtype)
    if steps == 1:  # computed in double, from a start that is not rounded
        wide = np.dtype("complex128" if is_complex(dtype) else "float64")
        return lax.reshape(convert(lax.pow(lax.full((), base, wide), cast(start, wide)), dtype), (1,))
    exponents = _spaced(scalar(start, dtype), scalar(end, dtype), steps, rounding=False)
    return convert(lax.pow(lax.full_like(exponents, base), exponents), dtype)


def _spaced_type(start: Any, end: Any, dtype: np.dtype | None) -> np.dtype:
    if not any(is_complex(jnp.result_type(x)) for x in (start, end)):
        return dtype or get_default_float()
    if dtype is not None and not is_complex(dtype):
        raise RuntimeError(f"inferred dtype {to_complex(get_default_float())} can't be safely cast to {dtype}")
    return dtype or to_complex(get_default_float())


def _rounding_to(dtype: np.dtype) -> Callable[[jax.Array], jax.Array]:
    """Rounds to what a float16 or bfloat16 holds, in float32: XLA drops pairs of conversions that would do the same."""
    if not is_float(dtype) or dtype.itemsize >= 4:
        return lambda x: x
    info = jnp.finfo(dtype)
    return lambda x: lax.reduce_precision(x, info.nexp, info.nmant)


def _spaced(start: jax.Array, end: jax.Array, steps: int, rounding: bool = True) -> jax.Array:
    """Evenly spaced values, the first half counted from `start`, the second from `end`.

    `rounding` rounds each operation to a short float's precision, as ATen's linspace does and its logspace does not.
    """
    work = np.dtype("float64") if is_integral(start.dtype) else compute_type(start.dtype)
    rounded = _rounding_to(start.dtype) if rounding else lambda x: x
    start, end = cast(start, work), cast(end, work)
    if steps == 1:
        return lax.reshape(start, (1,))
    # a barrier, or XLA divides by multiplying with the reciprocal of the constant, which is not exact
    parts = lax.optimization_barrier(rounded(np.array(max(steps - 1, 1), work)))
    step = rounded(rounded(end - start) / parts)
    index = lax.iota(np.int32, steps)
    forward = rounded(start + rounded(step * rounded(cast(index, work))))
    backward = rounded(end - rounded(step * rounded(cast(np.int32(steps - 1) - index, work))))
    return jnp.where(index < np.int32(steps // 2), forward, backward)


# Windows. Source: aten/src/ATen/native/TensorFactories.cpp, which rounds each step to the dtype

_Rounding = Callable[[jax.Array], jax.Array]


def _window(
    length: int, periodic: bool, dtype: np.dtype | None, formula: Callable[[jax.Array, int, _Rounding], jax.Array]
) -> jax.Array:
    """`formula` of 0, 1, ..., the number of intervals, and the rounding; a periodic window has one interval more."""
    dtype = dtype or get_default_float()
    if is_integral(dtype):
        raise RuntimeError(f"a window function expects floating point dtypes, got: {dtype}")
    if length <= 1:
        return lax.full((length,), 1, dtype)
    intervals = length if periodic else length - 1
    return cast(formula(lax.iota(compute_type(dtype), length), intervals, _rounding_to(dtype)), dtype)


# aten::bartlett_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::bartlett_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("bartlett_window", "bartlett_window.periodic")
def bartlett_window(window_length, periodic=True, *, dtype=None):
    def formula(x: jax.Array, n: int, rounded: _Rounding) -> jax.Array:
        rising = rounded(rounded(x) * (2 / n))
        return jnp.where(x <= n // 2, rising, rounded(2 - rising))

    return _window(window_length, periodic, dtype, formula)


# aten::blackman_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::blackman_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("blackman_window", "blackman_window.periodic")
def blackman_window(window_length, periodic=True, *, dtype=None):
    def formula(x: jax.Array, n: int, rounded: _Rounding) -> jax.Array:
        angle = rounded(rounded(x) * (math.pi / n))
        first, second = (rounded(rounded(jnp.cos(rounded(angle * k))) * a) for k, a in ((2, 0.5), (4, 0.08)))
        return rounded(second - first) + 0.42

    return _window(window_length, periodic, dtype, formula)


# aten::hamming_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::hamming_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::hamming_window.periodic_alpha(int window_length, bool periodic, float alpha, *, ScalarType? dtype=None,
#     Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
# aten::hamming_window.periodic_alpha_beta(int window_length, bool periodic, float alpha, float beta, *,
#     ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("hamming_window", "hamming_window.periodic", "hamming_window.periodic_alpha")
@kernel("hamming_window.periodic_alpha_beta")
def hamming_window(window_length, periodic=True, alpha=0.54, beta=0.46, *, dtype=None):
    def formula(x: jax.Array, n: int, rounded: _Rounding) -> jax.Array:
        cosine = rounded(jnp.cos(rounded(rounded(x) * (2 * math.pi / n))))
        return alpha - rounded(cosine * beta)

    return _window(window_length, periodic, dtype, formula)


# aten::hann_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::hann_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("hann_window", "hann_window.periodic")
def hann_window(window_length, periodic=True, *, dtype=None):
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype)


# aten::kaiser_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# aten::kaiser_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
# aten::kaiser_window.beta(int window_length, bool periodic, float beta, *, ScalarType? dtype=None, Layout? layout=None,
#     Device? device=None, bool? pin_memory=None) -> Tensor
@kernel("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None):
    def formula(x: jax.Array, n: int, rounded: _Rounding) -> jax.Array:
        ratio = x * (2 / n) - 1
        root = beta * jnp.sqrt(jnp.maximum(1 - ratio * ratio, 0))
        # i0(x) is i0e(x) exp(x)
        return lax.bessel_i0e(root) / lax.bessel_i0e(cast(beta, x.dtype)) * jnp.exp(root - beta)

    return _window(window_length, periodic, dtype, formula)
