"""The reparameterized gradient of the Dirichlet distribution: aten/src/ATen/native/Distributions.h.

ATen approximates it, by another formula in each of four regions; so does this, to give the same values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from .promotion import cast

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
    factor = lax.digamma(alpha) - lax.digamma(alpha + beta) - jnp.log(x)
    term = jnp.ones_like(x)
    series = term / alpha * (factor + 1 / alpha)
    for i in range(1, 11):
        term = term * ((i - beta) * x / i)
        series = series + term / (alpha + i) * (factor + 1 / (alpha + i))
    result = x * lax.pow(1 - x, -beta) * series
    return jnp.where(jnp.isnan(result), 0, result)


def _near_zero_by_beta(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The gradient of a Beta sample near 0 by beta: eight terms of a series."""
    factor = lax.digamma(alpha + beta) - lax.digamma(beta)
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
    """What stands in for the saddle point expansion at its singularity, the mean."""
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
    approximation = x * (lax.digamma(total) - lax.digamma(alpha)) / (total - alpha)
    return numerator / denominator * approximation


@kernel("_dirichlet_grad")
def dirichlet_grad(x, alpha, total):
    if len({x.dtype, alpha.dtype, total.dtype}) > 1:
        raise RuntimeError(f"_dirichlet_grad: expected one dtype, but got {x.dtype}, {alpha.dtype}, {total.dtype}")
    if x.dtype.name not in ("float32", "float64"):
        raise NotImplementedError(f"_dirichlet_grad is not implemented for {x.dtype}")
    dtype = x.dtype
    x, alpha, total = jnp.broadcast_arrays(x, alpha, total)
    # ATen chooses the formula in the dtype of the input, and sums the series in it too; they are better in double
    beta, boundary = total - alpha, total * x * (1 - x)
    near_zero, near_one = (x <= 0.5) & (boundary < 2.5), (x >= 0.5) & (boundary < 0.75)
    large = (alpha > 6) & (beta > 6)
    x, alpha, total = (cast(v, "float64") for v in (x, alpha, total))
    beta = total - alpha
    result = jnp.where(large, _large(x, alpha, beta), _corrected(x, alpha, total))
    result = jnp.where(near_one, -_near_zero_by_beta(1 - x, beta, alpha), result)
    return cast(jnp.where(near_zero, _near_zero_by_alpha(x, alpha, beta), result), dtype)
