"""The gamma function and its kin, error functions, modified Bessel functions of the first kind, Hurwitz zeta.

Source of formulas and of values at the edges: aten/src/ATen/native/Math.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special as jsp

from jaten_ops.registry import kernel

from ..kernel_base.derivatives import with_partials
from ..kernel_base.promotion import cast
from .float_functions import float_kernel_of_two
from .unary import float_kernel

# Coefficients of the Euler-Maclaurin sum: (2k)! / B_2k
_EULER_MACLAURIN = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


def _zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz zeta in float64: the first terms, then the Euler-Maclaurin sum (Cephes zeta.c)."""
    dtype, pole = x.dtype, (q <= 0) & (q == lax.floor(q))
    outside = (x < 1) | ((q <= 0) & (x != lax.floor(x)))
    bad = pole | outside | (x == 1) | jnp.isnan(q)
    s, q = jnp.broadcast_arrays(jnp.where(bad, 2, x).astype("float64"), jnp.where(bad, 1, q).astype("float64"))
    eps = np.finfo(np.float64).eps / 2

    def more(state):
        i, at, _, _, done = state
        return jnp.any(~done & ((i < 9) | (at <= 9)))

    def step(state):
        i, at, total, term, done = state
        going = ~done & ((i < 9) | (at <= 9))
        at = jnp.where(going, at + 1, at)
        term = jnp.where(going, lax.pow(at, -s), term)
        total = jnp.where(going, total + term, total)
        return i + 1, at, total, term, done | (going & (lax.abs(term) < eps * total))

    start = (np.int32(0), q, lax.pow(q, -s), jnp.zeros_like(q), jnp.zeros(q.shape, bool))
    _, at, total, term, done = lax.while_loop(more, step, start)
    rest = term * at / (s - 1) - 0.5 * term
    factor = jnp.ones_like(s)
    for k, coefficient in enumerate(_EULER_MACLAURIN):
        factor = factor * (s + 2 * k)
        term = term / at
        rest = rest + factor * term / coefficient
        factor = factor * (s + 2 * k + 1)
        term = term / at
    value = jnp.where(done, total, total + rest).astype(dtype)
    special = jnp.where(x == 1, jnp.inf, jnp.where((x < 1) | ~pole, jnp.nan, jnp.inf)).astype(dtype)
    return jnp.where(bad, special, value)


zeta = with_partials(_zeta, None, lambda r, x, q: -x * zeta(x + 1, q))


def _digamma(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.copysign(jnp.full_like(x, jnp.inf), -x), lax.digamma(x))


def _trigamma(x: jax.Array) -> jax.Array:
    """The trigamma function, by reflection at 1/2."""
    low = x < 0.5
    sine = lax.sin(x * math.pi)
    above = jnp.where(x == jnp.inf, jnp.zeros_like(x), _zeta(jnp.full_like(x, 2), jnp.where(low, 1 - x, x)))
    return jnp.where(low, (math.pi / sine) ** 2 - above, above)


def polygamma_of(n: int, x: jax.Array) -> jax.Array:
    """The derivative of order n of digamma."""
    if n == 0:
        value = _digamma
    elif n == 1:
        value = _trigamma
    else:
        factor = math.gamma(n + 1) * (1 if n % 2 else -1)

        def value(x):
            return factor * _zeta(jnp.full_like(x, n + 1), x)

    return with_partials(value, lambda r, x: polygamma_of(n + 1, x))(x)


# aten::polygamma(int n, Tensor self) -> Tensor
@kernel("polygamma")
def polygamma(n, self):
    return float_kernel(lambda x: polygamma_of(n, x))(self)


_lgamma = with_partials(lax.lgamma, lambda r, x: polygamma_of(0, x))


# aten::mvlgamma(Tensor self, int p) -> Tensor
@kernel("mvlgamma")
def mvlgamma(self, p):
    constant = p * (p - 1) / 4 * math.log(math.pi)
    return float_kernel(lambda x: sum((_lgamma(x - i / 2) for i in range(p)), jnp.full_like(x, constant)))(self)


def _entr(x: jax.Array) -> jax.Array:
    positive = -x * lax.log(jnp.where(x > 0, x, jnp.ones_like(x)))
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, positive, jnp.where(x == 0, jnp.zeros_like(x), -jnp.inf)))


def _erfcx(x: jax.Array) -> jax.Array:
    """exp(x^2) erfc(x): the product for a small x, a continued fraction for a large one."""
    magnitude = lax.abs(x)
    large = jnp.where(magnitude > 2, magnitude, jnp.full_like(x, 2))
    small = jnp.where(magnitude > 2, jnp.full_like(x, 2), magnitude)
    fraction = lax.fori_loop(0, 60, lambda i, f: large + (30 - 0.5 * i) / f, large)
    right = jnp.where(magnitude > 2, 1 / (fraction * math.sqrt(math.pi)), lax.exp(small * small) * lax.erfc(small))
    return jnp.where(x < 0, 2 * lax.exp(x * x) - right, right)


