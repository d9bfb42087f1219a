"""Addition, multiplication, division, powers and their kin, with ATen's promotion."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu import elementary, exponentials
from ..kernel_base import division
from ..kernel_base.checks import require
from ..kernel_base.derivatives import with_partials
from ..kernel_base.number_ranges import bound
from ..kernel_base.promotion import (
    cast,
    float_type,
    is_complex,
    is_inexact,
    is_integral,
    is_scalar,
    is_single,
    opmath,
    opmath_by,
    promote,
    promote_types,
    result_type,
    rounding_to,
)
from . import complex_functions
from .unary import reciprocal_root, truncate

_Rounding = Callable[[jax.Array], jax.Array]


def _times(factor: object, x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`factor * x`, the factor (1 in most calls) rounded to `dtype`."""
    if is_complex(x.dtype):
        return _times_complex(factor, x, dtype)
    return x if type(factor) in (int, float) and factor == 1 else cast(bound(factor, dtype), x.dtype) * x


def _times_complex(factor: object, x: jax.Array, dtype: np.dtype) -> jax.Array:
    """ATen's product, part by part: `1 * x` is NaN where a part of x is not finite, which XLA simplifies to x."""
    factor = cast(cast(factor, dtype), x.dtype)
    one, two, a, b = factor.real, factor.imag, x.real, x.imag
    return lax.complex(one * a - two * b, one * b + two * a)


# aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@kernel("add.Tensor", "add.Scalar")
def add(self, other, alpha=1):
    dtype = result_type(self, other)
    a, b = opmath(dtype, self, other)
    if dtype.kind == "b":
        return a | (b & cast(alpha, bool))
    return cast(a + _times(alpha, b, dtype), dtype)


# aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@kernel("sub.Tensor", "sub.Scalar")
def sub(self, other, alpha=1):
    dtype = result_type(self, other)
    a, b = opmath(dtype, self, other)
    if is_complex(dtype):  # it decides the sign of zeros
        return cast(a + _times(-alpha, b, dtype), dtype)
    return cast(a - _times(alpha, b, dtype), dtype)


# aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@kernel("rsub.Tensor", "rsub.Scalar")
def rsub(self, other, alpha=1):
    return sub(other, self, alpha)


# aten::_add_relu.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# aten::_add_relu.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@kernel("_add_relu.Tensor", "_add_relu.Scalar")
def _add_relu(self, other, alpha=1):
    total = add(self, other, alpha)
    limit = jnp.finfo(total.dtype).max if is_inexact(total.dtype) else jnp.iinfo(total.dtype).max
    return jnp.where(total > 0, jnp.minimum(total, cast(limit, total.dtype)), jnp.zeros_like(total))


# aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
# aten::mul.Scalar(Tensor self, Scalar other) -> Tensor
@kernel("mul.Tensor", "mul.Scalar")
def mul(self, other):
    dtype = result_type(self, other)
    a, b = opmath_by(dtype, self, other)
    return a & b if dtype.kind == "b" else cast(a * b, dtype)


divide = with_partials(division.quotient, lambda r, a, b: 1 / b, lambda r, a, b: -r / b)
"""`a / b`, correctly rounded, where XLA would multiply by 1 / b."""


def true_divide(self, other):
    dtype = float_type(self, other)
    a, b = opmath_by(dtype, self, other)
    return cast((complex_functions.divide if is_complex(dtype) else divide)(a, b), dtype)


# aten::div.Tensor(Tensor self, Tensor other) -> Tensor
# aten::div.Scalar(Tensor self, Scalar other) -> Tensor
kernel("div.Tensor", "div.Scalar")(true_divide)


def _require_nonzero(x: jax.Array) -> None:
    require(x != 0, RuntimeError, "ZeroDivisionError")


def _divide_integers(a: jax.Array, b: jax.Array) -> jax.Array:
    _require_nonzero(b)
    a, b = jnp.broadcast_arrays(a, b)
    return lax.div(a, b)


def _fmod(a: jax.Array, b: jax.Array) -> jax.Array:
    a, b = jnp.broadcast_arrays(a, b)
    if not is_inexact(a.dtype):
        _require_nonzero(b)
    return elementary.rem(a, b)


def _remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    mod = _fmod(a, b)
    return jnp.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)


