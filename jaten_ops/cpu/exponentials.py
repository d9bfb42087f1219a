"""Exponentials, logarithms and powers of float32 for CPUs, in vector code.

XLA's CPU compiler calls the C library for each element of a power and a logarithm to base 10, and its `expm1` takes
three times as long as its exponential. Here an exponential is a polynomial between -1/2 and 1/2, times a power of two
that is made of its bits. It errs at most twice as far as ATen's. Logarithms, of which powers are made, are sums and
products in double precision. Other dtypes and devices take XLA's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..kernel_base.derivatives import with_partials
from .elementary import for_floats, like_identity, polynomial, series_coefficients, to_float32, to_float64

_LN2 = math.log(2)
# ln(2) as a number of 15 bits, whose products with exponents of float32 are exact, and the rest
_LN2_PARTS = np.float32(math.floor(_LN2 * 2**15) / 2**15), np.float32(_LN2 - math.floor(_LN2 * 2**15) / 2**15)

# (2^x - 1) / x, (e^x - 1 - x) / x^2 and (log(1 + x) - x + x^2 / 2) / x^3; the others are polynomials in a square:
# (2 atanh(x) / x - 2) / x^2, (2 atanh(x / 2) / x - 1) / x^2, (sinh(x) / x - 1) / x^2 and (atanh(x) / x - 1) / x^2
_OF_EXP2 = series_coefficients(lambda k: _LN2 ** (k + 1) / math.factorial(k + 1), 5, -0.5, 0.5)
_OF_EXPM1 = series_coefficients(lambda k: 1 / math.factorial(k + 2), 5, -_LN2 / 2, _LN2 / 2)
_MOST_OF_MANTISSA = ((math.sqrt(2) - 1) / (math.sqrt(2) + 1)) ** 2
_OF_LOG = series_coefficients(lambda k: (-1) ** k / (k + 3), 8, math.sqrt(0.5) - 1, math.sqrt(2) - 1)
_OF_WIDE_LOG = series_coefficients(lambda k: 2 / (2 * k + 3), 4, 0, _MOST_OF_MANTISSA)
_OF_LOG1P = series_coefficients(lambda k: 0.25 ** (k + 1) / (2 * k + 3), 4, 0, 4 / 9)
_OF_SINH = series_coefficients(lambda k: 1 / math.factorial(2 * k + 3), 3, 0, 1)
_OF_ATANH = series_coefficients(lambda k: 1 / (2 * k + 3), 7, 0, 1 / 4)


def _nearest(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _at_least(low: float, x: jax.Array) -> jax.Array:
    """The maximum, or NaN; XLA's own maximum takes more operations."""
    return jnp.where(x < low, np.asarray(low, x.dtype), x)


def _at_most(high: float, x: jax.Array) -> jax.Array:
    return jnp.where(x > high, np.asarray(high, x.dtype), x)


def _integers(x: jax.Array) -> jax.Array:
    return lax.convert_element_type(x, np.int32)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """The float32 for whole numbers from -126 to 127; 0 for -127."""
    return lax.bitcast_convert_type(lax.shift_left(exponent + 127, np.int32(23)), np.float32)


# --- exponentials -----------------------------------------------------------------------------------------------------


def _scaled_power(whole: jax.Array, rest: jax.Array) -> jax.Array:
    """2^(whole + rest) for whole numbers from -252 to 254, of which the results are 0 and infinite."""
    half = lax.shift_right_arithmetic(whole, np.int32(1))
    return (1 + rest * polynomial(rest, _OF_EXP2)) * _power_of_two(half) * _power_of_two(whole - half)


def _exp2(x: jax.Array) -> jax.Array:
    x = _at_most(130, _at_least(-160, x))
    whole = _nearest(x)
    return _scaled_power(_integers(whole), x - whole)


exp2 = for_floats(lambda x: lax.pow(jnp.full_like(x, 2), x), _exp2)