def _log_ndtr(x: jax.Array) -> jax.Array:
    scaled = x * math.sqrt(0.5)
    low = lax.log(_erfcx(-jnp.where(x < -1, scaled, -jnp.ones_like(x))) * 0.5) - scaled * scaled
    return jnp.where(x < -1, low, lax.log1p(-lax.erfc(scaled) * 0.5))


def _bessel_i0(x: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(x)) * lax.bessel_i0e(x)


def _bessel_i1(x: jax.Array) -> jax.Array:
    return lax.exp(lax.abs(x)) * _bessel_i1e(x)


def _bessel_i1e(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.zeros_like(x), lax.bessel_i1e(x))  # +0 at -0 too


def over_argument(r: jax.Array, x: jax.Array) -> jax.Array:
    """r / x for a function r with the derivative 1/2 at 0."""
    tiny = lax.abs(x) <= jnp.finfo(x.dtype).eps
    return jnp.where(tiny, jnp.full_like(x, 0.5), r / jnp.where(tiny, jnp.ones_like(x), x))


i0 = with_partials(_bessel_i0, lambda r, x: i1(x))
i1 = with_partials(_bessel_i1, lambda r, x: i0(x) - over_argument(r, x))
i0e = with_partials(lax.bessel_i0e, lambda r, x: i1e(x) - jnp.sign(x) * r)
i1e = with_partials(_bessel_i1e, lambda r, x: i0e(x) - jnp.sign(x) * r - over_argument(r, x))

_FUNCTIONS = {
    ("digamma",): lambda x: polygamma_of(0, x),
    ("lgamma",): _lgamma,
    ("i0", "special_modified_bessel_i0"): i0,
    ("special_i0e",): i0e,
    ("special_i1", "special_modified_bessel_i1"): i1,
    ("special_i1e",): i1e,
    ("special_entr",): with_partials(_entr, lambda r, x: -(1 + lax.log(x))),
    ("special_erfcx",): with_partials(_erfcx, lambda r, x: 2 * x * r - 2 / math.sqrt(math.pi)),
    ("special_log_ndtr",): with_partials(
        _log_ndtr, lambda r, x: lax.exp(-(r + x * x * 0.5)) * (1 / math.sqrt(2 * math.pi))
    ),
    ("special_ndtri",): with_partials(jsp.ndtri, lambda r, x: math.sqrt(2 * math.pi) * lax.exp(r * r * 0.5)),
}

# aten::{digamma, lgamma, i0, special_modified_bessel_i0, special_i0e, special_i1, special_modified_bessel_i1,
#     special_i1e, special_entr, special_erfcx, special_log_ndtr, special_ndtri}(Tensor self) -> Tensor
for _overloads, _fn in _FUNCTIONS.items():
    kernel(*_overloads)(float_kernel(_fn))


# --- of two numbers -------------------------------------------------------------------------------------------------


def _gamma_density(a: jax.Array, x: jax.Array) -> jax.Array:
    return lax.exp((a - 1) * lax.log(x) - x - lax.lgamma(a))


def _incomplete(fn: Callable[..., jax.Array], at_zero: float, at_infinity: float) -> Callable[..., jax.Array]:
    """A regularized incomplete gamma function of (a, x), from its limits for a to 0 and to infinity.

    In float64: near x = a JAX's iterations lose five digits of float32, and ATen's do not.
    """

    def incomplete(a, x):
        a, x = jnp.broadcast_arrays(a, x)
        inside = cast(fn(cast(a, "float64"), cast(x, "float64")), x.dtype)
        value = jnp.where((a == 0) & (x > 0), jnp.full_like(x, at_zero), inside)
        limit = jnp.where(x < jnp.inf, jnp.full_like(x, at_infinity), jnp.nan)
        return jnp.where((a == jnp.inf) & (x >= 0), limit, value)

    return incomplete


_igamma = _incomplete(lax.igamma, 1, 0)
_igammac = _incomplete(lax.igammac, 0, 1)

_OF_TWO = {
    ("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar"): zeta,
    ("igamma",): with_partials(_igamma, None, lambda r, a, x: _gamma_density(a, x)),
    ("igammac",): with_partials(_igammac, None, lambda r, a, x: -_gamma_density(a, x)),
}


# aten::{special_zeta, igamma, igammac}(Tensor self, Tensor other) -> Tensor
# aten::special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor
# aten::special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor
for _overloads, _fn in _OF_TWO.items():
    kernel(*_overloads)(float_kernel_of_two(_fn))
