"""The parts of batch normalization, between which its statistics may be gathered from several processes.

ATen has them for CUDA only: aten/src/ATen/native/cuda/Normalization.cuh. Input is (N, C, *), statistics are (C,), those
of several processes (processes, C), in float32 at least.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type


def _dims(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channels(statistic: jax.Array, like: jax.Array) -> jax.Array:
    """(C,) as it broadcasts to (N, C, *), in the dtype that `like` is computed in."""
    return cast(statistic, compute_type(like.dtype)).reshape(1, -1, *[1] * (like.ndim - 2))


def _inverse_std(var: jax.Array, eps: Any) -> jax.Array:
    """1 / sqrt(var + eps), but 0 where both are 0."""
    total = var + cast(eps, var.dtype)
    zero = total == 0
    return jnp.where(zero, 0, lax.rsqrt(jnp.where(zero, 1, total)))


# aten::batch_norm_stats(Tensor input, float eps) -> (Tensor, Tensor)
@kernel("batch_norm_stats")
def batch_norm_stats(input, eps):
    """Mean and 1 / sqrt(variance + eps), with the biased variance."""
    x = cast(input, compute_type(input.dtype))
    mean = jnp.mean(x, _dims(x), keepdims=True)
    centred = x - mean
    # the mean of the rest corrects the rounding of the first mean
    rest = jnp.mean(centred, _dims(x), keepdims=True)
    var = jnp.mean(lax.square(centred - rest), _dims(x))
    return (mean + rest).reshape(-1), _inverse_std(var, eps)


# aten::batch_norm_elemt(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor invstd, float eps) -> Tensor
@kernel("batch_norm_elemt")
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    x = cast(input, compute_type(input.dtype))
    scale = _channels(invstd, input) if weight is None else _channels(invstd, input) * _channels(weight, input)
    out = (x - _channels(mean, input)) * scale
    return cast(out if bias is None else out + _channels(bias, input), input.dtype)


# aten::batch_norm_backward_reduce(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight,
#     bool input_g, bool weight_g, bool bias_g) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """The sums of the gradient and of the gradient times the centred input, and the gradients of weight and bias."""
    wide = compute_type(input.dtype)
    grad = cast(grad_out, wide)
    sum_dy = jnp.sum(grad, _dims(grad))
    sum_dy_xmu = jnp.sum(grad * (cast(input, wide) - _channels(mean, input)), _dims(grad))
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        cast(sum_dy, mean.dtype) if input_g else None,
        cast(sum_dy_xmu, mean.dtype) if input_g else None,
        cast(sum_dy_xmu * cast(invstd, wide), dtype) if weight_g else None,
        cast(sum_dy, dtype) if bias_g else None,
    )


# aten::batch_norm_backward_elemt(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, Tensor? weight,
#     Tensor sum_dy, Tensor sum_dy_xmu, Tensor count) -> Tensor
@kernel("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    wide = compute_type(input.dtype)
    share = 1 / cast(jnp.sum(count), wide)
    invstd = _channels(invstd, input)
    slope = _channels(sum_dy_xmu, input) * share * lax.square(invstd)
    centred = cast(input, wide) - _channels(mean, input)
    grad = cast(grad_out, wide) - _channels(sum_dy, input) * share - centred * slope
    return cast(grad * (invstd if weight is None else invstd * _channels(weight, input)), input.dtype)


# aten::batch_norm_gather_stats_with_counts(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean,
#     Tensor? running_var, float momentum, float eps, Tensor counts) -> (Tensor, Tensor)
@kernel("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """The statistics of all processes. ATen also updates the running ones, against its schema; this does not."""
    wide = compute_type(mean.dtype)
    mean, invstd, counts = cast(mean, wide), cast(invstd, wide), cast(counts, wide).reshape(-1, 1)
    eps = cast(eps, wide)
    total = jnp.sum(counts)
    average = jnp.sum(mean * counts, 0) / total
    within = lax.square(1 / invstd) - eps
    var = jnp.sum(counts * (within + lax.square(mean - average)), 0) / total
    return average, lax.rsqrt(var + eps)


# aten::batch_norm_gather_stats(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, Tensor? running_var,
#     float momentum, float eps, int count) -> (Tensor, Tensor)
@kernel("batch_norm_gather_stats")
def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count):
    counts = np.full(mean.shape[0], count)
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, jnp.asarray(counts)
    )