def _reduced(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The nearest multiple of ln(2), and e to the power of the rest, minus 1."""
    whole = _nearest(x * np.float32(1 / _LN2))
    first, second = _LN2_PARTS
    rest = x - whole * first - whole * second
    return _integers(whole), rest + rest * rest * polynomial(rest, _OF_EXPM1)


def _expm1(x: jax.Array) -> jax.Array:
    whole, rise = _reduced(_at_most(89, _at_least(-87, x)))
    half = _power_of_two(whole - 1)  # as 2^128 is infinite
    value = 2 * (half * rise + (half - np.float32(0.5)))
    return jnp.where(lax.abs(x) < 2.0**-25, x, value)


expm1 = with_partials(for_floats(lax.expm1, _expm1), lambda r, x: r + 1)


def _log1p_exp_of_negative(x: jax.Array) -> jax.Array:
    whole, rise = _reduced(_at_least(-104, x))
    power = (1 + rise) * _power_of_two(lax.max(whole, np.int32(-127)))
    ratio = power / (1 + np.float32(0.5) * power)
    square = ratio * ratio
    return ratio + ratio * (square * polynomial(square, _OF_LOG1P))


log1p_exp_of_negative = with_partials(
    for_floats(lambda x: lax.log1p(lax.exp(x)), _log1p_exp_of_negative), lambda r, x: lax.logistic(x)
)
"""log(1 + e^x) for numbers that are not positive."""


# --- hyperbolic functions ---------------------------------------------------------------------------------------------


def _half_exp_of_abs(x: jax.Array) -> jax.Array:
    """e^|x| / 2, which is finite where cosh(x) is."""
    whole, rise = _reduced(_at_most(91, lax.abs(x)))
    half = lax.shift_right_arithmetic(whole, np.int32(1))
    return (1 + rise) * _power_of_two(half) * _power_of_two(whole - half - 1)


def cosh(x: jax.Array) -> jax.Array:
    half = _half_exp_of_abs(x)
    return half + np.float32(0.25) / half


def sinh(x: jax.Array) -> jax.Array:
    half, square = _half_exp_of_abs(x), x * x
    far = jnp.copysign(half - np.float32(0.25) / half, x)
    near = like_identity(x, x + x * (square * polynomial(square, _OF_SINH)))
    return jnp.where(lax.abs(x) < 1, near, far)


def _atanh(x: jax.Array) -> jax.Array:
    square = x * x
    near = like_identity(x, x + x * (square * polynomial(square, _OF_ATANH)))
    return jnp.where(lax.abs(x) < 0.5, near, np.float32(0.5) * lax.log((1 + x) / (1 - x)))


atanh = with_partials(for_floats(lax.atanh, _atanh), lambda r, x: 1 / (1 - x * x))


# --- logarithms -------------------------------------------------------------------------------------------------------


def _log1p(x: jax.Array) -> jax.Array:
    """log(1 + x), and a share of what 1 + x has been rounded by.

    It errs at most three times as far as ATen's, XLA's own four times.
    """
    near = lax.reduce_precision(1 + x, 8, 23)  # or XLA would find no rounding error in it
    log = lax.log(near)
    whole = log + (x - (near - 1)) / near
    return jnp.where(lax.abs(x) < 2.0**-24, x, jnp.where(_is_edge(near), log, whole))


def _is_edge(x: jax.Array) -> jax.Array:
    return (x <= 0) | (x == np.inf)


log1p = with_partials(for_floats(lax.log1p, _log1p), lambda r, x: 1 / (1 + x))


_ROOT_OF_HALF = np.int32(0x3F3504F3)  # the bits of the float32
_LEAST_NORMAL = np.int32(0x00800000)
# The exponent that 0 has. A comparison of a number, or of its bits, with 0 would hold for subnormal numbers: XLA takes
# them for 0, and LLVM makes one of floats of both.
_OF_ZERO = np.int32(-127 - 149)


def _mantissa(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An exponent, and a mantissa between the roots of 1/2 and of 2, of positive numbers, subnormal ones too."""
    bits = lax.bitcast_convert_type(x, np.int32)
    is_subnormal = bits < _LEAST_NORMAL  # and is a number of units of 2^-149; XLA would take it for 0
    units = lax.bitcast_convert_type(lax.convert_element_type(bits, np.float32), np.int32)
    bits = jnp.where(is_subnormal, units, bits)
    exponent = lax.shift_right_arithmetic(bits - _ROOT_OF_HALF, np.int32(23))
    mantissa = lax.bitcast_convert_type(bits - lax.shift_left(exponent, np.int32(23)), np.float32)
    return jnp.where(is_subnormal, exponent - 149, exponent), mantissa


def _has_sign(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, np.int32) < 0


def log_to(base: float) -> Callable[[jax.Array], jax.Array]:
    """The logarithm of float32 to a base, off by 0.7 units in the last place at most, and exact for its powers.

    All but the third power of the series is in double precision.
    """

    def log(x: jax.Array) -> jax.Array:
        exponent, mantissa = _mantissa(lax.abs(x))
        above = mantissa - 1
        rest = above * above * above * polynomial(above, _OF_LOG)
        wide = to_float64(above)
        natural = wide - 0.5 * wide * wide + to_float64(rest)
        value = to_float32(to_float64(exponent) * (_LN2 / math.log(base)) + natural * (1 / math.log(base)))
        value = jnp.where(x < np.inf, value, x)  # NaN is not less
        value = jnp.where(_has_sign(x) & ~jnp.isnan(x), np.float32(np.nan), value)
        return jnp.where(exponent == _OF_ZERO, np.float32(-np.inf), value)

    return log


# --- powers -----------------------------------------------------------------------------------------------------------


def _wide_log2(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The logarithm to base 2 of positive finite numbers, as float64, of which 35 bits are right; and where x is 0."""
    exponent, mantissa = _mantissa(x)
    above = to_float64(mantissa) - 1
    root = above / (above + 2)
    square = root * root
    log = root * (2 + square * polynomial(square, _OF_WIDE_LOG))
    return to_float64(exponent) + log * (1 / _LN2), exponent == _OF_ZERO


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    """|x|^y by the logarithm, then the signs and the limits of the C library's pow."""
    size = lax.abs(x)
    log, is_zero = _wide_log2(size)
    is_limit = is_zero | (size == np.inf)
    limit = jnp.where(is_zero == _has_sign(y), np.inf, -np.inf)
    exponent = jnp.where(is_limit, limit, to_float64(y) * log)
    exponent = _at_most(130, _at_least(-160, exponent))
    nearest = _nearest(exponent)
    value = _scaled_power(_integers(nearest), to_float32(exponent - nearest))

    # a subnormal exponent, which XLA takes for 0, is not whole
    is_none = _mantissa(lax.abs(y))[0] == _OF_ZERO
    is_normal = lax.bitcast_convert_type(lax.abs(y), np.int32) >= _LEAST_NORMAL
    is_whole, half = (lax.floor(y) == y) & (is_normal | is_none), y * np.float32(0.5)
    is_odd = is_whole & (lax.floor(half) != half)
    value = jnp.where(_has_sign(x) & is_odd, -value, value)
    has_none = _has_sign(x) & ~is_whole & ~is_limit
    value = jnp.where(has_none | jnp.isnan(x) | jnp.isnan(y), np.float32(np.nan), value)
    is_one = is_none | (x == 1) | ((x == -1) & (lax.abs(y) == np.inf))
    return jnp.where(is_one, np.float32(1), value)


power = for_floats(lax.pow, _power)


def _wide_power_of_two(exponent: jax.Array) -> jax.Array:
    """The float64 for whole numbers from -1022 to 1023."""
    biased = lax.convert_element_type(exponent, np.int64) + 1023
    return lax.bitcast_convert_type(lax.shift_left(biased, np.int64(52)), np.float64)


def scaled(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """`x * 2**exponent` for integers, in float64, where only a subnormal result is rounded: as std::ldexp."""
    exponent = jnp.clip(lax.convert_element_type(exponent, np.int32), -3000, 3000)
    third = lax.div(exponent, np.int32(3))
    product = to_float64(x)
    for part in (third, third, exponent - 2 * third):
        product = product * _wide_power_of_two(part)
    return lax.convert_element_type(product, x.dtype)
