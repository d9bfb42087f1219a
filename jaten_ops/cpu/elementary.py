"""Trigonometric functions and remainders of float32 for CPUs, in vector code.

XLA's CPU compiler calls the C library for each element of most of these. Here they are sums and products in double
precision, rounded once, so the result is the nearest float32 in nearly all cases. Sine and cosine of numbers near 0 are
in single precision, which takes less time, and err at most twice as far as ATen's. Other dtypes and devices take XLA's
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.polynomial import Chebyshev, Polynomial

from ..kernel_base.division import quotient
from ..kernel_base.platform import by_platform, is_open

_Function = Callable[..., jax.Array]
_LEAST_ROW = 256  # elements that are worth a product
_SERIES = 40  # terms, more than double precision needs


def for_floats(general: _Function, on_cpu: _Function) -> _Function:
    """`general`, with another implementation for float32 on a CPU."""

    def function(*xs: jax.Array) -> jax.Array:
        xs = tuple(jnp.broadcast_arrays(*xs))
        if any(x.dtype != np.float32 for x in xs):
            return general(*xs)
        return by_platform(*xs, cpu=on_cpu, default=general)

    return function


def to_float64(x: jax.Array) -> jax.Array:
    return lax.convert_element_type(x, np.float64)


def to_float32(x: jax.Array) -> jax.Array:
    return lax.convert_element_type(x, np.float32)


def polynomial(x: jax.Array, coefficients: Sequence[float]) -> jax.Array:
    """sum_k coefficients[k] x^k."""
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def series_coefficients(term: Callable[[int], float], degree: int, low: float, high: float) -> list[float]:
    """Coefficients of a polynomial for sum_k term(k) x^k between two numbers: equal to it at Chebyshev's points."""

    def series(x: np.ndarray) -> np.ndarray:
        return sum(term(k) * x**k for k in range(_SERIES))

    found = Chebyshev.interpolate(series, degree, domain=[low, high]).convert(kind=Polynomial)
    return found.coef.tolist()


def _unless_beyond(x: jax.Array, bound: float, otherwise: _Function, usually: _Function) -> jax.Array:
    """`usually(x)`, or if a number is as far from 0 as the bound, `otherwise(x)` for all."""
    return lax.cond(_reaches(x, bound), otherwise, usually, x)


def _reaches(x: jax.Array, bound: float) -> jax.Array:
    """True if a finite number is as far from 0. That none is the sum of the squares tells in a third of the time."""

    def exactly(x: jax.Array) -> jax.Array:
        return _anywhere(_beyond(x, bound))

    if is_open(x) or x.size < _LEAST_ROW:
        return exactly(x)
    row = lax.reshape(x, (x.size,))
    return lax.cond(lax.dot(row, row) < bound**2, lambda x: np.bool_(False), exactly, x)


def _unless(rare: jax.Array, otherwise: _Function, usually: _Function, *xs: jax.Array) -> jax.Array:
    """`usually(*xs)`, or if a condition holds anywhere, `otherwise(*xs)` everywhere."""
    return lax.cond(_anywhere(rare), otherwise, usually, *xs)