def _divide_floor(a: jax.Array, b: jax.Array, rounded: _Rounding) -> jax.Array:
    """c10::div_floor_integer and c10::div_floor_floating (c10/util/generic_math.h), each step rounded."""
    if not is_inexact(a.dtype):
        quotient = _divide_integers(a, b)
        inexact = quotient * b != a
        return jnp.where(inexact & ((a < 0) != (b < 0)), quotient - 1, quotient)
    basic = rounded(division.quotient(a, b))
    mod = _fmod(a, b)
    exact = rounded(division.quotient(rounded(a - mod), b))
    exact = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), rounded(exact - 1), exact)
    floor = lax.floor(exact)
    floor = jnp.where(rounded(exact - floor) > 0.5, rounded(floor + 1), floor)
    floor = jnp.where(exact == 0, jnp.copysign(jnp.zeros_like(basic), basic), floor)
    return jnp.where(b == 0, basic, floor)


def _divide_truncate(a: jax.Array, b: jax.Array, rounded: _Rounding) -> jax.Array:
    return truncate(rounded(division.quotient(a, b))) if is_inexact(a.dtype) else _divide_integers(a, b)


_MODES = {"floor": _divide_floor, "trunc": _divide_truncate}


def _by_mode(mode: str, rounded: _Rounding) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return with_partials(lambda a, b: _MODES[mode](a, b, rounded), None, None)


def _as_it_is(x: jax.Array) -> jax.Array:
    return x


_floor = elementary.floor_of_quotient(lambda a, b: _divide_floor(a, b, _as_it_is))
_ROUNDED = {"floor": with_partials(_floor, None, None), "trunc": _by_mode("trunc", _as_it_is)}


# aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
# aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor
@kernel("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self, other, rounding_mode):
    if rounding_mode is None:
        return true_divide(self, other)
    dtype = result_type(self, other)
    # ATen's vectors of a short dtype round each step
    fn = _ROUNDED[rounding_mode] if is_single(other) else _by_mode(rounding_mode, rounding_to(dtype))
    return cast(fn(*opmath_by(dtype, self, other)), dtype)


# aten::floor_divide(Tensor self, Tensor other) -> Tensor
# aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor
@kernel("floor_divide", "floor_divide.Scalar")
def floor_divide(self, other):
    return div_mode(self, other, "floor")


_fmod_like_aten = with_partials(_fmod, lambda r, a, b: jnp.ones_like(r), lambda r, a, b: -_ROUNDED["trunc"](a, b))
_remainder_like_aten = with_partials(
    _remainder, lambda r, a, b: jnp.ones_like(r), lambda r, a, b: -_ROUNDED["floor"](a, b)
)


# aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor
# aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor
@kernel("fmod.Tensor", "fmod.Scalar")
def fmod(self, other):
    dtype = result_type(self, other)
    return cast(_fmod_like_aten(*opmath(dtype, self, other)), dtype)


# aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor
# aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor
# aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
@kernel("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(self, other):
    dtype = result_type(self, other)
    return cast(_remainder_like_aten(*opmath(dtype, self, other)), dtype)


# aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@kernel("addcmul")
def addcmul(self, tensor1, tensor2, *, value=1):
    dtype = result_type(self, tensor1, tensor2)
    a, b, c = opmath(dtype, self, tensor1, tensor2)
    return cast(a + _times(value, b, b.dtype) * c, dtype)


# aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@kernel("addcdiv")
def addcdiv(self, tensor1, tensor2, *, value=1):
    dtype = result_type(self, tensor1, tensor2)
    a, b, c = opmath(dtype, self, tensor1, tensor2)
    return cast(a + _times(value, b, b.dtype) / c, dtype)


def _lerp(a: jax.Array, b: jax.Array, weight: jax.Array) -> jax.Array:
    """Interpolation from the nearer end, for accuracy: aten/src/ATen/native/Lerp.h."""
    return jnp.where(lax.abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))


_lerp_like_aten = with_partials(_lerp, lambda r, a, b, w: 1 - w, lambda r, a, b, w: w, lambda r, a, b, w: b - a)


# aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor
# aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor
@kernel("lerp.Tensor", "lerp.Scalar")
def lerp(self, end, weight):
    dtype = result_type(self, end)
    a, b = opmath(dtype, self, end)
    return cast(_lerp_like_aten(a, b, cast(weight if is_scalar(weight) else cast(weight, dtype), a.dtype)), dtype)


# --- powers ---------------------------------------------------------------------------------------------------------


def _integer_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """An integer power by squaring, with wrap-around; 1 / base, rounded to zero, if it is negative (Pow.h: powi)."""
    base, exponent = jnp.broadcast_arrays(base, exponent)

    def step(state):
        result, base, exponent = state
        return jnp.where(exponent & 1 == 1, result * base, result), base * base, exponent >> 1

    start = (jnp.ones_like(base), base, lax.max(exponent, jnp.zeros_like(exponent)))
    result, _, _ = lax.while_loop(lambda state: jnp.any(state[2] != 0), step, start)
    sign = jnp.where(exponent & 1 == 1, base, jnp.ones_like(base))
    inverse = jnp.where((base == 1) | (base == -1), sign, jnp.zeros_like(base)) if base.dtype != jnp.uint8 else result
    return jnp.where(exponent < 0, inverse, result)


def _float_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    base, exponent = jnp.broadcast_arrays(base, exponent)
    return complex_functions.power(base, exponent) if is_complex(base.dtype) else exponentials.power(base, exponent)


def _power_by_base(result: jax.Array, base: jax.Array, exponent: jax.Array) -> jax.Array:
    zero = exponent == 0
    exponent = jnp.where(zero, jnp.ones_like(exponent), exponent)
    return jnp.where(zero, jnp.zeros_like(result), exponent * _power(base, exponent - 1))


def _power_by_exponent(result: jax.Array, base: jax.Array, exponent: jax.Array) -> jax.Array:
    nonnegative = lax.real(exponent) >= 0 if is_complex(exponent.dtype) else exponent >= 0
    zero = (base == 0) & nonnegative
    return jnp.where(zero, jnp.zeros_like(result), result * lax.log(jnp.where(zero, jnp.ones_like(base), base)))


_power = with_partials(_float_power, _power_by_base, _power_by_exponent)


# aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
# aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor
@kernel("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(self, exponent):
    dtype = result_type(self, exponent)
    base, exponent = opmath(dtype, self, exponent)
    return cast(_power(base, exponent), dtype) if is_inexact(dtype) else _integer_power(base, exponent)


SPECIAL_EXPONENTS = frozenset({0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 0.5, -0.5})
"""Exponents of which powers of floats are products or roots."""


def power_of_floats(self: jax.Array, exponent: float | jax.Array) -> jax.Array:
    """The power of floats by an exponent that is not special; it may be traced."""
    base, exponent = opmath(self.dtype, self, exponent)
    return cast(_power(base, jnp.full(base.shape, exponent, base.dtype)), self.dtype)


# aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
@kernel("pow.Tensor_Scalar", static=("exponent",))
def pow_scalar(self, exponent):
    dtype = result_type(self, exponent)
    (base,) = opmath(dtype, self)
    if isinstance(exponent, complex) and exponent.imag == 0:
        exponent = exponent.real
    if exponent == 0:
        return jnp.ones(base.shape, dtype)
    if not is_inexact(dtype) or exponent in (1, 2, 3, 4, -1, -2):
        result = base if exponent == 1 else lax.integer_pow(base, int(exponent))
    elif exponent == 0.5:
        result = complex_functions.sqrt(base) if is_complex(dtype) else lax.sqrt(base)
    elif exponent == -0.5:
        result = reciprocal_root(base)
    else:
        return power_of_floats(cast(self, dtype), exponent)
    return cast(result, dtype)


# aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor
@kernel("ldexp.Tensor")
def ldexp(self, other):
    if is_inexact(self.dtype) and not is_complex(self.dtype) and is_integral(other.dtype):
        return exponentials.scaled(*jnp.broadcast_arrays(self, other))
    return mul(self, pow_tensor(2.0, other))


# --- integers -------------------------------------------------------------------------------------------------------


# aten::gcd(Tensor self, Tensor other) -> Tensor
@kernel("gcd")
def gcd(self, other):
    """Euclid's algorithm."""
    a, b = jnp.broadcast_arrays(*promote(self, other))

    def step(state):
        a, b = state
        done = b == 0
        return jnp.where(done, a, b), jnp.where(done, b, lax.rem(a, jnp.where(done, jnp.ones_like(b), b)))

    result, _ = lax.while_loop(lambda state: jnp.any(state[1] != 0), step, (jnp.abs(a), jnp.abs(b)))
    return result


# aten::lcm(Tensor self, Tensor other) -> Tensor
@kernel("lcm")
def lcm(self, other):
    dtype = result_type(self, other)
    wide = promote_types(dtype, np.int32)  # C++ computes small integers as int
    a, b = jnp.broadcast_arrays(cast(self, wide), cast(other, wide))
    divisor = gcd(a, b)
    quotient = lax.div(a, jnp.where(divisor == 0, jnp.ones_like(divisor), divisor))
    return cast(jnp.where(divisor == 0, divisor, jnp.abs(quotient * b)), dtype)
