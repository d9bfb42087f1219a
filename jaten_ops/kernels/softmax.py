"""Softmax, log-softmax, log-sum-exp and their backward ops."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.dot_reductions import sum_of_last
from ..cpu.folding import folded_sum
from ..kernel_base.extrema import highest, reduce_max
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, get_default_float, is_complex, is_inexact, to_real
from .reduction import axes_of, count, with_axis
from .unary import exp, log


def _sum(x: jax.Array, axis: int) -> jax.Array:
    return lax.expand_dims(lax.reduce_sum(x, (axis,)), (axis,))


def _max(x: jax.Array, axis: int) -> jax.Array:
    return lax.expand_dims(highest(x, (axis,)), (axis,))


def _apart(x: jax.Array) -> jax.Array:
    """The same array, which XLA's CPU computes before what reads it.

    Else YNNPACK's kernel for sums takes in what is computed of a sum as well, or stores every term, for what else reads
    it: a softmax of rows of 128 takes half as much time again, a loss of cross entropy up to twice the time.
    """
    return by_platform(x, cpu=lax.optimization_barrier, default=lambda x: x)


# Gradients are written out: they need one sum, where the derivative of the composition has several.


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def softmax_of(x: jax.Array, axis: int, safe: bool) -> jax.Array:
    """The softmax of x; a row of -inf gives NaN, or 0 if `safe`."""
    highest = _max(x, axis)
    if safe:
        highest = jnp.where(highest == -jnp.inf, jnp.zeros((), x.dtype), highest)
    exponentials = lax.exp(x - highest)
    divisor = _apart(_sum(exponentials, axis))
    if safe:
        divisor = jnp.where(divisor == 0, jnp.ones((), x.dtype), divisor)
    return exponentials / divisor


@softmax_of.defjvp
def _softmax_jvp(axis, safe, primals, tangents):
    out = softmax_of(primals[0], axis, safe)
    return out, out * (tangents[0] - _sum(out * tangents[0], axis))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_softmax_of(x: jax.Array, axis: int) -> jax.Array:
    top = _max(x, axis)
    total = _sum(lax.exp(x - top), axis)
    return (x - _apart(top)) - lax.log(total)


@log_softmax_of.defjvp
def _log_softmax_jvp(axis, primals, tangents):
    out = log_softmax_of(primals[0], axis)
    return out, tangents[0] - _sum(lax.exp(out) * tangents[0], axis)


def _along(fn, x: jax.Array, dim: int, dtype: np.dtype) -> jax.Array:
    """`fn(x, axis)` computed in the computation type, as `dtype`."""
    x, shape = cast(x, compute_type(x.dtype)), x.shape
    x, axis = with_axis(x, dim)
    out = fn(x, axis) if x.size else x
    return cast(lax.reshape(out, shape), dtype)


def _result_type(x: jax.Array, half_to_float: bool) -> np.dtype:
    return np.dtype("float32") if half_to_float else x.dtype


# aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@kernel("_softmax")
def softmax(self, dim, half_to_float):
    return _along(lambda x, axis: softmax_of(x, axis, False), self, dim, _result_type(self, half_to_float))


# aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@kernel("_log_softmax")
def log_softmax(self, dim, half_to_float):
    return _along(log_softmax_of, self, dim, _result_type(self, half_to_float))


# aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor
@kernel("_safe_softmax")
def safe_softmax(self, dim, dtype=None):
    self = self if dtype is None else cast(self, dtype)
    return _along(lambda x, axis: softmax_of(x, axis, True), self, dim, self.dtype)


# aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@kernel("_softmax_backward_data")
def softmax_backward_data(grad_output, output, dim, input_dtype):
    output = cast(output, compute_type(output.dtype))

    def backward(grad: jax.Array, axis: int) -> jax.Array:
        out = lax.reshape(output, grad.shape)
        weighted = grad * out
        return weighted - out * folded_sum(weighted, (axis,))

    return _along(backward, grad_output, dim, input_dtype)


# aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@kernel("_log_softmax_backward_data")
def log_softmax_backward_data(grad_output, output, dim, input_dtype):
    output = cast(output, compute_type(output.dtype))

    def backward(grad: jax.Array, axis: int) -> jax.Array:
        return grad - lax.exp(lax.reshape(output, grad.shape)) * sum_of_last(grad, (axis,))

    return _along(backward, grad_output, dim, input_dtype)


# aten::_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> Tensor
@kernel("_masked_softmax")
def masked_softmax(self, mask, dim=None, mask_type=None):
    """Softmax over the elements where `mask` is False: aten/src/ATen/native/SoftMax.cpp, masked_softmax_cpu."""
    mask = _full_mask(self, mask, mask_type)
    filled = jnp.where(mask, np.array(-np.inf, self.dtype), self)
    dim = self.ndim - 1 if dim is None else dim
    return _along(lambda x, axis: softmax_of(x, axis, False), filled, dim, self.dtype)


def _full_mask(x: jax.Array, mask: jax.Array, mask_type: int | None) -> jax.Array:
    """The mask in the shape of x: type 0 is (L, L) of attention, 1 is (batch, L) of padding, 2 has that shape."""
    if mask.dtype != bool:
        raise RuntimeError("Mask should be a boolean tensor")
    if x.ndim == 4 and mask.ndim == 2 and mask_type is None:
        raise RuntimeError("Mask Type should be defined")
    if x.ndim == 4 and mask.ndim == 2 and mask_type == 1:
        expected, shape = (x.shape[0], x.shape[2]), (x.shape[0], 1, 1, x.shape[2])
    elif x.ndim == 4 and mask.ndim == 2 and mask_type == 0:
        expected, shape = (x.shape[2], x.shape[2]), (1, 1, x.shape[2], x.shape[2])
    else:
        expected = shape = x.shape
    if mask.shape != expected:
        raise RuntimeError(f"mask shape should be {expected} for this mask_type, got {mask.shape}")
    return jnp.broadcast_to(lax.reshape(mask, shape), x.shape)


# aten::_masked_softmax_backward(Tensor grad_output, Tensor output, Tensor mask, int? dim=None) -> Tensor
@kernel("_masked_softmax_backward")
def masked_softmax_backward(grad_output, output, mask, dim=None):
    dim = grad_output.ndim - 1 if dim is None else dim
    if mask.shape != grad_output.shape:
        raise RuntimeError(f"the mask should have the shape of grad_output, {grad_output.shape}, got {mask.shape}")
    zero = jnp.zeros((), output.dtype)
    return softmax_backward_data(
        jnp.where(mask, zero, grad_output), jnp.where(mask, zero, output), dim, grad_output.dtype
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_sum_exp(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """log(sum(exp(x))) over some axes, which stay as 1; -inf for an empty sum."""
    real = to_real(x.dtype)
    shift = jnp.zeros((), real)
    if count(x, axes):
        # the exponential of a real NaN is NaN, whatever is subtracted; in a complex one a part may be a number
        top = reduce_max(lax.real(x), axes) if is_complex(x.dtype) else highest(x, axes)
        shift = lax.expand_dims(top, axes)
        shift = jnp.where(lax.abs(shift) == jnp.inf, jnp.zeros((), real), shift)
    return log(lax.expand_dims(lax.reduce_sum(exp(x - shift), axes), axes)) + shift


@log_sum_exp.defjvp
def _log_sum_exp_jvp(axes, primals, tangents):
    (x,), (tangent,) = primals, tangents
    out = log_sum_exp(x, axes)
    nothing = (lax.real(out) if is_complex(out.dtype) else out) == -jnp.inf
    weights = lax.exp(x - jnp.where(nothing, jnp.zeros((), out.dtype), out))  # without NaN where all are -inf
    return out, lax.expand_dims(lax.reduce_sum(weights * tangent, axes), axes)


# aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor
@kernel("logsumexp")
def logsumexp(self, dim, keepdim=False):
    dtype = self.dtype if is_inexact(self.dtype) else get_default_float()
    axes = axes_of(self, dim)
    out = cast(log_sum_exp(cast(self, compute_type(dtype)), axes), dtype)
    return out if keepdim else lax.squeeze(out, axes)