def _anywhere(condition: jax.Array) -> jax.Array:
    """True if a condition holds for an element: counted by a product, since XLA asks one element after the other."""
    if is_open(condition):
        whole = tuple(range(condition.ndim))
        return lax.reduce_max(lax.convert_element_type(condition, np.float32), whole) > 0
    row = 1
    for size in reversed(condition.shape):
        if row >= _LEAST_ROW:
            break
        row *= size
    if row < _LEAST_ROW:
        return lax.reduce_or(condition, tuple(range(condition.ndim)))
    rows = lax.reshape(lax.convert_element_type(condition, np.float32), (condition.size // row, row))
    return lax.reduce_max(lax.dot(rows, jnp.ones((row,), np.float32)), (0,)) > 0


def rsqrt(x: jax.Array) -> jax.Array:
    """1 / sqrt(x), both rounded; XLA's CPU has no vector code for its own, and the numerator keeps it from that."""
    return by_platform(x, cpu=lambda x: jnp.where(jnp.isnan(x), x, jnp.ones_like(x)) / lax.sqrt(x), default=lax.rsqrt)


# --- trigonometry ---------------------------------------------------------------------------------------------------

_FAR = 2.0**30  # as far as the remainder by a quarter turn is exact
_PI = 0x3243F6A8885A308D313198A2E03707344  # pi * 2**128
# pi / 2 as two numbers of 23 bits, whose products with an integer below 2**30 are exact, and the rest
_QUARTER_TURN = (_PI >> 107) / 2.0**22, ((_PI >> 84) & (2**23 - 1)) / 2.0**45, (_PI & (2**84 - 1)) / 2.0**129


def _sine_and_cosine(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sine and cosine of the remainder of x by the nearest multiple of a quarter turn, and that multiple."""
    turns = lax.round(x * (2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = x
    for part in _QUARTER_TURN:
        rest = rest - turns * part
    square = rest * rest
    sine = rest * polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)])
    cosine = polynomial(square, [(-1) ** k / math.factorial(2 * k) for k in range(8)])
    return sine, cosine, lax.convert_element_type(turns, np.int32)


def _trigonometric(general: _Function, choose: _Function) -> _Function:
    """The function by sine and cosine in double precision, or if a number is far from 0, as XLA has it."""

    def usually(x: jax.Array) -> jax.Array:
        return choose(*_sine_and_cosine(to_float64(x)), x)

    return for_floats(general, lambda x: _unless_beyond(x, _FAR, general, usually))


def _beyond(x: jax.Array, bound: float) -> jax.Array:
    return (lax.abs(x) >= bound) & lax.is_finite(x)


def like_identity(x: jax.Array, value: jax.Array) -> jax.Array:
    """`value` as float32 of a function x + O(x^3): near 0 it is x, with its sign, and with what XLA would flush."""
    return jnp.where(lax.abs(x) < 2.0**-13, x, to_float32(value))


def _turned(odd: jax.Array, even: jax.Array, turns: jax.Array) -> jax.Array:
    """The one for an odd or for an even number of quarter turns, negative in the second half of each turn."""
    value = jnp.where(turns & 1 == 1, odd, even)
    return jnp.where(turns & 2 == 2, -value, value)


def _tangent(s: jax.Array, c: jax.Array, turns: jax.Array) -> jax.Array:
    odd = turns & 1 == 1
    return jnp.where(odd, -c, s) / jnp.where(odd, s, c)


_NEAR = 2.0**13  # as far as the remainder by a quarter turn is exact in single precision


def _leading(value: Fraction, bits: int) -> Fraction:
    """The first bits of a number."""
    unit = Fraction(2) ** (math.frexp(value)[1] - bits)
    return math.floor(value / unit) * unit


def _short_parts(value: Fraction) -> Iterator[float]:
    """A number as three of 11 bits, whose products with an integer below 2**13 are exact, and the rest."""
    for _ in range(3):
        part = _leading(value, 11)
        yield float(part)
        value -= part
    yield float(value)


_SHORT_QUARTER_TURN = tuple(map(np.float32, _short_parts(Fraction(_PI, 2**129))))


def _short_sine_and_cosine(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As `_sine_and_cosine`, of numbers below 2**13 in single precision: off by less than a unit in the last place."""
    first, second, third, fourth = _SHORT_QUARTER_TURN
    turns = lax.round(x * np.float32(2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    near, step = x - turns * first - turns * second, turns * third
    rest = near - step
    lost = near - rest - step - turns * fourth  # what the remainder has been rounded by
    square = rest * rest
    sine = rest + (lost + rest * square * polynomial(square, [-1 / 6, 1 / 120, -1 / 5040, 1 / 362880]))
    half = square * np.float32(0.5)
    one = lax.reduce_precision(1 - half, 8, 23)  # or XLA would find no rounding error in it
    cosine = one + (
        1
        - one
        - half
        + (square * square * polynomial(square, [1 / 24, -1 / 720, 1 / 40320, -1 / 3628800]) - rest * lost)
    )
    return sine, cosine, lax.convert_element_type(turns, np.int32)


def _sine_of(s: jax.Array, c: jax.Array, turns: jax.Array) -> jax.Array:
    return _turned(c, s, turns)


def _cosine_of(s: jax.Array, c: jax.Array, turns: jax.Array) -> jax.Array:
    return _turned(s, c, turns + (turns & 1) * 2)


def _in_single_precision(choose: _Function, exactly: _Function) -> _Function:
    """A trigonometric function, or if a number is beyond 2**13, `exactly` for all."""

    def usually(x: jax.Array) -> jax.Array:
        return choose(*_short_sine_and_cosine(x), x)

    return for_floats(exactly, lambda x: _unless_beyond(x, _NEAR, exactly, usually))


_wide_sin = _trigonometric(lax.sin, lambda s, c, turns, x: like_identity(x, _sine_of(s, c, turns)))
_wide_cos = _trigonometric(lax.cos, lambda s, c, turns, x: to_float32(_cosine_of(s, c, turns)))
sin = _in_single_precision(lambda s, c, turns, x: like_identity(x, _sine_of(s, c, turns)), _wide_sin)
cos = _in_single_precision(lambda s, c, turns, x: _cosine_of(s, c, turns), _wide_cos)
tan = _trigonometric(lax.tan, lambda s, c, turns, x: like_identity(x, _tangent(s, c, turns)))


def _arctangent_coefficients(terms: int) -> list[float]:
    """Coefficients of atan(x) / x in x^2, for |x| <= 1, from the Chebyshev series of atan."""
    t = math.sqrt(2) - 1
    series = np.zeros(2 * terms)
    for k in range(terms):
        series[2 * k + 1] = 2 * (-1) ** k * t ** (2 * k + 1) / (2 * k + 1)
    return np.polynomial.chebyshev.cheb2poly(series)[1::2].tolist()


_ARCTANGENT = _arctangent_coefficients(15)


def _arctangent(small: jax.Array, large: jax.Array) -> jax.Array:
    """atan(small / large) for 0 <= small <= large, also where both are zero or infinite."""
    ratio = jnp.where(large == 0, small, jnp.where(small == jnp.inf, jnp.ones_like(small), small / large))
    return ratio * polynomial(ratio * ratio, _ARCTANGENT)


def _atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    across, up = lax.abs(to_float64(x)), lax.abs(to_float64(y))
    angle = _arctangent(lax.min(across, up), lax.max(across, up))
    angle = jnp.where(up > across, math.pi / 2 - angle, angle)
    angle = jnp.where(jnp.signbit(x), math.pi - angle, angle)
    return jnp.copysign(to_float32(angle), y)


def _atan(x: jax.Array) -> jax.Array:
    size, one = lax.abs(to_float64(x)), jnp.ones(x.shape, np.float64)
    angle = _arctangent(lax.min(size, one), lax.max(size, one))
    return like_identity(x, jnp.copysign(jnp.where(size > 1, math.pi / 2 - angle, angle), to_float64(x)))


_ARCSINE = series_coefficients(  # (asin(x) / x - 1) / x^2 in the square of x
    lambda k: math.comb(2 * k + 2, k + 1) / 4 ** (k + 1) / (2 * k + 3), 5, 0, 1 / 4
)


def _arcsine(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The arcsine of |x| up to 1/2, or half the arccosine of a larger |x|, in double precision; and which it is."""
    size = lax.abs(x)
    is_large = size > 0.5
    square = jnp.where(is_large, (1 - size) * np.float32(0.5), size * size)
    sine = jnp.where(is_large, lax.sqrt(to_float64(square)), to_float64(size))
    return sine + sine * to_float64(square * polynomial(square, _ARCSINE)), is_large


def _asin(x: jax.Array) -> jax.Array:
    angle, is_large = _arcsine(x)
    return like_identity(x, jnp.copysign(jnp.where(is_large, math.pi / 2 - 2 * angle, angle), to_float64(x)))


def _acos(x: jax.Array) -> jax.Array:
    angle, is_large = _arcsine(x)
    angle = jnp.where(is_large, 2 * angle, math.pi / 2 - angle)
    return to_float32(jnp.where(x < 0, math.pi - angle, angle))


asin = for_floats(lax.asin, _asin)
acos = for_floats(lax.acos, _acos)
atan2 = for_floats(lax.atan2, _atan2)
atan = for_floats(lax.atan, _atan)


# --- remainders -------------------------------------------------------------------------------------------------------


def _rem_of_few(a: jax.Array, b: jax.Array) -> jax.Array:
    """The remainder where |a / b| is below 2**28: both the number of times and its product with b are exact."""
    size, step = lax.abs(a), lax.abs(b)
    wide, wide_step = to_float64(size), to_float64(step)
    rest = wide - lax.floor(quotient(wide, wide_step)) * wide_step
    return jnp.where(size < step, a, jnp.copysign(to_float32(rest), a))


def _are_many(a: jax.Array, b: jax.Array, times: float) -> jax.Array:
    """True where a finite number is as many times another that is not 0."""
    return (lax.abs(a) >= lax.abs(b) * times) & lax.is_finite(a) & (b != 0)


def _rem(a: jax.Array, b: jax.Array) -> jax.Array:
    return _unless(_are_many(a, b, 2.0**27), lax.rem, _rem_of_few, a, b)


rem = for_floats(lax.rem, _rem)


def _floor_of_few(a: jax.Array, b: jax.Array) -> jax.Array:
    """The quotient rounded down where it is below 2**22, which is exact; at the edges as c10::div_floor_floating."""
    whole = to_float32(lax.floor(quotient(to_float64(a), to_float64(b))))
    differ = jnp.signbit(a) != jnp.signbit(b)
    whole = jnp.where(whole == 0, jnp.where(differ, np.float32(-0.0), np.float32(0)), whole)
    whole = jnp.where((lax.abs(b) == np.inf) & (a != 0) & differ & lax.is_finite(a), np.float32(-1), whole)
    return jnp.where((lax.abs(a) == np.inf) & (b != 0), np.float32(np.nan), whole)


def floor_of_quotient(otherwise: _Function) -> _Function:
    """The quotient of float32 rounded down, or if one is large, all by another function."""
    return for_floats(otherwise, lambda a, b: _unless(_are_many(a, b, 2.0**21), otherwise, _floor_of_few, a, b))
