"""Batch, layer, group and instance normalization.

Statistics are computed in float32 (float64 for float64) by two passes over the input: the one-pass formula cancels
where the mean is large, and XLA's reductions are as fast as a copy. Sources: aten/src/ATen/native/Normalization.cpp,
layer_norm.cpp, group_norm.cpp.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaten_ops.registry import kernel

from ..cpu.dot_reductions import sum_of_last, sum_of_products
from ..cpu.folding import folded_sum
from ..kernel_base.materialize import stored
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, size_number

Dims = tuple[int, ...]


def statistics_dtype(input: jax.Array, *parameters: jax.Array | None) -> np.dtype:
    """The dtype of saved statistics: the input's, unless a float16 or bfloat16 input has float32 parameters."""
    dtypes = {np.dtype(p.dtype) for p in parameters if p is not None}
    return np.dtype("float32") if np.dtype("float32") in dtypes and input.dtype.itemsize < 4 else np.dtype(input.dtype)


def _mean(x: jax.Array, dims: Dims) -> jax.Array:
    return jnp.sum(x, dims, keepdims=True) / size_number(math.prod(x.shape[d] for d in dims), x.dtype)


def _moments(x: jax.Array, dims: Dims) -> tuple[jax.Array, jax.Array]:
    mean = _mean(x, dims)
    centred = x - mean
    # XLA adds elements in sequence, ATen in blocks; the mean of the rest, from the same pass, corrects the difference
    rest = _mean(centred, dims)
    return mean + rest, _mean(centred * centred, dims) - rest * rest


def _inverse_std(var: jax.Array, eps: jax.Array) -> jax.Array:
    """`1 / sqrt(var + eps)`, but 0 where both are 0, as ATen has it."""
    total = var + eps
    zero = total == 0
    return jnp.where(zero, 0, lax.rsqrt(jnp.where(zero, 1, total)))


def _saved(x: jax.Array, mean: jax.Array, rstd: jax.Array, dims: Dims) -> tuple[jax.Array, jax.Array]:
    """Saved statistics of `x` over `dims`, differentiable as the functions of `x` that they are."""

    @jax.custom_jvp
    def saved(x, mean, rstd):
        return mean, rstd

    @saved.defjvp
    def saved_jvp(primals, tangents):
        x, mean, rstd = primals
        dx = tangents[0]
        return (mean, rstd), (_mean(dx, dims), -(rstd**3) * _mean((x - mean) * dx, dims))

    return saved(x, mean, rstd)


def widen(*arrays: jax.Array | None, like: jax.Array) -> list[Any]:
    """The arrays in the dtype that `like` is computed in."""
    dtype = compute_type(like.dtype)
    return [None if a is None else cast(a, dtype) for a in arrays]


# Batch normalization: input (N, C, *), everything else (C,)


def _per_channel(x: jax.Array | None, ndim: int) -> Any:
    return None if x is None else x.reshape(1, -1, *[1] * (ndim - 2))


def _affine(normal: jax.Array, weight: Any, bias: Any) -> jax.Array:
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def _batch_dims(x: jax.Array) -> Dims:
    return (0, *range(2, x.ndim))


def _batch_norm_apply(input, weight, bias, mean, invstd):
    x, weight, bias, mean, invstd = widen(input, weight, bias, mean, invstd, like=input)
    scale = invstd if weight is None else invstd * weight
    mean, scale, bias = (_per_channel(p, x.ndim) for p in (mean, scale, bias))
    return cast(_affine((x - mean) * scale, None, bias), input.dtype)


