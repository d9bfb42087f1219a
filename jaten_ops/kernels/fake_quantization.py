"""Fake quantization: values rounded to those that a quantized tensor could hold, with the mask of those in its range.

Sources: FakeQuantPerTensorAffine.cpp, FakeQuantPerChannelAffine.cpp and cpu/ in aten/src/ATen/native/quantized.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaten_ops.registry import kernel

from ..kernel_base.checks import require
from ..kernel_base.extrema import reduce_max, reduce_min
from ..kernel_base.promotion import cast, is_float, is_integral
from .conversion import convert

_F32, _F64 = np.dtype("float32"), np.dtype("float64")
_OUT_OF_RANGE = "`zero_point` must be between `quant_min` and `quant_max`."


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise RuntimeError(message)


def _check_range(quant_min: int, quant_max: int) -> None:
    _check(quant_min <= quant_max, "`quant_min` should be less than or equal to `quant_max`.")


def _working_type(x: jax.Array) -> np.dtype:
    if not is_float(x.dtype):
        raise NotImplementedError(f"fake quantization is not implemented for {x.dtype}")
    return _F64 if x.dtype == _F64 else _F32


def _single(x: jax.Array) -> jax.Array:
    """The only element, as a 0-d array."""
    _check(x.size == 1, f"a Tensor with {x.size} elements cannot be converted to Scalar")
    return x.reshape(())


# One scale and zero point for the whole tensor


def _quantize(x: jax.Array, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> tuple[jax.Array, jax.Array]:
    """The values and the mask. NaN becomes the lowest value."""
    work, scale = _working_type(x), cast(scale, _F32)
    q = cast(zero_point, work) + jnp.round(cast(x, work) * cast(1 / scale, work))
    mask = (q >= cast(quant_min, work)) & (q <= cast(quant_max, work))
    clamped = jnp.where(q != q, quant_min, jnp.clip(cast(q, _F64), quant_min, quant_max))
    return cast(cast(clamped - cast(zero_point, _F64), _F32) * scale, x.dtype), mask


# aten::fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, int quant_min,
#     int quant_max) -> (Tensor output, Tensor mask)
@kernel("fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_per_tensor(self, scale, zero_point, quant_min, quant_max):
    _check_range(quant_min, quant_max)
    _check(quant_min <= zero_point <= quant_max, _OUT_OF_RANGE)
    return _quantize(self, scale, zero_point, quant_min, quant_max)


# aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, Tensor zero_point,
#     Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor output, Tensor mask)
@kernel("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_per_tensor_of_tensors(self, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    _check_range(quant_min, quant_max)
    zero_point = convert(_single(zero_point), np.dtype("int32"))
    on = convert(_single(fake_quant_enabled), np.dtype("int32")) != 0
    values, mask = _quantize(self, _single(scale), zero_point, quant_min, quant_max)
    return jnp.where(on, values, self), mask | ~on


def _first(x: jax.Array) -> jax.Array:
    """The first element as float32."""
    if x.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    return cast(x.reshape(-1)[0], _F32)


def _integer_zero_point(zero_point: jax.Array, quant_min: int, quant_max: int) -> jax.Array:
    """The zero point within the range, truncated; NaN is outside."""
    require(zero_point == zero_point, RuntimeError, _OUT_OF_RANGE)
    return convert(jnp.clip(zero_point, quant_min, quant_max), np.dtype("int64"))


# aten::_fake_quantize_learnable_per_tensor_affine(Tensor self, Tensor scale, Tensor zero_point, int quant_min,
#     int quant_max, float grad_factor=1.) -> Tensor
@kernel("_fake_quantize_learnable_per_tensor_affine")
def fake_quantize_learnable_per_tensor(self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    _check_range(quant_min, quant_max)
    zero_point = _integer_zero_point(jnp.round(_first(zero_point)), quant_min, quant_max)
    return _quantize(self, _first(scale), zero_point, quant_min, quant_max)[0]


# A scale and zero point for each index of an axis


def _along(x: jax.Array, axis: int, ndim: int) -> jax.Array:
    return x.reshape([-1 if d == axis else 1 for d in range(ndim)])


def _check_channels(x: jax.Array, scale: jax.Array, zero_point: jax.Array, axis: int) -> None:
    _check(scale.ndim == 1, "scale should be a 1-D tensor")
    _check(zero_point.ndim == 1, "zero point should be a 1-D tensor")
    _check(scale.size == zero_point.size, "scale and zero-point need to have the same dimensions")
    if not -x.ndim <= axis < x.ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-x.ndim}, {x.ndim - 1}], got {axis})")
    _check(scale.size == x.shape[axis], "dimensions of scale and zero-point are not consistent with input tensor")


# aten::fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor zero_point, int axis,
#     int quant_min, int quant_max) -> (Tensor output, Tensor mask)
@kernel("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel(self, scale, zero_point, axis, quant_min, quant_max):
    """A float zero point is added before rounding, one of integers after it. NaN and infinity become the lowest."""
    _check(scale.dtype.name in ("float32", "bfloat16"), f"Scale must be Float or BFloat16, found {scale.dtype}")
    kinds = ("int32", "float32", "float16")
    _check(zero_point.dtype.name in kinds, f"Zero-point must be Int32, Float or Half, found {zero_point.dtype}")
    _check_channels(self, scale, zero_point, axis)
    _check_range(quant_min, quant_max)
    if is_integral(zero_point.dtype):
        require((zero_point >= quant_min) & (zero_point <= quant_max), RuntimeError, _OUT_OF_RANGE)
    _check(axis >= 0, "`axis` must be between 0 and number of dimensions of input")
    work = _working_type(self)
    scale, offset = (_along(v, axis, self.ndim) for v in (cast(scale, _F32), zero_point))
    scaled = cast(self, work) * cast(1 / scale, work)
    if is_integral(offset.dtype):
        q = cast(offset, work) + jnp.round(scaled)
    else:
        q = jnp.round(cast(cast(offset, work) + scaled, _F32))
    q = convert(q, np.dtype("int64"))
    values = (cast(jnp.clip(q, quant_min, quant_max), _F64) - cast(offset, _F64)) * cast(scale, _F64)
    return cast(cast(values, work), self.dtype), (q >= quant_min) & (q <= quant_max)


def _rounded(zero_point: jax.Array, quant_min: int, quant_max: int) -> jax.Array:
    return jnp.clip(jnp.round(zero_point), quant_min, quant_max)


# aten::_fake_quantize_learnable_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis,
#     int quant_min, int quant_max, float grad_factor=1.) -> Tensor
@kernel("_fake_quantize_learnable_per_channel_affine")
def fake_quantize_learnable_per_channel(self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    zero_point = convert(_rounded(zero_point, quant_min, quant_max), np.dtype("int32"))
    return fake_quantize_per_channel(self, scale, zero_point, axis, quant_min, quant_max)[0]


# Gradients of the learnable variants, in float32: straight through the rounding for x, and for scale and zero point


def _gradients(grad, x, scale, zero_point, quant_min, quant_max, grad_factor):
    """Gradients with respect to x, and, not yet summed, to scale and zero point."""
    inverse, factor = 1 / scale, cast(grad_factor, _F32)
    q = convert(jnp.round(cast(zero_point, _F32) + x * inverse), np.dtype("int64"))
    below, above = q < quant_min, q > quant_max
    outside = below | above
    value = cast(jnp.clip(q, quant_min, quant_max) - zero_point, _F32) * scale
    edge = cast(jnp.where(below, quant_min, quant_max) - zero_point, _F32)
    by_scale = jnp.where(outside, grad * edge, grad * (value - x) * inverse) * factor
    by_zero_point = jnp.where(outside, grad * -1 * scale * factor, 0)
    return grad * cast(~outside, _F32), by_scale, by_zero_point


def _as_floats(*tensors: jax.Array) -> tuple[jax.Array, ...]:
    """Tensors of bfloat16 or float32, as float32."""
    if tensors[0].dtype.name == "bfloat16":
        return tuple(cast(t, _F32) for t in tensors)
    _check(all(t.dtype == _F32 for t in tensors), f"Expected float32, but got {[str(t.dtype) for t in tensors]}")
    return tensors


# aten::_fake_quantize_learnable_per_tensor_affine_backward(Tensor grad, Tensor self, Tensor scale, Tensor zero_point,
#     int quant_min, int quant_max, float grad_factor=1.) -> (Tensor, Tensor, Tensor)
@kernel("_fake_quantize_learnable_per_tensor_affine_backward")
def fake_quantize_learnable_per_tensor_backward(grad, self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    zero = _integer_zero_point(_first(zero_point) + np.float32(0.5), quant_min, quant_max)
    x, dy, *_ = _as_floats(self, grad, scale, zero_point)
    _check(x.size == dy.size, "`X` and `dY` are not the same size")
    _check(quant_min <= 0 <= quant_max, "The quantization range should include 0.")
    if not x.size:
        return self, scale, zero_point
    of_x, *rest = _gradients(dy, x, _first(scale), zero, quant_min, quant_max, grad_factor)
    return of_x, *(jnp.sum(g).reshape(1) for g in rest)


# aten::_fake_quantize_learnable_per_channel_affine_backward(Tensor grad, Tensor self, Tensor scale, Tensor zero_point,
#     int axis, int quant_min, int quant_max, float grad_factor=1.) -> (Tensor, Tensor, Tensor)
@kernel("_fake_quantize_learnable_per_channel_affine_backward")
def fake_quantize_learnable_per_channel_backward(
    grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0
):
    x, dy, steps, zeros = _as_floats(self, grad, scale, zero_point)
    _check(x.shape == dy.shape, "`X` and `dY` are not the same size")
    _check(quant_min <= 0 <= quant_max, "Expecting `quant_min` <= 0 and `quant_max` >= 0")
    _check_channels(x, steps, zeros, axis)
    _check(axis >= 0, "`axis` must be between 0 and number of dimensions of input")
    require(zeros == zeros, RuntimeError, _OUT_OF_RANGE)
    if not x.size:
        return self, scale, zero_point
    steps, zeros = (_along(v, axis, x.ndim) for v in (steps, _rounded(zeros, quant_min, quant_max)))
    of_x, *rest = _gradients(dy, x, steps, zeros, quant_min, quant_max, grad_factor)
    dims = tuple(d for d in range(x.ndim) if d != axis)
    return of_x, *(jnp.sum(g, dims) for g in rest)


# A moving average of the extrema chooses scale and zero point: cpu/fused_obs_fake_quant.cpp

_SMALLEST_SCALE = np.float32(6.1e-5)


def _choose(low: jax.Array, high: jax.Array, quant_min: int, quant_max: int, symmetric: bool):
    """Scale and zero point for values between `low` and `high`: fbgemm's ChooseQuantizationParams."""
    steps = quant_max - quant_min
    symmetric = (low < 0) & (high > 0) & symmetric
    below, above = -(steps // 2 + 1), steps // 2
    # in double precision, where XLA's product with a reciprocal is as accurate as the quotient
    shares = (jnp.abs(cast(v, _F64) / n) for v, n in ((low, below), (high, max(above, 1))))
    widest = cast(cast(jnp.maximum(*shares), _F32), _F64)
    low = jnp.minimum(jnp.where(symmetric, cast(widest * below, _F32), low), 0)
    high = jnp.maximum(jnp.where(symmetric, cast(widest * above, _F32), high), 0)
    scale = (cast(high, _F64) - cast(low, _F64)) / steps
    single = cast(scale, _F32)
    scale = jnp.where((single == 0) | jnp.isinf(1 / single), 0.1, scale)
    small = scale < np.float64(_SMALLEST_SCALE)
    more = _SMALLEST_SCALE / cast(scale, _F32)
    whole = _SMALLEST_SCALE * np.float32(steps)
    low, high = (
        jnp.where(small, jnp.where(low == 0, low, jnp.where(high == 0, -whole, low * more)), low),
        jnp.where(small, jnp.where(low == 0, whole, jnp.where(high == 0, high, high * more)), high),
    )
    scale = jnp.where(small, np.float64(_SMALLEST_SCALE), scale)
    from_low, from_high = cast(low, _F64) / scale, cast(high, _F64) / scale
    low_is_better = abs(quant_min) - jnp.abs(from_low) < abs(quant_max) - jnp.abs(from_high)
    zero = jnp.where(low_is_better, quant_min - from_low, quant_max - from_high)
    zero = jnp.where(symmetric, (quant_min + quant_max) / 2, zero)
    return cast(scale, _F32), convert(jnp.round(jnp.clip(zero, quant_min, quant_max)), np.dtype("int32"))


def _moving_average(running: jax.Array, current: jax.Array, constant: Any) -> jax.Array:
    return jnp.where(jnp.isinf(running), current, running + cast(constant, _F32) * (current - running))


# aten::_fused_moving_avg_obs_fq_helper_functional(Tensor self, Tensor observer_on, Tensor fake_quant_on,
#     Tensor running_min, Tensor running_max, Tensor scale, Tensor zero_point, float averaging_const, int quant_min,
#     int quant_max, int ch_axis, bool per_row_fake_quant=False, bool symmetric_quant=False) -> (Tensor output,
#     Tensor mask, Tensor running_min_out, Tensor running_max_out, Tensor scale_out, Tensor zero_point_out)
@kernel("_fused_moving_avg_obs_fq_helper_functional")
def fused_moving_average_fake_quantize(
    self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min,
    quant_max, ch_axis, per_row_fake_quant=False, symmetric_quant=False
):  # fmt: skip
    _check(ch_axis < self.ndim, "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()")
    _check(self.dtype == _F32, f"expected scalar type Float but found {self.dtype}")
    observe, on = (convert(_single(v), np.dtype("int32")) != 0 for v in (observer_on, fake_quant_on))
    dims = tuple(range(self.ndim))
    if per_row_fake_quant:
        message = "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0"
        require(~observe | (ch_axis == 0), RuntimeError, message)
        dims = tuple(d for d in dims if d != ch_axis % self.ndim)
        if not running_min.size:
            size = self.shape[ch_axis]
            running_min, running_max = jnp.full(size, np.inf, _F32), jnp.full(size, -np.inf, _F32)
            scale, zero_point = jnp.zeros(size, scale.dtype), jnp.zeros(size, zero_point.dtype)
    else:
        _check(running_min.size == 1, f"a Tensor with {running_min.size} elements cannot be converted to Scalar")
    low, high = (fn(self, dims).reshape(running_min.shape) for fn in (reduce_min, reduce_max))
    running_min = jnp.where(observe, _moving_average(running_min, low, averaging_const), running_min)
    running_max = jnp.where(observe, _moving_average(running_max, high, averaging_const), running_max)
    new_scale, new_zero = _choose(running_min, running_max, quant_min, quant_max, symmetric_quant)
    scale = jnp.where(on, cast(new_scale, scale.dtype), scale)
    zero_point = jnp.where(on, cast(new_zero, zero_point.dtype), zero_point)
    new_zero = jnp.where(on, new_zero, quant_min)  # without fake quantization nothing is checked
    if per_row_fake_quant:
        values, mask = fake_quantize_per_channel(self, new_scale, new_zero, ch_axis, quant_min, quant_max)
    else:
        values, mask = _quantize(self, _single(new_scale), _single(new_zero), quant_min, quant_max)
    return jnp.where(on, values, self), mask | ~on, running_min, running_max, scale, zero_point
