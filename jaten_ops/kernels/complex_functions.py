"""Elementary functions of complex numbers, with the values of C99's Annex G at infinities, NaNs and signed zeros.

ATen calls the C library for each element. XLA's functions differ from it at the edges, and the hyperbolic ones lose
digits for small and large numbers. Partial derivatives are given, so that none goes through a choice of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..cpu import elementary, exponentials
from ..kernel_base.derivatives import with_partials

_Function = Callable[[jax.Array], jax.Array]


def _parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.real(x), lax.imag(x)


def _swapped(x: jax.Array) -> jax.Array:
    return lax.complex(lax.imag(x), lax.real(x))


def _between_swaps(fn: _Function) -> _Function:
    """A function with real and imaginary parts exchanged, of argument and result: sin from sinh, asinh from asin."""
    return lambda x: _swapped(fn(_swapped(x)))


def _infinite(x: jax.Array) -> jax.Array:
    return lax.abs(x) == jnp.inf


def unless_infinite(x: jax.Array, value: jax.Array) -> jax.Array:
    """A real `value`, or infinity if a part of x is infinite, even if the other part is NaN."""
    a, b = _parts(x)
    return jnp.where(_infinite(a) | _infinite(b), jnp.full_like(value, jnp.inf), value)


def absolute(x: jax.Array) -> jax.Array:
    """The absolute value, with JAX's gradient: 0 at 0."""
    return unless_infinite(x, lax.abs(x))


def complex_sign(x: jax.Array) -> jax.Array:
    """x / |x|, and 0 at 0. Each part is divided separately, as in ATen's vectors: a finite part by infinity is 0."""
    zero = x == 0
    safe = jnp.where(zero, jnp.ones_like(x), x)
    size = absolute(safe)
    return jnp.where(zero, jnp.zeros_like(x), lax.complex(lax.real(safe) / size, lax.imag(safe) / size))


# --- products and quotients -----------------------------------------------------------------------------------------


