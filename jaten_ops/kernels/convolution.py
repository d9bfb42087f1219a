"""Convolutions of any number of spatial dimensions, their transposes and their gradients, in row-major NC... order.

`convolve` is the one place that chooses how a convolution is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from .promotion import cast, compute_type, is_complex

Ints = Sequence[int]
Pairs = Sequence[tuple[int, int]]

_LITTLE = 2**14  # elements: to sum them in double precision takes no measurable time


def _expand(values: Ints, n: int) -> tuple[int, ...]:
    """One value for each of n spatial dimensions, where a list of one stands for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _dimension_numbers(rank: int) -> lax.ConvDimensionNumbers:
    order = tuple(range(rank))
    return lax.ConvDimensionNumbers(order, order, order)


def convolve(
    x: jax.Array, weight: jax.Array, stride: Ints, padding: Pairs, spread: Ints, dilation: Ints, groups: int
) -> jax.Array:
    """Cross-correlates x (N, C, ...) with weight (O, C / groups, ...): the result is (N, O, ...).

    Args:
        spread: x is widened by this factor with zeros between its elements, as in a transposed convolution.
        padding: zeros added, or removed where negative, at both ends of each spatial dimension after that.
    """
    if is_complex(x.dtype):
        # lax makes three real products of a complex one, whose differences lose digits; the four do not
        re, im = lax.real(weight), lax.imag(weight)
        (rr, ri), (ir, ii) = (
            [convolve(part, w, stride, padding, spread, dilation, groups) for w in (re, im)]
            for part in (lax.real(x), lax.imag(x))
        )
        return lax.complex(rr - ii, ri + ir)
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=stride,
        padding=padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=_dimension_numbers(x.ndim),
        feature_group_count=groups,
    )