def _update(running: jax.Array | None, value: jax.Array, momentum: Any) -> Any:
    if running is None:
        return None
    wide = cast(running, value.dtype)
    return cast(wide + cast(momentum, value.dtype) * (value - wide), running.dtype)


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """The output, the saved statistics, and the new running statistics."""
    for name, p in (("weight", weight), ("bias", bias), ("running_mean", running_mean), ("running_var", running_var)):
        if p is not None and p.size != input.shape[1]:
            raise RuntimeError(f"{name} should contain {input.shape[1]} elements not {p.size}")
    (x,) = widen(input, like=input)
    eps = cast(eps, x.dtype)
    dtype = statistics_dtype(input, weight, bias, running_mean, running_var)
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("batch_norm: expected running_mean and running_var where training is False")
        invstd = _inverse_std(cast(running_var, x.dtype), eps)
        out = _batch_norm_apply(input, weight, bias, running_mean, invstd)
        empty = jnp.zeros((0,), dtype)
        return out, empty, empty, running_mean, running_var
    dims = _batch_dims(x)
    mean, var = (s.reshape(-1) for s in _moments(x, dims))
    invstd = _inverse_std(var, eps)
    out = _batch_norm_apply(input, weight, bias, mean, invstd)
    # ATen ignores gradients of the statistics
    mean, var, saved_invstd = (lax.stop_gradient(s) for s in (mean, var, invstd))
    count = math.prod(x.shape[d] for d in dims)
    if is_symbolic_dim(count):
        unbiased = var * (size_number(count, x.dtype) / size_number(count - 1, x.dtype))
    else:
        unbiased = var * np.asarray(np.divide(count, count - 1) if count != 1 else math.nan, x.dtype)
    return (
        out,
        cast(mean, dtype),
        cast(saved_invstd, dtype),
        _update(running_mean, mean, momentum),
        _update(running_var, unbiased, momentum),
    )


# aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)
@kernel("native_batch_norm")
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[:3]


# aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out,
#     Tensor running_var_out)
@kernel("_native_batch_norm_legit_functional")
def native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


# aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum,
#     float eps) -> (Tensor, Tensor, Tensor)
@kernel("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


# aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)
@kernel("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


def _reserve() -> jax.Array:
    """The reserved space that cuDNN would keep for the backward pass: empty."""
    return jnp.zeros((0,), jnp.uint8)


# aten::_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("_batch_norm_no_update")
def batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps):
    return *_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3], _reserve()


# aten::_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out,
#     Tensor running_var_out)
@kernel("_batch_norm_with_update_functional")
def batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, invstd, *running = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return out, mean, invstd, _reserve(), *running


# aten::cudnn_batch_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     bool training, float exponential_average_factor, float epsilon) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("cudnn_batch_norm")
def cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon):
    results = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )
    return *results, _reserve()


# aten::miopen_batch_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     bool training, float exponential_average_factor, float epsilon) -> (Tensor, Tensor, Tensor)
@kernel("miopen_batch_norm")
def miopen_batch_norm(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon):
    return native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )


# aten::batch_norm_update_stats(Tensor input, Tensor? running_mean, Tensor? running_var, float momentum) -> (Tensor,
#     Tensor)
@kernel("batch_norm_update_stats")
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    """Mean and biased variance of each channel."""
    dtype = statistics_dtype(input, running_mean, running_var)
    (x,) = widen(input, like=input)
    return tuple(cast(s.reshape(-1), dtype) for s in _moments(x, _batch_dims(x)))


# aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean,
#     Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps,
#     bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@kernel("native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    grad, x, scale = widen(grad_out, input, weight, like=input)
    dims = _batch_dims(x)
    scale = 1 if scale is None else _per_channel(scale, x.ndim)
    mean, invstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    mean, invstd = (_per_channel(s, x.ndim) for s in widen(mean, invstd, like=input))
    if train:
        mean, invstd = _saved(x, mean, invstd, dims)
    else:
        invstd = _inverse_std(invstd, cast(eps, x.dtype))
    normal = (x - mean) * invstd
    sums = [jnp.sum(g, dims, keepdims=True) for g in (grad * normal, grad)]
    count = size_number(math.prod(x.shape[d] for d in dims), x.dtype)
    centred = grad - sums[1] / count - normal * (sums[0] / count) if train else grad
    dtype = statistics_dtype(input, running_mean, running_var) if weight is None else weight.dtype
    grad_input = centred * (invstd * scale)
    of_weight, of_bias = (cast(s.reshape(-1), dtype) for s in sums)
    return (
        cast(grad_input, input.dtype) if output_mask[0] else None,
        of_weight if output_mask[1] else None,
        of_bias if output_mask[2] else None,
    )


# aten::batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var,
#     Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve) -> (Tensor,
#     Tensor, Tensor)
@kernel("batch_norm_backward")
def batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, reserve
):
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


