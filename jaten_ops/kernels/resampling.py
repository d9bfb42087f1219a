"""Upsampling and downsampling (`interpolate`): nearest, linear and cubic, with and without antialiasing, and gradients.

All of them are linear and separable. Along each axis, an output is a weighted sum of a few inputs, its taps, whose
positions and weights depend on sizes and scales only: they are computed here with numpy, in the dtype ATen computes
them in, and become constants. The gradient is the same with the taps transposed.
Sources: aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type
from .windows import weighted_sum

_Ints = Sequence[int]


class Taps(NamedTuple):
    """Positions and weights of shape (outputs, taps); a position of -1 is an unused tap, and no weights are ones."""

    positions: np.ndarray
    weights: np.ndarray | None


def _scale(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> np.floating:
    """Inputs for each output (`area_pixel_compute_scale`)."""
    if align_corners:
        return dtype.type(size - 1) / dtype.type(outputs - 1) if outputs > 1 else dtype.type(0)
    if scale is not None and scale > 0:
        return dtype.type(1 / scale)
    return dtype.type(size) / dtype.type(outputs)


def _source(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Coordinates of each output's center in the input; they may lie outside."""
    ratio = np.float64(_scale(dtype, size, outputs, align_corners, scale))
    out = np.arange(outputs)
    # rounded once, as the fused multiply-add that ATen's code compiles to
    return (out * ratio if align_corners else (out + 0.5) * ratio - 0.5).astype(dtype)


