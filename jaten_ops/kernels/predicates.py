"""Predicates and properties of tensors, with one bool or number as their result; and membership."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, get_default_float, is_inexact, promote
from .arithmetic import add, mul, sub
from .sorting import binary_search

_SEARCH_FROM = 32  # elements; fewer are compared one by one


# aten::equal(Tensor self, Tensor other) -> bool
@kernel("equal")
def equal(self, other):
    """True if all elements are equal. NaN is unequal to itself, also in the same tensor."""
    if self.shape != other.shape:
        return np.False_
    a, b = promote(self, other)
    return jnp.all(a == b)


# aten::allclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08,
#     bool equal_nan=False) -> bool
@kernel("allclose", static=("rtol", "atol"))
def allclose(self, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """As `isclose` of aten/src/ATen/native/TensorCompare.cpp: it compares integers as torch's default dtype."""
    close = self == other
    if equal_nan:
        close = close | ((self != self) & (other != other))
    if rtol == 0 and atol == 0:
        return jnp.all(close)
    if not is_inexact(self.dtype):
        self, other = cast(self, get_default_float()), cast(other, get_default_float())
    difference = jnp.abs(sub(self, other))
    allowed = add(jnp.abs(mul(other, rtol)), atol)
    return jnp.all(close | (jnp.isfinite(difference) & (difference <= allowed)))


# aten::is_same_size(Tensor self, Tensor other) -> bool
@kernel("is_same_size")
def is_same_size(self, other):
    return np.bool_(self.shape == other.shape)


# Of a dense tensor. A sparse one has no counterpart here.


# aten::dense_dim(Tensor self) -> int
@kernel("dense_dim")
def dense_dim(self):
    return np.int64(self.ndim)


# aten::sparse_dim(Tensor self) -> int
@kernel("sparse_dim")
def sparse_dim(self):
    return np.int64(0)


# Membership


def _contains(elements: jax.Array, tests: jax.Array) -> jax.Array:
    """For each element, whether it is among `tests`, (n,); NaN is not."""
    if tests.shape[0] < _SEARCH_FROM:
        return jnp.any(elements[..., None] == tests, -1)
    tests = jnp.sort(tests)
    at = jnp.minimum(binary_search(tests, elements, False), tests.shape[0] - 1)
    return tests.at[at].get(mode="promise_in_bounds") == elements


# aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False,
#     bool invert=False) -> Tensor
# aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False,
#     bool invert=False) -> Tensor
# aten::isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False,
#     bool invert=False) -> Tensor
@kernel("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Membership; `assume_unique` only affects how ATen searches."""
    a, b = promote(elements, test_elements)
    found = _contains(a, lax.reshape(b, (b.size,)))
    return ~found if invert else found