# aten::cudnn_batch_norm_backward(Tensor input, Tensor grad_output, Tensor weight, Tensor? running_mean,
#     Tensor? running_var, Tensor? save_mean, Tensor? save_var, float epsilon, Tensor reserveSpace) -> (Tensor, Tensor,
#     Tensor)
@kernel("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon, reserveSpace=None
):
    return native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon, (True, True, True)
    )


# aten::miopen_batch_norm_backward(Tensor input, Tensor grad_output, Tensor weight, Tensor? running_mean,
#     Tensor? running_var, Tensor? save_mean, Tensor? save_var, float epsilon) -> (Tensor, Tensor, Tensor)
kernel("miopen_batch_norm_backward")(cudnn_batch_norm_backward)


# Layer normalization: over the last dims


def _last_dims(x: jax.Array, normalized_shape: Dims) -> Dims:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _first_dims(x: jax.Array, normalized_shape: Dims) -> Dims:
    return tuple(range(x.ndim - len(normalized_shape)))


def _row_moments(x: jax.Array, dims: Dims) -> tuple[jax.Array, jax.Array]:
    """`_moments` over the last dimensions."""
    size = size_number(math.prod(x.shape[d] for d in dims), x.dtype)
    mean = sum_of_last(x, dims) / size
    return mean, folded_sum((x - mean) ** 2, dims) / size


# aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor,
#     Tensor, Tensor)
@kernel("native_layer_norm")
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    x, scale, shift = widen(input, weight, bias, like=input)
    mean, var = _row_moments(x, _last_dims(x, normalized_shape))
    rstd = lax.rsqrt(var + cast(eps, x.dtype))
    out = _affine((x - mean) * rstd, scale, shift)
    dtype = statistics_dtype(input, weight, bias)
    return cast(out, input.dtype), *(cast(lax.stop_gradient(s), dtype) for s in (mean, rstd))


def _row_weights(scale: jax.Array | None, x: jax.Array, rows: Dims) -> tuple[jax.Array, np.ndarray]:
    """Weights of the elements of a row, with the dimensions of x, and the number of elements in a row."""
    weights = jnp.ones(x.shape[len(rows) :], x.dtype) if scale is None else scale
    return lax.expand_dims(weights, rows), np.asarray(weights.size, x.dtype)


# aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,
#     Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@kernel("native_layer_norm_backward")
def native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    grad, x, scale, mean, rstd = widen(grad_out, input, weight, mean, rstd, like=input)
    dims, rows = _last_dims(x, normalized_shape), _first_dims(x, normalized_shape)
    mean, rstd = _saved(x, mean, rstd, dims)
    weights, size = _row_weights(scale, x, rows)
    product = grad * (x - mean)
    slope = sum_of_products(product, weights, dims) / size * rstd**2
    grad_input = rstd * (grad * weights - sum_of_products(grad, weights, dims) / size - (x - mean) * slope)
    wants_weight = output_mask[1] and weight is not None
    return (
        cast(grad_input, input.dtype) if output_mask[0] else None,
        cast(lax.squeeze(sum_of_products(product, rstd, rows), rows), weight.dtype) if wants_weight else None,
        cast(jnp.sum(grad, rows), bias.dtype) if output_mask[2] and bias is not None else None,
    )


def by_root_mean_square(input, normalized_shape, weight, eps):
    """`aten::rms_norm`, which ATen composes: rounded once, as there."""
    x, scale = widen(input, weight, like=input)
    dims = _last_dims(x, normalized_shape)
    size = size_number(math.prod(x.shape[d] for d in dims), x.dtype)
    out = x * lax.rsqrt(sum_of_last(x * x, dims) / size + cast(eps, x.dtype))
    return cast(out if scale is None else out * scale, input.dtype)


# aten::_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight,
#     bool[2] output_mask) -> (Tensor, Tensor)
@kernel("_fused_rms_norm_backward")
def fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    grad, x, scale, rstd = widen(grad_out, input, weight, rstd, like=input)
    dims, rows = _last_dims(x, normalized_shape), _first_dims(x, normalized_shape)
    weights, size = _row_weights(scale, x, rows)
    product = grad * x
    grad_input = rstd * (grad * weights - x * (sum_of_products(product, weights, dims) / size * rstd**2))
    wants_weight = output_mask[1] and weight is not None
    return (
        cast(grad_input, input.dtype) if output_mask[0] else None,
        cast(lax.squeeze(sum_of_products(product, rstd, rows), rows), weight.dtype) if wants_weight else None,
    )


