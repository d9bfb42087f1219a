"""The reparameterized gradients of the Gamma and Dirichlet distributions: aten/src/ATen/native/Distributions.h.

ATen approximates them with a different formula in each of a few regions. These use the same formulas, for equal values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast

# Gamma

# of the logarithm of the gradient, numerator and denominator: by powers of log(x / alpha), of log(alpha)
_GAMMA = np.array(
    [
        [
            [0.16009398, -0.094634809, 0.025146376, -0.0030648343],
            [1, 0.32668115, 0.10406089, 0.0014179084],
        ],
        [
            [0.53487893, 0.1298071, 0.065735949, -0.0015649758],
            [0.16639465, 0.020070113, -0.0035938915, -0.00058392623],
        ],
        [
            [0.040121004, -0.0065914022, -0.0026286047, -0.0013441777],
            [0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07],
        ],
    ]
)


def _digamma(x: jax.Array) -> jax.Array:
    """digamma, infinite without regard to the sign at its poles, as in this function of ATen's."""
    return jnp.where((x <= 0) & (x == jnp.floor(x)), jnp.inf, lax.digamma(x))


def _gamma_near_zero(alpha: jax.Array, x: jax.Array) -> jax.Array:
    """Five terms of the series of the distribution function."""
    term, divisor = jnp.ones_like(x), alpha
    first, second = term / divisor, term / (divisor * divisor)
    for i in range(1, 6):
        term, divisor = term * (-x / i), divisor + 1
        first, second = first + term / divisor, second + term / (divisor * divisor)
    power = lax.pow(x, alpha)
    by_alpha = (jnp.log(x) - _digamma(alpha)) * (power * first) - power * second
    result = -by_alpha / (lax.pow(x, alpha - 1) * jnp.exp(-x))
    return jnp.where(jnp.isnan(result), 0, result)


def _gamma_near_mean(alpha: jax.Array, x: jax.Array) -> jax.Array:
    """The expansion that replaces the saddle point expansion near its singularity, alpha."""
    first = 1 + 24 * alpha * (1 + 12 * alpha)
    second = 1440 * alpha**2 + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x)
    return first * second / (1244160 * alpha**4)


