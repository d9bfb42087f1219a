"""Bitwise logic and shifts of integers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import promote


def _shift_left(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.shift_left(*jnp.broadcast_arrays(a, b))


def _shift_right(a: jax.Array, b: jax.Array) -> jax.Array:
    signed = jnp.issubdtype(a.dtype, jnp.signedinteger)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    return shift(*jnp.broadcast_arrays(a, b))


# XLA and ATen agree on shifts by a negative number or by more than the width: all bits leave, and the sign remains
_FUNCTIONS: dict[tuple[str, ...], Callable[..., jax.Array]] = {
    ("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor"): jnp.bitwise_and,
    ("bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor"): jnp.bitwise_or,
    ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor"): jnp.bitwise_xor,
    (
        "bitwise_left_shift.Tensor",
        "bitwise_left_shift.Tensor_Scalar",
        "bitwise_left_shift.Scalar_Tensor",
        "__lshift__.Tensor",
        "__lshift__.Scalar",
    ): _shift_left,
    (
        "bitwise_right_shift.Tensor",
        "bitwise_right_shift.Tensor_Scalar",
        "bitwise_right_shift.Scalar_Tensor",
        "__rshift__.Tensor",
        "__rshift__.Scalar",
    ): _shift_right,
}


def _promoted(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def promoted(self, other):
        return fn(*promote(self, other))

    return promoted


# aten::{bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, __lshift__, bitwise_right_shift,
#     __rshift__}.Tensor(Tensor self, Tensor other) -> Tensor
# aten::{bitwise_and, bitwise_or, bitwise_xor, __lshift__, __rshift__}.Scalar(Tensor self, Scalar other) -> Tensor
# aten::{bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift}.Scalar_Tensor(Scalar self,
#     Tensor other) -> Tensor
# aten::{bitwise_left_shift, bitwise_right_shift}.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
for _overloads, _fn in _FUNCTIONS.items():
    kernel(*_overloads)(_promoted(_fn))


# aten::bitwise_not(Tensor self) -> Tensor
@kernel("bitwise_not")
def bitwise_not(self):
    return ~self