def _nearest(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> Taps:
    out = np.arange(outputs)
    if outputs == size:
        position = out
    elif outputs == 2 * size:
        position = out // 2
    else:
        ratio = _scale(np.dtype("float32"), size, outputs, False, scale)
        position = np.floor(out.astype("float32") * ratio).astype(np.int64)
    return Taps(np.minimum(position, size - 1)[:, None], None)


def _nearest_exact(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> Taps:
    ratio = _scale(np.dtype("float32"), size, outputs, False, scale)
    position = np.floor(((np.arange(outputs) + 0.5) * np.float64(ratio)).astype("float32")).astype(np.int64)
    return Taps(np.minimum(position, size - 1)[:, None], None)


def _linear(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> Taps:
    if outputs == size:
        first, weight = np.arange(outputs), np.zeros(outputs, dtype)
        second = first
    else:
        source = np.maximum(_source(dtype, size, outputs, align_corners, scale), dtype.type(0))
        first = np.minimum(np.floor(source).astype(np.int64), size - 1)
        weight = np.clip(source - first.astype(dtype), 0, 1).astype(dtype)
        second = np.minimum(first + 1, size - 1)
    return Taps(np.stack([first, second], 1), np.stack([1 - weight, weight], 1))


def _cubic_near(x: np.ndarray, a: float) -> np.ndarray:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _cubic_far(x: np.ndarray, a: float) -> np.ndarray:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic_weights(t, a: float = -0.75) -> list:
    """The weights of the four neighbours of a point at the fraction t between the second and the third of them."""
    return [_cubic_far(t + 1, a), _cubic_near(t, a), _cubic_near(1 - t, a), _cubic_far(2 - t, a)]


def _cubic(dtype: np.dtype, size: int, outputs: int, align_corners: bool, scale: float | None) -> Taps:
    source = _source(dtype, size, outputs, align_corners, scale)
    first = np.minimum(np.floor(source).astype(np.int64), size - 1)
    t = np.clip(source - first.astype(dtype), 0, 1).astype(dtype)
    positions = np.clip(first[:, None] + np.arange(-1, 3), 0, size - 1)
    return Taps(positions, np.stack(cubic_weights(t.astype(np.float64)), 1).astype(dtype))


def _linear_filter(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0)


def _cubic_filter(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    x = np.abs(x)
    return np.where(x < 1, _cubic_near(x, a), np.where(x < 2, _cubic_far(x, a), 0))


def _lanczos_filter(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialiased(
    filter: Callable[[np.ndarray], np.ndarray],
    reach: int,
    dtype: np.dtype,
    size: int,
    outputs: int,
    align_corners: bool,
    scale: float | None,
) -> Taps:
    """A filter of `reach` inputs, widened by the scale where that shrinks (`_compute_indices_min_size_weights_aa`)."""
    ratio = _scale(dtype, size, outputs, align_corners, scale)
    support = dtype.type(reach * 0.5 * max(ratio, dtype.type(1)))
    most = int(np.ceil(support)) * 2 + 1
    center = (ratio * (np.arange(outputs) + 0.5)).astype(dtype)
    first = np.maximum(np.trunc(center - support + 0.5).astype(np.int64), 0)
    end = np.minimum(np.trunc(center + support + 0.5).astype(np.int64), size)
    taps = np.arange(most)
    used = taps < np.clip(end - first, 0, most)[:, None]
    inverse = dtype.type(1 / ratio if ratio >= 1 else 1)
    x = ((taps + first[:, None] - center[:, None] + 0.5) * inverse).astype(dtype)
    weights = np.where(used, filter(x).astype(dtype), 0)
    total = weights.sum(1, keepdims=True)
    weights = np.divide(weights, total, out=weights, where=total != 0).astype(dtype)
    keep = max(1, int(used.sum(1).max(initial=1)))
    return Taps(np.where(used, taps + first[:, None], -1)[:, :keep], weights[:, :keep])


_linear_aa = partial(_antialiased, _linear_filter, 2)
_cubic_aa = partial(_antialiased, _cubic_filter, 4)
_lanczos_aa = partial(_antialiased, _lanczos_filter, 6)


def _transposed(taps: Taps, size: int) -> Taps:
    """The taps of the gradient: for each input, the outputs that read it."""
    outputs, many = taps.positions.shape
    position, out = taps.positions.reshape(-1), np.repeat(np.arange(outputs), many)
    order = np.argsort(position, kind="stable")
    order = order[position[order] >= 0]
    position = position[order]
    counts = np.bincount(position, minlength=size)
    column = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (size, max(1, int(counts.max(initial=1))))
    positions = np.full(shape, -1)
    positions[position, column] = out[order]
    weights = np.zeros(shape, "float32" if taps.weights is None else taps.weights.dtype)
    weights[position, column] = 1 if taps.weights is None else taps.weights.reshape(-1)[order]
    return Taps(positions, None if taps.weights is None else weights)


def _apply(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    return weighted_sum(x, taps.positions, taps.weights, axis)


def _apply_uint8(x: jax.Array, taps: Taps, axis: int) -> jax.Array:
    """The same for bytes, as in ATen: weights of 16 bits, and a rounded and clamped byte after each axis."""
    precision = 0
    while precision < 22 and int(0.5 + taps.weights.max() * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    scaled = taps.weights * (1 << precision)
    weights = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
    half = np.int32(1 << precision >> 1)
    total = weighted_sum(x.astype("int32"), taps.positions, weights, axis) + half
    return lax.clamp(np.int32(0), total >> np.int32(precision), np.int32(255)).astype("uint8")


def _merged(taps: Taps) -> Taps:
    """Taps of the same position, at the border, as one: their weights are rounded together."""
    positions, weights = taps.positions.copy(), taps.weights.copy()
    for k in range(1, positions.shape[1]):
        same = positions[:, k] == positions[:, k - 1]
        weights[same, k] += weights[same, k - 1]
        weights[same, k - 1], positions[same, k - 1] = 0, -1
    return Taps(positions, weights)


Mode = Callable[[np.dtype, int, int, bool, float | None], Taps]
Scales = Sequence[float | None]


def _axes(ndim: int, sizes: _Ints, outputs: _Ints, scales: Scales) -> list[tuple[int, int, int, float | None]]:
    """Axis, size, number of outputs and scale of each resampled axis, the last one first."""
    n = len(outputs)
    return list(zip(range(ndim - n, ndim), sizes[-n:], outputs, scales, strict=True))[::-1]


def _is_antialiased(mode: Mode) -> bool:
    return isinstance(mode, partial)


def _refuse_nothing(shape: _Ints, output_size: _Ints) -> None:
    """Raises ATen's errors for images without pixels or channels; a batch may be empty."""
    pixels = shape[2:]
    if 0 in pixels or 0 in output_size:
        got, wanted = (
            ", ".join(f"{name}: {n}" for name, n in zip("DHW"[-len(pixels) :], sizes, strict=True))
            for sizes in (pixels, output_size)
        )
        and_ = " and" if len(pixels) == 1 else ""
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input ({got}){and_} output ({wanted})"
        )
    if 0 in shape[1:2]:
        raise RuntimeError(f"Non-empty {len(shape)}D data tensor expected but got a tensor with sizes {list(shape)}")


def _resample(mode: Mode, x: jax.Array, output_size: _Ints, align_corners: bool, scales: Scales) -> jax.Array:
    on_bytes = x.dtype == np.uint8 and mode not in (_nearest, _nearest_exact)
    compute = np.dtype("float64") if on_bytes else compute_type(x.dtype)
    out = x if on_bytes or mode in (_nearest, _nearest_exact) else cast(x, compute)
    for axis, size, outputs, scale in _axes(x.ndim, x.shape, output_size, scales):
        if size == outputs and (on_bytes or _is_antialiased(mode)):
            continue
        taps = mode(compute, size, outputs, align_corners, scale)
        if on_bytes:
            out = _apply_uint8(out, taps if _is_antialiased(mode) else _merged(taps), axis)
        else:
            out = _apply(out, taps, axis)
    return cast(out, x.dtype)


def _resample_backward(
    mode: Mode, grad: jax.Array, output_size: _Ints, input_size: _Ints, align_corners: bool, scales: Scales
) -> jax.Array:
    compute = compute_type(grad.dtype)
    out = cast(grad, compute)
    if mode is _cubic and tuple(input_size[2:]) == tuple(output_size):  # ATen ignores the scales then
        return grad
    for axis, size, outputs, scale in _axes(grad.ndim, input_size, output_size, scales)[::-1]:
        out = _apply(out, _transposed(mode(compute, size, outputs, align_corners, scale), size), axis)
    return cast(out, grad.dtype)


# aten::{upsample_nearest1d, _upsample_nearest_exact1d}(Tensor self, SymInt[1] output_size,
#     float? scales=None) -> Tensor
# aten::{upsample_nearest2d, _upsample_nearest_exact2d}(Tensor self, SymInt[2] output_size, float? scales_h=None,
#     float? scales_w=None) -> Tensor
# aten::{upsample_nearest3d, _upsample_nearest_exact3d}(Tensor self, SymInt[3] output_size, float? scales_d=None,
#     float? scales_h=None, float? scales_w=None) -> Tensor
# aten::upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor
# aten::{upsample_bilinear2d, upsample_bicubic2d, _upsample_bilinear2d_aa, _upsample_bicubic2d_aa,
#     _upsample_lanczos2d_aa}(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None,
#     float? scales_w=None) -> Tensor
# aten::upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None,
#     float? scales_h=None, float? scales_w=None) -> Tensor
# aten::{upsample_nearest1d_backward, _upsample_nearest_exact1d_backward}(Tensor grad_output, SymInt[1] output_size,
#     SymInt[3] input_size, float? scales=None) -> Tensor
# aten::{upsample_nearest2d_backward, _upsample_nearest_exact2d_backward}(Tensor grad_output, SymInt[2] output_size,
#     SymInt[4] input_size, float? scales_h=None, float? scales_w=None) -> Tensor
# aten::{upsample_nearest3d_backward, _upsample_nearest_exact3d_backward}(Tensor grad_output, SymInt[3] output_size,
#     SymInt[5] input_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor
# aten::upsample_linear1d_backward(Tensor grad_output, SymInt[1] output_size, SymInt[3] input_size, bool align_corners,
#     float? scales=None) -> Tensor
# aten::{upsample_bilinear2d_backward, upsample_bicubic2d_backward, _upsample_bilinear2d_aa_backward,
#     _upsample_bicubic2d_aa_backward, _upsample_lanczos2d_aa_backward}(Tensor grad_output, SymInt[2] output_size,
#     SymInt[4] input_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
# aten::upsample_trilinear3d_backward(Tensor grad_output, SymInt[3] output_size, SymInt[5] input_size,
#     bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor
def _register(name: str, mode: Mode, has_corners: bool) -> None:
    """Registers the kernels of an op and of its gradient, with or without `align_corners`."""

    def forward(self, output_size, *settings):
        align_corners, scales = (settings[0], settings[1:]) if has_corners else (False, settings)
        _refuse_nothing(self.shape, output_size)
        return _resample(mode, self, output_size, align_corners, scales)

    def backward(grad_output, output_size, input_size, *settings):
        align_corners, scales = (settings[0], settings[1:]) if has_corners else (False, settings)
        return _resample_backward(mode, grad_output, output_size, input_size, align_corners, scales)

    static = ("scales", "scales_d", "scales_h", "scales_w")
    kernel(name, static=static)(forward)
    kernel(f"{name}_backward", static=static)(backward)


for _name, _mode, _has_corners in (
    ("upsample_nearest1d", _nearest, False),
    ("upsample_nearest2d", _nearest, False),
    ("upsample_nearest3d", _nearest, False),
    ("_upsample_nearest_exact1d", _nearest_exact, False),
    ("_upsample_nearest_exact2d", _nearest_exact, False),
    ("_upsample_nearest_exact3d", _nearest_exact, False),
    ("upsample_linear1d", _linear, True),
    ("upsample_bilinear2d", _linear, True),
    ("upsample_trilinear3d", _linear, True),
    ("upsample_bicubic2d", _cubic, True),
    ("_upsample_bilinear2d_aa", _linear_aa, True),
    ("_upsample_bicubic2d_aa", _cubic_aa, True),
    ("_upsample_lanczos2d_aa", _lanczos_aa, True),
):
    _register(_name, _mode, _has_corners)