# Group normalization: (N, C, *) seen as (N, group, C / group, HxW)

_LARGE = 2**14  # elements


def _of_channels(x: jax.Array, like: jax.Array) -> jax.Array:
    """Values of groups (N, G) or channels (C,), repeated so that each channel of (N, C, *) has its own.

    XLA's loops then run over the shape of the input; with groups they would compute an index for each element.
    """
    n, channels = like.shape[:2]
    if x.ndim == 1:
        return x.reshape(1, channels, *[1] * (like.ndim - 2))
    each = jnp.broadcast_to(x[:, :, None], (*x.shape, channels // x.shape[1]))
    return each.reshape(n, channels, *[1] * (like.ndim - 2))


def _of_groups(sums: jax.Array, like: jax.Array, group: int) -> jax.Array:
    """The means (N, G) of groups of (N, C, *), from the sums (N, C) of channels, as ATen makes them."""
    n, channels, *inner = like.shape
    count = channels // group * math.prod(inner)
    return jnp.sum(sums.reshape(n, group, channels // group), 2) / size_number(count, like.dtype)


def _group_moments(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """`_moments` of groups: (N, G)."""
    inner = tuple(range(2, x.ndim))
    mean = _of_groups(jnp.sum(x, inner), x, group)
    centred = x - _of_channels(mean, x)
    rest, squares = (_of_groups(jnp.sum(a, inner), x, group) for a in (centred, centred * centred))
    return mean + rest, squares - rest * rest


# aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group,
#     float eps) -> (Tensor, Tensor, Tensor)
@kernel("native_group_norm")
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    x, scale, shift = widen(input, weight, bias, like=input)
    mean, var = _group_moments(x, group)
    rstd = lax.rsqrt(var + cast(eps, x.dtype))
    of_mean, factor = _of_channels(mean, x), _of_channels(rstd, x)
    factor = factor if scale is None else factor * _of_channels(scale, x)
    if not any(map(is_symbolic_dim, x.shape)) and x.size >= _LARGE:
        # with channels last, a loop would compute an index for each element to read the values of its group
        kept = functools.partial(stored, lambda *found: found)
        of_mean, factor = by_platform(of_mean, factor, cpu=kept, default=lambda *found: found)
    out = _affine(x - of_mean, factor, None if shift is None else _of_channels(shift, x))
    dtype = statistics_dtype(input, weight, bias)
    return cast(out, input.dtype), cast(mean, dtype), cast(rstd, dtype)


# aten::native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N,
#     SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@kernel("native_group_norm_backward")
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    grad, x, scale, mean, rstd = widen(grad_out, input, weight, mean, rstd, like=input)
    grad = grad.reshape(x.shape)
    of_mean, of_rstd = (_of_channels(s.reshape(N, group), x) for s in (mean, rstd))
    inner = tuple(range(2, x.ndim))
    # of each channel; the sums of a group are made of them, as in ATen
    total, along = jnp.sum(grad, inner), jnp.sum(grad * ((x - of_mean) * of_rstd), inner)
    if not x.size:  # ATen multiplies the sum by the statistics, which are NaN then
        along = along + 0 * of_rstd.reshape(along.shape)
    scales = jnp.ones((C,), x.dtype) if scale is None else scale

    def of_group(sums: jax.Array) -> jax.Array:
        return _of_channels(_of_groups(sums * scales, x, group), x)

    grad_input = of_rstd * (
        grad * _of_channels(scales, x) - of_group(total) - (x - of_mean) * (of_rstd * of_group(along))
    )
    dtype = input.dtype if weight is None else weight.dtype
    return (
        cast(grad_input, input.dtype) if output_mask[0] else None,
        cast(jnp.sum(along, 0), dtype) if output_mask[1] else None,
        cast(jnp.sum(total, 0), dtype) if output_mask[2] else None,
    )
