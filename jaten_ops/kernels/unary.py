"""Functions of one number: roots, exponentials, trigonometry, rounding, signs, complex parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..cpu import elementary, exponentials
from ..cpu.elementary import for_floats
from ..kernel_base.derivatives import with_partials
from ..kernel_base.promotion import cast, float_type, is_complex, is_inexact, is_integral, opmath, to_complex
from . import complex_functions


def float_kernel(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A kernel from a function of floats: integers become floats, half precision is computed in float32."""

    def unary(self):
        dtype = float_type(self)
        return cast(fn(*opmath(dtype, self)), dtype)

    return unary


def _of_numbers(of_reals: Callable[..., jax.Array], of_others: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function of real or complex numbers, from one for each."""
    return lambda x: of_others(x) if is_complex(x.dtype) else of_reals(x)


def _log_to(base: float, power_of: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A logarithm that is exact for the powers of its base, of which `power_of` is the integral ones."""
    scale = 1 / math.log(base)

    def by_natural(x: jax.Array) -> jax.Array:
        natural = lax.log(x)
        power = _to_even(natural * scale)
        return jnp.where(power_of(power) == x, power, natural * scale)

    def of_complex(x: jax.Array) -> jax.Array:
        natural = complex_functions.log(x)
        return lax.complex(lax.real(natural) * scale, lax.imag(natural) * scale)

    of_reals = for_floats(by_natural, exponentials.log_to(base))
    return with_partials(_of_numbers(of_reals, of_complex), lambda r, x: 1 / (x * math.log(base)))


def _cosh_by_root(x: jax.Array) -> jax.Array:
    """By the exponential of x / 2: that of x overflows early, and XLA's cosh loses digits for large x."""
    root = lax.exp(x * 0.5)
    return root * 0.5 * root + 0.5 / root / root


def _sinh_by_root(x: jax.Array) -> jax.Array:
    root = lax.exp(x * 0.5)
    return jnp.where(lax.abs(x) < 1, lax.sinh(x), root * 0.5 * root - 0.5 / root / root)


exp = _of_numbers(lax.exp, complex_functions.exp)
log = _of_numbers(lax.log, complex_functions.log)
_cosh = with_partials(for_floats(_cosh_by_root, exponentials.cosh), lambda r, x: _sinh(x))
_sinh = with_partials(for_floats(_sinh_by_root, exponentials.sinh), lambda r, x: _cosh(x))
_real_sin = with_partials(elementary.sin, lambda r, x: _real_cos(x))
_real_cos = with_partials(elementary.cos, lambda r, x: -_real_sin(x))
sin = _of_numbers(_real_sin, complex_functions.sin)
cos = _of_numbers(_real_cos, complex_functions.cos)


def _sinc(x: jax.Array) -> jax.Array:
    zero = x == 0
    angle = jnp.where(zero, jnp.ones_like(x), x * math.pi)
    return jnp.where(zero, jnp.ones_like(x), sin(angle) / angle)


reciprocal_root = _of_numbers(with_partials(elementary.rsqrt, lambda r, x: -0.5 * r * r * r), complex_functions.rsqrt)


def _reciprocal(x: jax.Array) -> jax.Array:
    return 1 / x


_FLOAT_FUNCTIONS = {
    "acos": _of_numbers(with_partials(elementary.acos, lambda r, x: -lax.rsqrt(1 - x * x)), complex_functions.acos),
    "acosh": _of_numbers(with_partials(lax.acosh, lambda r, x: lax.rsqrt(x * x - 1)), complex_functions.acosh),
    "asin": _of_numbers(with_partials(elementary.asin, lambda r, x: lax.rsqrt(1 - x * x)), complex_functions.asin),
    "asinh": _of_numbers(lax.asinh, complex_functions.asinh),
    "atan": _of_numbers(with_partials(elementary.atan, lambda r, x: 1 / (1 + x * x)), complex_functions.atan),
    "atanh": _of_numbers(exponentials.atanh, complex_functions.atanh),
    "cos": cos,
    "cosh": _of_numbers(_cosh, complex_functions.cosh),
    "deg2rad": lambda x: x * (math.pi / 180),
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": exp,
    # exact for integers; lax.exp2 has a relative error of 70 ulp
    "exp2": _of_numbers(with_partials(exponentials.exp2, lambda r, x: r * math.log(2)), complex_functions.exp2),
    "expm1": _of_numbers(exponentials.expm1, complex_functions.expm1),
    "log": log,
    "log10": _log_to(10, lambda n: lax.pow(jnp.full_like(n, 10), n)),
    "log1p": _of_numbers(exponentials.log1p, complex_functions.log1p),
    "log2": _log_to(2, exponentials.exp2),
    "rad2deg": lambda x: x * (180 / math.pi),
    "reciprocal": _of_numbers(with_partials(_reciprocal, lambda r, x: -(r * r)), complex_functions.reciprocal),
    "rsqrt": reciprocal_root,
    "sigmoid": _of_numbers(lax.logistic, complex_functions.sigmoid),
    "sin": sin,
    "sinc": _sinc,
    "sinh": _of_numbers(_sinh, complex_functions.sinh),
    "sqrt": _of_numbers(lax.sqrt, complex_functions.sqrt),
    "tan": _of_numbers(with_partials(elementary.tan, lambda r, x: 1 + r * r), complex_functions.tan),
    "tanh": _of_numbers(lax.tanh, complex_functions.tanh),
}

# aten::{acos, acosh, asin, asinh, atan, atanh, cos, cosh, deg2rad, erf, erfc, erfinv, exp, exp2, expm1, log, log10,
#     log1p, log2, rad2deg, reciprocal, rsqrt, sigmoid, sin, sinc, sinh, sqrt, tan, tanh}(Tensor self) -> Tensor
for _name, _fn in _FLOAT_FUNCTIONS.items():
    kernel(_name)(float_kernel(_fn))


# --- rounding -------------------------------------------------------------------------------------------------------


def truncate(x: jax.Array) -> jax.Array:
    """Rounds to zero."""
    return jnp.where(x < 0, lax.ceil(x), lax.floor(x))


def _to_even(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _rounding_kernel(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    fn = with_partials(fn, None)

    def rounding(self):
        return lax.copy_p.bind(self) if is_integral(self.dtype) else cast(fn(*opmath(self.dtype, self)), self.dtype)

    return rounding


# aten::{ceil, floor, round, trunc}(Tensor self) -> Tensor
for _name, _fn in {"ceil": lax.ceil, "floor": lax.floor, "round": _to_even, "trunc": truncate}.items():
    kernel(_name)(_rounding_kernel(_fn))


# aten::round.decimals(Tensor self, *, int decimals) -> Tensor
@kernel("round.decimals")
def round_decimals(self, *, decimals):
    if is_integral(self.dtype):
        return lax.copy_p.bind(self)
    power = 10.0 ** abs(decimals)

    def rounded(x):
        if decimals < 0:
            # a divisor that depends on x, since XLA would multiply by the inverse of a constant
            return _to_even(x / jnp.where(jnp.isnan(x), x, power)) * power
        scaled = _to_even(x * power)
        return scaled / jnp.where(jnp.isnan(scaled), scaled, power)

    return cast(with_partials(rounded, None)(*opmath(self.dtype, self)), self.dtype)


_frac = with_partials(lambda x: x - truncate(x), lambda r, x: jnp.ones_like(r))


# aten::frac(Tensor self) -> Tensor
@kernel("frac")
def frac(self):
    return cast(_frac(*opmath(self.dtype, self)), self.dtype)


# --- signs ----------------------------------------------------------------------------------------------------------


absolute = _of_numbers(with_partials(jnp.abs, lambda r, x: _signed_unit(x)), complex_functions.absolute)
# aten::abs(Tensor self) -> Tensor
kernel("abs")(absolute)


# aten::neg(Tensor self) -> Tensor
@kernel("neg")
def neg(self):
    return lax.neg(self)


def _signed_unit(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; 0 for NaN."""
    return cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


_sign = with_partials(_signed_unit, None)


# aten::sign(Tensor self) -> Tensor
@kernel("sign")
def sign(self):
    return lax.copy_p.bind(self) if self.dtype.kind == "b" else _sign(self)


# aten::sgn(Tensor self) -> Tensor
@kernel("sgn")
def sgn(self):
    return complex_functions.complex_sign(self) if is_complex(self.dtype) else sign(self)


# aten::signbit(Tensor self) -> Tensor
@kernel("signbit")
def signbit(self):
    return jnp.signbit(self) if is_inexact(self.dtype) else self < 0


# --- parts of numbers -----------------------------------------------------------------------------------------------


def _argument(x: jax.Array) -> jax.Array:
    """0 for a positive number, pi for a negative one."""
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.full_like(x, math.pi), jnp.zeros_like(x)))


_real_argument = with_partials(_argument, None)


# aten::angle(Tensor self) -> Tensor
@kernel("angle")
def angle(self):
    if not is_complex(self.dtype):
        return _real_argument(cast(self, float_type(self)))
    zero = self == 0
    safe = jnp.where(zero, jnp.ones_like(self), self)
    exact = lax.atan2(lax.imag(self), lax.real(self))  # it distinguishes the zeros, but has no gradient there
    return jnp.where(zero, lax.stop_gradient(exact), lax.atan2(lax.imag(safe), lax.real(safe)))


# aten::polar(Tensor abs, Tensor angle) -> Tensor
@kernel("polar")
def polar(abs, angle):
    dtype = to_complex(abs.dtype)
    return cast(lax.complex(*jnp.broadcast_arrays(abs * cos(angle), abs * sin(angle))), dtype)


def _finite_frexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.frexp(jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)))


_mantissa = with_partials(
    lambda x: jnp.where(jnp.isfinite(x), _finite_frexp(x)[0], x),
    lambda r, x: lax.exp2(-cast(_finite_frexp(x)[1], x.dtype)),
)


# aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)
@kernel("frexp.Tensor")
def frexp(self):
    (x,) = opmath(self.dtype, self)
    return cast(_mantissa(x), self.dtype), cast(_finite_frexp(lax.stop_gradient(x))[1], jnp.int32)


# aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor
@kernel("nan_to_num")
def nan_to_num(self, nan=None, posinf=None, neginf=None):
    if is_integral(self.dtype):
        return lax.copy_p.bind(self)
    if is_complex(self.dtype):
        return lax.complex(
            nan_to_num(lax.real(self), nan, posinf, neginf), nan_to_num(lax.imag(self), nan, posinf, neginf)
        )
    limits = jnp.finfo(self.dtype)
    for special, value in (
        (self != self, 0.0 if nan is None else nan),
        (self == jnp.inf, limits.max if posinf is None else posinf),
        (self == -jnp.inf, limits.min if neginf is None else neginf),
    ):
        self = jnp.where(special, cast(value, self.dtype), self)
    return self
