"""Operators that check a condition, and return nothing, or a token that fixes their order in a graph.

A number that a graph computes from values is an array, and its check is an output of the executable; other numbers
are checked at once. Source: aten/src/ATen/native/TensorCompare.cpp and Constraints.cpp.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.promotion import get_default_float


def _check(ok: Any, message: str) -> None:
    """Raises RuntimeError: at once if `ok` is known, after the call if it is an array."""
    if isinstance(ok, jax.Array):
        require(ok, RuntimeError, message)
    elif not ok:
        raise RuntimeError(message)


# aten::_assert_async(Tensor self) -> ()
# aten::_assert_async.msg(Tensor self, str assert_msg) -> ()
@kernel("_assert_async", "_assert_async.msg")
def assert_async(self, assert_msg="Expected Tensor with single nonzero value, but got zero"):
    if self.size != 1:
        values = "more than one value" if self.size else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {values} is ambiguous")
    require(self != 0, RuntimeError, assert_msg)


# aten::_functional_assert_async.msg(Tensor self, str assert_msg, Tensor dep_token) -> Tensor
@kernel("_functional_assert_async.msg")
def functional_assert_async(self, assert_msg, dep_token):
    assert_async(self, assert_msg)
    return lax.copy_p.bind(dep_token)


# Eager: outside of graphs the number must be known, not traced


# aten::_assert_scalar(Scalar self, str assert_msg) -> ()
@kernel("_assert_scalar", eager=True)
def assert_scalar(self, assert_msg):
    _check(self != 0, assert_msg)


# aten::_functional_assert_scalar(Scalar self, str assert_msg, Tensor dep_token) -> Tensor
@kernel("_functional_assert_scalar", eager=True)
def functional_assert_scalar(self, assert_msg, dep_token):
    assert_scalar(self, assert_msg)
    return lax.copy_p.bind(dep_token)


def _constrain(size: Any, min: int | None, max: int | None) -> None:
    info = np.iinfo(np.int64)
    low, high = info.min if min is None else min, info.max if max is None else max
    _check(low <= high, f"Max must be greater than or equal to min. Got min={low} max={high}")
    size = size if isinstance(size, jax.Array) else int(size)
    shown = "a size" if isinstance(size, jax.Array) else size
    _check((low <= size) & (size <= high), f"Invalid value range for {shown} between [{low}, {high}].")


# aten::sym_constrain_range(Scalar size, *, int? min=None, int? max=None) -> ()
@kernel("sym_constrain_range", eager=True)
def sym_constrain_range(size, *, min=None, max=None):
    _constrain(size, min, max)


# aten::sym_constrain_range_for_size(Scalar size, *, int? min=None, int? max=None) -> ()
@kernel("sym_constrain_range_for_size", eager=True)
def sym_constrain_range_for_size(size, *, min=None, max=None):
    message = "Max value to constrain_range_for_size must be greater than 2. got: "
    _check(max is None or max > 2, f"{message}{max}")
    _constrain(size, 0 if min is None else min, max)


# aten::_functional_sym_constrain_range(Scalar size, int? min, int? max, Tensor dep_token) -> Tensor
@kernel("_functional_sym_constrain_range", eager=True)
def functional_sym_constrain_range(size, min, max, dep_token):
    _constrain(size, min, max)
    return lax.copy_p.bind(dep_token)


# aten::_functional_sym_constrain_range_for_size(Scalar size, int? min, int? max, Tensor dep_token) -> Tensor
@kernel("_functional_sym_constrain_range_for_size", eager=True)
def functional_sym_constrain_range_for_size(size, min, max, dep_token):
    sym_constrain_range_for_size(size, min=min, max=max)
    return lax.copy_p.bind(dep_token)


# aten::_assert_tensor_metadata(Tensor a, SymInt[]? size=None, SymInt[]? stride=None, ScalarType? dtype=None, *,
#     Device? device=None, Layout? layout=None) -> ()
@kernel("_assert_tensor_metadata")
def assert_tensor_metadata(a, size=None, stride=None, dtype=None):
    """Checks size and dtype. The fake checks strides, device and layout, which arrays do not have."""
    _check(size is None or tuple(size) == a.shape, f"Tensor sizes mismatch! Expected: {size}, Got: {a.shape}")
    _check(dtype is None or dtype == a.dtype, f"Tensor dtype mismatch! Expected: {dtype}, Got: {a.dtype}")


# aten::_make_dep_token(*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
#     MemoryFormat? memory_format=None) -> Tensor
@kernel("_make_dep_token")
def make_dep_token(*, dtype=None):
    return jnp.zeros((), dtype or get_default_float())


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# aten::_print(str s) -> ()
@kernel("_print", eager=True)
def print_(s):
    jax.debug.callback(lambda: _write(s))