def _parts_of_product(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
    return a * c - b * d, a * d + b * c


def _zero_if_nan(x: jax.Array, condition: jax.Array) -> jax.Array:
    return jnp.where(condition & jnp.isnan(x), jnp.copysign(jnp.zeros_like(x), x), x)


def _boxed(a: jax.Array, b: jax.Array, condition: jax.Array) -> tuple[jax.Array, ...]:
    """An infinite number's direction: 1 or -1 for an infinite part, 0 for a finite one."""
    return tuple(
        jnp.where(condition, jnp.copysign(lax.convert_element_type(_infinite(x), x.dtype), x), x) for x in (a, b)
    )


def _multiply(x: jax.Array, y: jax.Array) -> jax.Array:
    """The product with the infinities that (a c - b d) + i (a d + b c) loses: `_Cmultd` in C99's Annex G.5.1.

    Only the C library's power does so; ATen multiplies by the formula.
    """
    (a, b), (c, d) = _parts(x), _parts(y)
    real, imag = _parts_of_product(a, b, c, d)
    first = _infinite(a) | _infinite(b)
    (a, b), (c, d) = _boxed(a, b, first), (_zero_if_nan(c, first), _zero_if_nan(d, first))
    second = _infinite(c) | _infinite(d)
    (c, d), (a, b) = _boxed(c, d, second), (_zero_if_nan(a, second), _zero_if_nan(b, second))
    overflows = ~(first | second) & (_infinite(a * c) | _infinite(b * d) | _infinite(a * d) | _infinite(b * c))
    a, b, c, d = (_zero_if_nan(part, overflows) for part in (a, b, c, d))
    lost = jnp.isnan(real) & jnp.isnan(imag) & (first | second | overflows)
    infinities = (jnp.inf * part for part in _parts_of_product(a, b, c, d))
    return lax.complex(*(jnp.where(lost, *pair) for pair in zip(infinities, (real, imag), strict=True)))


def _by_larger_part(y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`|real| >= |imag|`, the smaller part divided by the larger one, and |y|^2 divided by the larger one."""
    c, d = _parts(y)
    by_real = lax.abs(c) >= lax.abs(d)
    large, small = jnp.where(by_real, c, d), jnp.where(by_real, d, c)
    ratio = small / large
    return by_real, ratio, large + small * ratio


def _divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """The quotient of c10::complex (torch/headeronly/util/complex.h)."""
    (a, b), (c, d) = _parts(x), _parts(y)
    by_real, ratio, divisor = _by_larger_part(y)
    real = jnp.where(by_real, a + b * ratio, a * ratio + b) / divisor
    imag = jnp.where(by_real, b - a * ratio, b * ratio - a) / divisor
    zero = y == 0
    return lax.complex(jnp.where(zero, a / lax.abs(c), real), jnp.where(zero, b / lax.abs(d), imag))


def _reciprocal(x: jax.Array) -> jax.Array:
    """1 / x without sums with 0, which XLA simplifies to the other term, even if that is -0."""
    by_real, ratio, divisor = _by_larger_part(x)
    one, nothing = jnp.ones_like(ratio), jnp.zeros_like(ratio)
    real = jnp.where(by_real, one, jnp.where(ratio == 0, nothing, ratio)) / divisor
    imag = jnp.where(by_real, jnp.where(ratio == 0, nothing, -ratio), -one) / divisor
    zero = x == 0
    return lax.complex(jnp.where(zero, jnp.inf, real), jnp.where(zero, jnp.nan, imag))


divide = with_partials(_divide, lambda r, x, y: _reciprocal(y), lambda r, x, y: -divide(r, y))
reciprocal = with_partials(_reciprocal, lambda r, x: -(r * r))


# --- exponentials and logarithms ------------------------------------------------------------------------------------


def _cosine_and_sine(b: jax.Array, at_infinity: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of an angle; 1 and NaN if it is infinite or NaN while the argument's other part is infinite."""
    lost = at_infinity & ~lax.is_finite(b)
    return jnp.where(lost, jnp.ones_like(b), elementary.cos(b)), elementary.sin(b)


def _exp(x: jax.Array) -> jax.Array:
    return lax.complex(*_exp_of_parts(*_parts(x)))


def _exp_of_parts(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The parts of exp(a + i b), of a's dtype."""
    cosine, sine = _cosine_and_sine(b, _infinite(a))
    vanishes = (a == -jnp.inf) & ~lax.is_finite(b)
    sine = jnp.where(vanishes, jnp.copysign(jnp.ones_like(b), b), sine)
    b, cosine, sine = (lax.convert_element_type(t, a.dtype) for t in (b, cosine, sine))
    size, root = lax.exp(a), lax.exp(a * 0.5)
    large = size == jnp.inf  # the product may be finite
    real = jnp.where(large, root * cosine * root, size * cosine)
    imag = jnp.where(large, root * sine * root, size * sine)
    return real, jnp.where(b == 0, b, imag)


def _exp2(x: jax.Array) -> jax.Array:
    return exp(lax.complex(lax.real(x) * math.log(2), lax.imag(x) * math.log(2)))


def _expm1(x: jax.Array) -> jax.Array:
    """c10's formula, which has no rules for the edges (c10/util/complex_math.h)."""
    a, b = _parts(x)
    half = elementary.sin(b * 0.5)
    return lax.complex(
        exponentials.expm1(a) * elementary.cos(b) - 2 * half * half,
        lax.exp(a) * elementary.sin(b),
    )


def _log(x: jax.Array) -> jax.Array:
    real = unless_infinite(x, lax.real(lax.log(x)))
    return lax.complex(real, elementary.atan2(lax.imag(x), lax.real(x)))


def _log1p(x: jax.Array) -> jax.Array:
    a, b = _parts(x)
    return jnp.where(x == 0, x, lax.complex(lax.real(lax.log1p(x)), elementary.atan2(b, 1 + a)))


exp = with_partials(_exp, lambda r, x: r)
exp2 = with_partials(_exp2, lambda r, x: r * math.log(2))
expm1 = with_partials(_expm1, lambda r, x: r + 1)
log = with_partials(_log, lambda r, x: reciprocal(x))
log1p = with_partials(_log1p, lambda r, x: reciprocal(x + 1))


def power(x: jax.Array, y: jax.Array) -> jax.Array:
    """exp(y log x), as glibc's cpow has it; without a gradient of its own."""
    if x.dtype != np.complex64:
        return _exp(_multiply(y, _log(x)))
    # the error of the exponent grows with its size: everything but the angles is in double precision
    a, b = (lax.convert_element_type(part, np.float64) for part in _parts(x))
    size = unless_infinite(x, 0.5 * lax.log(a * a + b * b))
    angle = elementary.atan2(lax.imag(x), lax.real(x))
    exponent = lax.complex(size, lax.convert_element_type(angle, np.float64))
    a, b = _parts(_multiply(lax.convert_element_type(y, np.complex128), exponent))
    real, imag = _exp_of_parts(a, lax.convert_element_type(b, np.float32))
    return lax.convert_element_type(lax.complex(real, imag), np.complex64)


def log_add_exp(x: jax.Array, y: jax.Array) -> jax.Array:
    """log(exp(x) + exp(y)), whose imaginary part may exceed pi: aten/src/ATen/native/cpu/LogAddExp.h."""
    swap = lax.real(x) < lax.real(y)
    low, high = jnp.where(swap, x, y), jnp.where(swap, y, x)
    infinite = (lax.real(low) == lax.real(high)) & _infinite(lax.real(low))
    both = jnp.where(lax.real(low) < 0, low, log(exp(low) + exp(high)))
    out = jnp.where(infinite, both, log1p(exp(low - high)) + high)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), jnp.full_like(out, complex(math.nan, math.nan)), out)


def sigmoid(x: jax.Array) -> jax.Array:
    return reciprocal(1 + exp(-x))


def times_sigmoid(x: jax.Array) -> jax.Array:
    """x sigmoid(x), as one quotient."""
    return divide(x, 1 + exp(-x))


# --- roots ----------------------------------------------------------------------------------------------------------


def _sqrt(x: jax.Array) -> jax.Array:
    """The square root, from XLA's in the upper half plane: at the cut XLA takes -0 for 0."""
    a, b = _parts(x)
    real, imag = _parts(lax.sqrt(lax.complex(a, lax.abs(b))))
    infinite = jnp.full_like(a, jnp.inf)
    # infinite + NaN i: the part that is determined
    real = jnp.where(_infinite(b) | (a == jnp.inf), infinite, real)
    imag = jnp.where(_infinite(b) | (a == -jnp.inf), infinite, imag)
    return lax.complex(real, jnp.copysign(imag, b))


sqrt = with_partials(_sqrt, lambda r, x: 0.5 / r)
rsqrt = with_partials(lambda x: _reciprocal(_sqrt(x)), lambda r, x: -0.5 * r * r * r)


# --- hyperbolic and trigonometric functions -------------------------------------------------------------------------

_FAR = 20.0  # beyond, cosh and sinh differ by less than a rounding


def _cosh_and_sinh(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cosh and sinh of the absolute value of a real number, clipped to _FAR."""
    rise = exponentials.expm1(lax.min(lax.abs(a), jnp.full_like(a, _FAR)))
    inverse = 1 / (1 + rise)
    return 1 + 0.5 * rise * rise * inverse, 0.5 * (rise + rise * inverse)


def _products(a: jax.Array, by_cosh: jax.Array, by_sinh: jax.Array) -> tuple[jax.Array, jax.Array]:
    """by_cosh * cosh(a) and by_sinh * sinh(a), also where cosh(a) alone overflows."""
    cosh, sinh = _cosh_and_sinh(a)
    root = lax.exp(lax.abs(a) * 0.5)
    far = lax.abs(a) > _FAR
    first = jnp.where(far, 0.5 * root * by_cosh * root, by_cosh * cosh)
    second = jnp.where(far, 0.5 * root * by_sinh * root, by_sinh * sinh)
    return first, jnp.where(jnp.signbit(a), -second, second)


def _cosh(x: jax.Array) -> jax.Array:
    a, b = _parts(x)
    cosine, sine = _cosine_and_sine(b, _infinite(a))
    real, imag = _products(a, cosine, sine)
    imag = jnp.where((a == 0) & ~lax.is_finite(b), jnp.zeros_like(b), imag)
    return lax.complex(real, jnp.where(b == 0, jnp.where(jnp.signbit(a) & ~jnp.isnan(a), -b, b), imag))


def _sinh(x: jax.Array) -> jax.Array:
    a, b = _parts(x)
    cosine, sine = _cosine_and_sine(b, _infinite(a))
    imag, real = _products(a, sine, cosine)
    real = jnp.where((a == 0) & ~lax.is_finite(b), a, jnp.where(lax.is_finite(b), real, lax.abs(real)))
    return lax.complex(real, jnp.where(b == 0, b, imag))


def _tanh(x: jax.Array) -> jax.Array:
    """sinh cosh + i sin cos over sinh^2 + cos^2 (glibc's ctanh)."""
    a, b = _parts(x)
    cosine, sine = elementary.cos(b), elementary.sin(b)
    cosh, sinh = _cosh_and_sinh(a)
    far, infinite = lax.abs(a) > _FAR, _infinite(a)
    scale = jnp.where(far, 4 * lax.exp(-2 * lax.abs(a)), 1 / (sinh * sinh + cosine * cosine))
    real = jnp.copysign(jnp.where(far, jnp.ones_like(a), sinh * cosh * scale), a)
    imag = sine * cosine * scale
    imag = jnp.where(infinite & ~lax.is_finite(b), jnp.copysign(jnp.zeros_like(b), b), imag)
    real = jnp.where(infinite | lax.is_finite(b), real, jnp.where(a == 0, a, jnp.nan))
    return lax.complex(real, jnp.where((b == 0) & ~lax.is_finite(a), b, imag))


cosh = with_partials(_cosh, lambda r, x: sinh(x))
sinh = with_partials(_sinh, lambda r, x: cosh(x))
tanh = with_partials(_tanh, lambda r, x: 1 - r * r)
cos = with_partials(lambda x: _cosh(lax.complex(-lax.imag(x), lax.real(x))), lambda r, x: -sin(x))
sin = with_partials(_between_swaps(_sinh), lambda r, x: cos(x))
tan = with_partials(_between_swaps(_tanh), lambda r, x: 1 + r * r)


# --- their inverses -------------------------------------------------------------------------------------------------


def _asin(x: jax.Array) -> jax.Array:
    """XLA's function in the first quadrant, extended so that signs of zeros tell the two sides of a cut apart."""
    a, b = _parts(x)
    real, imag = _parts(lax.asin(lax.complex(lax.abs(a), lax.abs(b))))
    real = jnp.where((a == 0) & jnp.isnan(b), jnp.zeros_like(a), real)
    return lax.complex(jnp.copysign(real, a), jnp.copysign(imag, b))


def _acosh_above(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The parts of acosh at the number above or on the real line that has the same parts up to a sign."""
    a, b = _parts(x)
    real, imag = _parts(lax.acosh(lax.complex(a, lax.abs(b))))
    return real, jnp.where((a == 0) & jnp.isnan(b), jnp.full_like(a, math.pi / 2), imag)


def _acosh(x: jax.Array) -> jax.Array:
    real, imag = _acosh_above(x)
    return lax.complex(real, jnp.copysign(imag, lax.imag(x)))


def _acos(x: jax.Array) -> jax.Array:
    real, imag = _acosh_above(x)
    return lax.complex(imag, jnp.copysign(real, -lax.imag(x)))


def _atanh(x: jax.Array) -> jax.Array:
    a, b = _parts(x)
    real, imag = _parts(lax.atanh(lax.complex(lax.abs(a), lax.abs(b))))
    edge = ~lax.is_finite(a) | ~lax.is_finite(b)
    vanishes = _infinite(a) | _infinite(b) | (a == 0)
    real = jnp.where(edge, jnp.where(vanishes, jnp.zeros_like(a), jnp.nan), real)
    turned = _infinite(b) | (_infinite(a) & ~jnp.isnan(b))
    imag = jnp.where(edge, jnp.where(turned, jnp.full_like(b, math.pi / 2), jnp.nan), imag)
    return lax.complex(jnp.copysign(real, a), jnp.copysign(imag, b))


def _inverse_root(x: jax.Array) -> jax.Array:
    """1 / sqrt(1 - x^2), on the sheet that the inverse functions are on."""
    return rsqrt(1 - x) * rsqrt(1 + x)


asin = with_partials(_asin, lambda r, x: _inverse_root(x))
acos = with_partials(_acos, lambda r, x: -_inverse_root(x))
asinh = with_partials(_between_swaps(_asin), lambda r, x: _inverse_root(lax.complex(-lax.imag(x), lax.real(x))))
acosh = with_partials(_acosh, lambda r, x: rsqrt(x + 1) * rsqrt(x - 1))
atanh = with_partials(_atanh, lambda r, x: reciprocal(1 - x) * reciprocal(1 + x))
atan = with_partials(_between_swaps(_atanh), lambda r, x: reciprocal(1 + x * x))