def _gamma_saddle_point(alpha: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient for large alpha, with x away from alpha."""
    root, ratio = jnp.sqrt(8 * alpha), jnp.log(x / alpha)
    power = lax.pow(x - alpha - alpha * ratio, np.float64(-1.5))
    inner = root / (alpha - x) + jnp.where(x < alpha, -power, power)
    outer = ratio * inner - jnp.sqrt(2 / alpha) * (alpha + x) / lax.square(alpha - x)
    stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha))
    return -stirling * x * outer / root


def _gamma_rational(alpha: jax.Array, x: jax.Array) -> jax.Array:
    u, v = jnp.log(x / alpha), jnp.log(alpha)
    powers = (jnp.stack([b**k for k in range(n)]) for b, n in ((u, 3), (v, 4)))
    numerator, denominator = jnp.einsum("irj,i...,j...->r...", _GAMMA, *powers)
    return jnp.exp(numerator / denominator)


# aten::_standard_gamma_grad(Tensor self, Tensor output) -> Tensor
@kernel("_standard_gamma_grad")
def standard_gamma_grad(self, output):
    _require_single_or_double("_standard_gamma_grad", self, output)
    alpha, x = jnp.broadcast_arrays(cast(self, "float64"), cast(output, "float64"))
    near = (0.9 * alpha <= x) & (x <= 1.1 * alpha)
    large = jnp.where(near, _gamma_near_mean(alpha, x), _gamma_saddle_point(alpha, x))
    result = jnp.where(alpha > 8, large, _gamma_rational(alpha, x))
    return cast(jnp.where(x < np.float32(0.8), _gamma_near_zero(alpha, x), result), self.dtype)


def _require_single_or_double(name: str, *tensors: jax.Array) -> None:
    dtypes = [x.dtype for x in tensors]
    if len(set(dtypes)) > 1:
        raise RuntimeError(f"{name}: expected one dtype, but got {', '.join(map(str, dtypes))}")
    if dtypes[0].name not in ("float32", "float64"):
        raise NotImplementedError(f"{name} is not implemented for {dtypes[0]}")


# Beta, of which a Dirichlet sample's elements are

# of the rational correction: numerator and denominator; by powers of log(x), of log(alpha / x), of the rest
_CORRECTION = np.array(
    [
        [
            [
                [1.003668233, -0.01061107488, -0.0657888334, 0.01201642863],
                [0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033],
                [-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013],
            ],
            [
                [0.221950385, -0.3187676331, 0.01799915743, 0.01074823814],
                [-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057],
                [0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05],
            ],
            [
                [-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565],
                [0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181],
                [0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05],
            ],
        ],
        [
            [
                [1, -0.02924021934, -0.04438342661, 0.007285809825],
                [0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521],
                [-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149],
            ],
            [
                [0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273],
                [0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956],
                [-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05],
            ],
            [
                [0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05],
                [0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05],
                [-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06],
            ],
        ],
    ]
)


def _near_zero_by_alpha(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The gradient of a Beta sample near 0 by alpha: ten terms of a series."""
    factor = _digamma(alpha) - _digamma(alpha + beta) - jnp.log(x)
    term = jnp.ones_like(x)
    series = term / alpha * (factor + 1 / alpha)
    for i in range(1, 11):
        term = term * ((i - beta) * x / i)
        series = series + term / (alpha + i) * (factor + 1 / (alpha + i))
    result = x * lax.pow(1 - x, -beta) * series
    return jnp.where(jnp.isnan(result), 0, result)


def _near_zero_by_beta(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The gradient of a Beta sample near 0 by beta: eight terms of a series."""
    factor = _digamma(alpha + beta) - _digamma(beta)
    term, product, derivative = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for i in range(1, 9):
        term = term * (-x / i)
        derivative = derivative * (beta - i) + product
        product = product * (beta - i)
        series = series + term / (alpha + i) * (derivative + factor * product)
    result = -lax.pow(1 - x, 1 - beta) * series
    return jnp.where(jnp.isnan(result), 0, result)


def _near_mean(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The expansion that replaces the saddle point expansion near its singularity, the mean."""
    total = alpha + beta
    inner = (453 + 1620 * beta * (1 - x) - 455 * x) * beta + alpha * (8 * (1 - x) * (135 * beta - 11))
    inner = 3 * (59 + 180 * beta - 90 * x) * beta**2 + alpha * inner
    inner = (43 + 20 * (16 + 27 * beta) * x) * beta**3 + alpha * inner
    polynomial = 47 * x * beta**4 + alpha * inner
    numerator = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    return numerator / (1 - x) * polynomial / (12960 * alpha**3 * beta**2 * (1 + 12 * total))


def _stirling(x: jax.Array) -> jax.Array:
    return 1 + 1 / (12 * x) + 1 / (288 * x * x)


def _saddle_point(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """For large alpha and beta, away from the mean."""
    total = alpha + beta
    off = alpha * (x - 1) + beta * x  # of the mean
    first = (2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * beta**2) / (
        jnp.sqrt(2 * alpha / beta) * lax.pow(total, np.float64(1.5)) * off * off
    )
    second = 0.5 * jnp.log(alpha / (total * x))
    third = jnp.sqrt(8 * alpha * beta / total) / off
    base = beta * jnp.log(beta / (total * (1 - x))) + alpha * jnp.log(alpha / (total * x))
    fourth = lax.pow(base, np.float64(-1.5))
    fourth = jnp.where(x < alpha / total, fourth, -fourth)
    scale = _stirling(alpha) * _stirling(beta) / _stirling(total) * -x / jnp.sqrt(2 * alpha * beta / total)
    return scale * (first + second * (third + fourth))


def _large(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    total = alpha + beta
    mean, std = alpha / total, jnp.sqrt(alpha * beta / (total + 1)) / total
    near = (mean - 0.1 * std <= x) & (x <= mean + 0.1 * std)
    return jnp.where(near, _near_mean(x, alpha, beta), _saddle_point(x, alpha, beta))


def _corrected(x: jax.Array, alpha: jax.Array, total: jax.Array) -> jax.Array:
    """An analytic approximation times a rational correction."""
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a
    powers = [jnp.stack([v**k for k in range(n)]) for v, n in ((u, 3), (a, 3), (b, 4))]
    numerator, denominator = jnp.einsum("rijk,i...,j...,k...->r...", _CORRECTION, *powers)
    approximation = x * (_digamma(total) - _digamma(alpha)) / (total - alpha)
    return numerator / denominator * approximation


# aten::_dirichlet_grad(Tensor x, Tensor alpha, Tensor total) -> Tensor
@kernel("_dirichlet_grad")
def dirichlet_grad(x, alpha, total):
    _require_single_or_double("_dirichlet_grad", x, alpha, total)
    dtype = x.dtype
    x, alpha, total = jnp.broadcast_arrays(x, alpha, total)
    # ATen chooses the formula, and sums the series, in the dtype of the input; double precision is more accurate
    beta, boundary = total - alpha, total * x * (1 - x)
    near_zero, near_one = (x <= 0.5) & (boundary < 2.5), (x >= 0.5) & (boundary < 0.75)
    large = (alpha > 6) & (beta > 6)
    x, alpha, total = (cast(v, "float64") for v in (x, alpha, total))
    beta = total - alpha
    result = jnp.where(large, _large(x, alpha, beta), _corrected(x, alpha, total))
    result = jnp.where(near_one, -_near_zero_by_beta(1 - x, beta, alpha), result)
    return cast(jnp.where(near_zero, _near_zero_by_alpha(x, alpha, beta), result), dtype)