def _forward(x: jax.Array, weight: jax.Array, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> jax.Array:
    n = x.ndim - 2
    return convolve(
        x, weight, _expand(stride, n), [(p, p) for p in _expand(padding, n)], (1,) * n, _expand(dilation, n), groups
    )


def _transposed(
    x: jax.Array, weight: jax.Array, stride: Ints, padding: Ints, dilation: Ints, output_padding: Ints, groups: int
) -> jax.Array:
    """The transpose of a convolution by its input: weight is (C, O / groups, ...)."""
    n = x.ndim - 2
    dilation = _expand(dilation, n)
    channels, per_group, *kernel_size = weight.shape
    grouped = weight.reshape(groups, channels // groups, per_group, *kernel_size).swapaxes(1, 2)
    flipped = lax.rev(grouped.reshape(groups * per_group, channels // groups, *kernel_size), range(2, n + 2))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True)]
    pairs = [
        (r - p, r - p + extra)
        for r, p, extra in zip(reach, _expand(padding, n), _expand(output_padding, n), strict=True)
    ]
    return convolve(x, flipped, (1,) * n, pairs, _expand(stride, n), dilation, groups)


def _linear(
    stride: Ints, padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The convolution without bias as a function of input and weight."""
    if transposed:
        return lambda x, w: _transposed(x, w, stride, padding, dilation, output_padding, groups)
    return lambda x, w: _forward(x, w, stride, padding, dilation, groups)


def _output_sizes(input: jax.Array, weight: jax.Array, stride: Ints, padding: Ints, dilation: Ints) -> list[int]:
    n = input.ndim - 2
    settings = zip(
        input.shape[2:], weight.shape[2:], _expand(stride, n), _expand(padding, n), _expand(dilation, n), strict=True
    )
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in settings]


def _check(input: jax.Array, weight: jax.Array, bias: jax.Array | None, stride: Ints, padding: Ints, dilation: Ints):
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise RuntimeError(
            "convolution: stride and dilation must be positive, padding must not be negative,"
            f" got {list(stride)}, {list(dilation)}, {list(padding)}"
        )
    if input.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise RuntimeError(f"convolution: expected weight and bias of type {input.dtype}, as the input, got others")


@kernel("convolution", "convolution_overrideable")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    _check(input, weight, bias, stride, padding, dilation)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(f"convolution: expected a bias of {channels} elements, got {list(bias.shape)}")
    dtype = input.dtype
    if not input.shape[1]:  # no channels in, none out, as ATen has it
        return jnp.zeros((input.shape[0], 0, *_output_sizes(input, weight, stride, padding, dilation)), dtype)
    # half precision with a bias: both in float32, rounded once
    compute = dtype if bias is None else compute_type(dtype)
    conv = _linear(stride, padding, dilation, transposed, output_padding, groups)
    out = conv(cast(input, compute), cast(weight, compute))
    if bias is not None:
        out = out + cast(bias, compute).reshape(-1, *[1] * (input.ndim - 2))
    return cast(out, dtype)


@kernel("_convolution")
def _convolution(input, weight, bias, *settings):
    return convolution(input, weight, bias, *settings[:6])


@kernel("convolution_backward")
def convolution_backward(
    grad_output,
    input,
    weight,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
):
    conv = _linear(stride, padding, dilation, transposed, output_padding, groups)
    grad_input = grad_weight = grad_bias = None
    if not input.size:
        shapes = (input.shape, weight.shape, grad_output.shape[1:2])
        grads = [jnp.zeros(shape, input.dtype) for shape in shapes]
        return tuple(grad if on else None for grad, on in zip(grads, output_mask, strict=True))
    if output_mask[0]:
        (grad_input,) = _transpose(lambda x: conv(x, _conj(weight)), input, grad_output)
    if output_mask[1]:
        (grad_weight,) = _transpose(lambda w: conv(_conj(input), w), weight, grad_output)
    if output_mask[2]:
        grad_bias = _sum_over_positions(grad_output)
    return grad_input, grad_weight, grad_bias


@kernel("convolution_backward_overrideable")
def convolution_backward_overrideable(grad_output, input, weight, *settings):
    return convolution_backward(grad_output, input, weight, None, *settings)


def _conj(x: jax.Array) -> jax.Array:
    return lax.conj(x) if is_complex(x.dtype) else x


def _transpose(fn: Callable[[jax.Array], jax.Array], like: jax.Array, grad: jax.Array) -> list[jax.Array]:
    return jax.linear_transpose(fn, like)(grad)


def _sum_over_positions(grad: jax.Array) -> jax.Array:
    """The gradient of a bias: the sum over the batch and all positions of each channel.

    It has many terms. The last sum is in double precision: over the batch, or over everything if there is little.
    """
    wide = np.complex128 if is_complex(grad.dtype) else np.float64
    if grad.size <= _LITTLE:
        total = lax.reduce_sum(cast(grad, wide), (0, *range(2, grad.ndim)))
    else:
        by_image = lax.reduce_sum(cast(grad, compute_type(grad.dtype)), tuple(range(2, grad.ndim)))
        total = lax.reduce_sum(cast(by_image, wide), (0,))
    return cast(total, grad.dtype)


@kernel("conv_tbc")
def conv_tbc(self, weight, bias, pad=0):
    order = lax.ConvDimensionNumbers((1, 2, 0), (2, 1, 0), (1, 2, 0))
    compute = compute_type(self.dtype)
    x, weight = cast(self, compute), cast(weight, compute)
    out = lax.conv_general_dilated(x, weight, (1,), [(pad, pad)], dimension_numbers=order)
    return cast(out + cast(bias, compute), self.dtype)


def _batched(self, weight, kernel_size, bias, stride, padding, dilation, transposed=False, output_padding=(0,)):
    """The arguments of the `slow_` ops: weight possibly flattened to a matrix, self possibly without a batch."""
    groups = 1
    weight = weight.reshape(weight.shape[0], -1, *kernel_size)
    batched = self.ndim == len(kernel_size) + 2
    x = self if batched else self[None]
    out = convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return out if batched else out[0]


@kernel("_slow_conv2d_forward", "slow_conv3d_forward")
def _slow_conv_forward(self, weight, kernel_size, bias, stride, padding):
    return _batched(self, weight, kernel_size, bias, stride, padding, (1,))


@kernel("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_conv_dilated(self, weight, kernel_size, bias, stride, padding, dilation):
    return _batched(self, weight, kernel_size, bias, stride, padding, dilation)


@kernel("slow_conv_transpose2d", "slow_conv_transpose3d")
def slow_conv_transpose(self, weight, kernel_size, bias, stride, padding, output_padding, dilation):
    return _batched(self, weight, kernel_size, bias, stride, padding, dilation, True, output_padding)


@kernel("_slow_conv2d_backward.output_mask")
def _slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask):
    batched = self.ndim == 4
    x, grad = (self, grad_output) if batched else (self[None], grad_output[None])
    kernels = weight.reshape(weight.shape[0], -1, *kernel_size)
    grad_self, grad_weight, grad_bias = convolution_backward(
        grad, x, kernels, None, stride, padding, (1,), False, (0,), 1, output_mask
    )
    grad_self = grad_self if batched or grad_self is None else grad_self[0]
    return grad_self, grad_weight if grad_weight is None else grad_weight.reshape(weight.shape), grad_bias


@kernel("_conv_depthwise2d", "conv_depthwise3d")
def conv_depthwise(self, weight, kernel_size, bias, stride, padding, dilation):
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), self.shape[1])


@kernel("_nnpack_spatial_convolution")
def _nnpack_spatial_convolution(input, weight, bias, padding, stride):
    return convolution(input, weight, bias, stride, padding, (1,), False, (0,), 1)


@kernel("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")
def mkldnn_convolution(self, weight, bias, padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)


@kernel("cudnn_convolution")
def cudnn_convolution(self, weight, padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, None, stride, padding, dilation, False, (0,), groups)


@kernel("miopen_convolution_transpose")
def miopen_convolution_transpose(self, weight, bias, padding, output_padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, bias, stride, padding, dilation, True, output_padding, groups)


@kernel("cudnn_convolution_transpose")
def cudnn_convolution_transpose(self, weight, padding, output_padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)


@kernel("cudnn_convolution_relu", "miopen_convolution_relu")
def cudnn_convolution_relu(self, weight, bias, stride, padding, dilation, groups):
    out = convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)
    return jnp.maximum(out, 0)


@kernel("cudnn_convolution_add_relu", "miopen_convolution_add_relu")
def cudnn_convolution_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups):
    out = convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)
    return jnp.maximum(out + cast(1 if alpha is None else alpha, out.dtype) * z, 0)
