"""Convolutions of any number of spatial dimensions, their transposes and their gradients, in row-major NC... order."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.strides import Shape
from ..cpu import conv_primitive as cpu
from ..cpu.reductions import sum_over_positions
from ..kernel_base import conv_parts as xla
from ..kernel_base.conv_parts import ConvCall, Windows, resized_at_end
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, is_complex

_Ints = Sequence[int]


def _expand(values: _Ints, n: int) -> tuple[int, ...]:
    """One value for each of n spatial dimensions, where a list of one stands for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _windows(weight: jax.Array, stride: _Ints, padding: _Ints, dilation: _Ints, groups: int) -> Windows:
    n = weight.ndim - 2
    return Windows(weight.shape[2:], _expand(stride, n), _expand(padding, n), _expand(dilation, n), groups)


def _computed(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    """A convolution or one of its gradients, in the form that the platform's compiler takes best."""
    if is_complex(a.dtype):
        # lax makes three real products of a complex one, whose differences lose digits; the four do not
        (rr, ri), (ir, ii) = (
            [_computed(call, x, y) for y in (lax.real(b), lax.imag(b))] for x in (lax.real(a), lax.imag(a))
        )
        return lax.complex(rr - ii, ri + ir)
    if compute_type(a.dtype) == a.dtype:
        call = call._replace(is_wide=False)
    return by_platform(*(a, b), cpu=functools.partial(cpu.compute, call), default=functools.partial(xla.compute, call))


def forward(x: jax.Array, weight: jax.Array, windows: Windows, *, is_wide: bool = False) -> jax.Array:
    """The cross-correlation of x (N, C, ...) with weight (O, C / groups, ...): (N, O, ...).

    If `is_wide`, it has the dtype that sums are computed in.
    """
    return _computed(ConvCall("forward", windows, (), is_wide), x, weight)


def input_gradient(
    grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, *, is_wide: bool = False
) -> jax.Array:
    """The transpose of `forward` by x, which has this shape: of (N, O, ...), the output's gradient.

    A transposed convolution may ask for so large a result that more windows fit; those contribute nothing.
    """
    call = ConvCall("input_gradient", windows, shape, is_wide)
    return _computed(call, resized_at_end(grad, windows.positions(shape[2:])), weight)


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose of `forward` by the weight, which has this shape."""
    return _computed(
        ConvCall("weight_gradient", windows, shape), x, resized_at_end(grad, windows.positions(x.shape[2:]))
    )


def _transposed_shape(x: jax.Array, weight: jax.Array, windows: Windows, output_padding: _Ints) -> tuple[int, ...]:
    """The shape of the result of a transposed convolution by a weight (C, O / groups, ...)."""
    extras = _expand(output_padding, len(windows.kernel))
    for extra, stride, dilation in zip(extras, windows.stride, windows.dilation, strict=True):
        if extra < 0:
            raise RuntimeError("negative output_padding is not supported")
        if extra >= stride and extra >= dilation:
            raise RuntimeError(
                "output padding must be smaller than either stride or dilation,"
                f" but got {extra}, {stride} and {dilation}"
            )
    settings = zip(x.shape[2:], windows.stride, windows.padding, windows.reach(), extras, strict=True)
    sizes = [(size - 1) * s - 2 * p + reach + extra + 1 for size, s, p, reach, extra in settings]
    return (x.shape[0], weight.shape[1] * windows.groups, *sizes)


def _check(input: jax.Array, weight: jax.Array, bias: jax.Array | None, stride: _Ints, padding: _Ints, dilation: _Ints):
    if not weight.shape[0]:
        raise RuntimeError(f"convolution: expected weight to be at least 1 at dimension 0, got {list(weight.shape)}")
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise RuntimeError(
            "convolution: stride and dilation must be positive, padding must not be negative,"
            f" got {list(stride)}, {list(dilation)}, {list(padding)}"
        )
    if input.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise RuntimeError(f"convolution: expected weight and bias of type {input.dtype}, as the input, got others")


# aten::{convolution, convolution_overrideable}(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride,
#     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
@kernel("convolution", "convolution_overrideable")
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    _check(input, weight, bias, stride, padding, dilation)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(f"convolution: expected a bias of {channels} elements, got {list(bias.shape)}")
    dtype = input.dtype
    windows = _windows(weight, stride, padding, dilation, groups)
    if not input.shape[1]:  # no channels in, none out, as ATen has it
        return jnp.zeros((input.shape[0], 0, *windows.positions(input.shape[2:])), dtype)
    if 0 in input.shape[2:] and input.shape[0]:
        shape = [*input.shape[:2], *[1] * (input.ndim == 3), *input.shape[2:]]  # ATen computes those of lines as planes
        raise RuntimeError(f"Only zero batch or zero channel inputs are supported, but got input shape: {shape}")
    is_wide = bias is not None  # which is added before half precision is rounded, once
    if transposed:
        shape = _transposed_shape(input, weight, windows, output_padding)
        out = input_gradient(input, weight, windows, shape, is_wide=is_wide)
    else:
        out = forward(input, weight, windows, is_wide=is_wide)
    if bias is not None:
        out = out + cast(bias, out.dtype).reshape(-1, *[1] * (input.ndim - 2))
    return cast(out, dtype)


# aten::_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled,
#     bool allow_tf32) -> Tensor
@kernel("_convolution")
def _convolution(input, weight, bias, *settings):
    return convolution(input, weight, bias, *settings[:6])


# aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
#     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
#     bool[3] output_mask) -> (Tensor, Tensor, Tensor)
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
    windows = _windows(weight, stride, padding, dilation, groups)
    if not input.size:
        shapes = (input.shape, weight.shape, grad_output.shape[1:2])
        grads = [jnp.zeros(shape, input.dtype) for shape in shapes]
        return tuple(grad if on else None for grad, on in zip(grads, output_mask, strict=True))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if transposed:
            every = forward(grad_output, _conj(weight), windows)
            grad_input = resized_at_end(every, input.shape[2:])
        else:
            grad_input = input_gradient(grad_output, _conj(weight), windows, input.shape)
    if output_mask[1]:
        operands = (grad_output, _conj(input)) if transposed else (_conj(input), grad_output)
        grad_weight = weight_gradient(*operands, windows, weight.shape)
    if output_mask[2]:
        grad_bias = sum_over_positions(grad_output)
    return grad_input, grad_weight, grad_bias


# aten::convolution_backward_overrideable(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride,
#     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
#     bool[3] output_mask) -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)
@kernel("convolution_backward_overrideable")
def convolution_backward_overrideable(grad_output, input, weight, *settings):
    return convolution_backward(grad_output, input, weight, None, *settings)


def _conj(x: jax.Array) -> jax.Array:
    return lax.conj(x) if is_complex(x.dtype) else x


# aten::conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor
@kernel("conv_tbc")
def conv_tbc(self, weight, bias, pad=0):
    x, w = lax.transpose(self, (1, 2, 0)), lax.transpose(weight, (2, 1, 0))
    out = forward(x, w, _windows(w, (1,), (pad,), (1,), 1), is_wide=True)
    return cast(lax.transpose(out, (2, 0, 1)) + cast(bias, out.dtype), self.dtype)


def _batched(self, weight, kernel_size, bias, stride, padding, dilation, transposed=False, output_padding=(0,)):
    """The arguments of the `slow_` ops: weight possibly flattened to a matrix, self possibly without a batch."""
    groups = 1
    weight = weight.reshape(weight.shape[0], -1, *kernel_size)
    batched = self.ndim == len(kernel_size) + 2
    x = self if batched else self[None]
    out = convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return out if batched else out[0]


# aten::_slow_conv2d_forward(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride,
#     SymInt[2] padding) -> Tensor
# aten::slow_conv3d_forward(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, SymInt[3] stride,
#     SymInt[3] padding) -> Tensor
@kernel("_slow_conv2d_forward", "slow_conv3d_forward")
def _slow_conv_forward(self, weight, kernel_size, bias, stride, padding):
    return _batched(self, weight, kernel_size, bias, stride, padding, (1,))


# aten::slow_conv_dilated2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias=None, SymInt[2] stride=[1,
#     1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1]) -> Tensor
# aten::slow_conv_dilated3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias=None, SymInt[3] stride=[1,
#     1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1]) -> Tensor
@kernel("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_conv_dilated(self, weight, kernel_size, bias, stride, padding, dilation):
    return _batched(self, weight, kernel_size, bias, stride, padding, dilation)


# aten::slow_conv_transpose2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias=None, SymInt[2] stride=[1,
#     1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt[2] dilation=[1, 1]) -> Tensor
# aten::slow_conv_transpose3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias=None, SymInt[3] stride=[1,
#     1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1]) -> Tensor
@kernel("slow_conv_transpose2d", "slow_conv_transpose3d")
def slow_conv_transpose(self, weight, kernel_size, bias, stride, padding, output_padding, dilation):
    return _batched(self, weight, kernel_size, bias, stride, padding, dilation, True, output_padding)


# aten::_slow_conv2d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, SymInt[2] kernel_size,
#     SymInt[2] stride, SymInt[2] padding, bool[3] output_mask) -> (Tensor grad_input, Tensor grad_weight,
#     Tensor grad_bias)
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


# aten::_conv_depthwise2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride,
#     SymInt[2] padding, SymInt[2] dilation) -> Tensor
# aten::conv_depthwise3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, SymInt[3] stride,
#     SymInt[3] padding, SymInt[3] dilation) -> Tensor
@kernel("_conv_depthwise2d", "conv_depthwise3d")
def conv_depthwise(self, weight, kernel_size, bias, stride, padding, dilation):
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), self.shape[1])


# aten::_nnpack_spatial_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[2] padding, SymInt[2] stride=[1,
#     1]) -> Tensor
@kernel("_nnpack_spatial_convolution")
def _nnpack_spatial_convolution(input, weight, bias, padding, stride):
    return convolution(input, weight, bias, stride, padding, (1,), False, (0,), 1)


# aten::mkldnn_convolution(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, SymInt[] stride,
#     SymInt[] dilation, SymInt groups) -> Tensor
# aten::{miopen_convolution, miopen_depthwise_convolution}(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding,
#     SymInt[] stride, SymInt[] dilation, SymInt groups, bool benchmark, bool deterministic) -> Tensor
@kernel("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")
def mkldnn_convolution(self, weight, bias, padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)


# aten::cudnn_convolution(Tensor self, Tensor weight, SymInt[] padding, SymInt[] stride, SymInt[] dilation,
#     SymInt groups, bool benchmark, bool deterministic, bool allow_tf32) -> Tensor
@kernel("cudnn_convolution")
def cudnn_convolution(self, weight, padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, None, stride, padding, dilation, False, (0,), groups)


# aten::miopen_convolution_transpose(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding,
#     SymInt[] output_padding, SymInt[] stride, SymInt[] dilation, SymInt groups, bool benchmark,
#     bool deterministic) -> Tensor
@kernel("miopen_convolution_transpose")
def miopen_convolution_transpose(self, weight, bias, padding, output_padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, bias, stride, padding, dilation, True, output_padding, groups)


# aten::cudnn_convolution_transpose(Tensor self, Tensor weight, SymInt[] padding, SymInt[] output_padding,
#     SymInt[] stride, SymInt[] dilation, SymInt groups, bool benchmark, bool deterministic, bool allow_tf32) -> Tensor
@kernel("cudnn_convolution_transpose")
def cudnn_convolution_transpose(self, weight, padding, output_padding, stride, dilation, groups, *ignored):
    return convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)


# aten::{cudnn_convolution_relu, miopen_convolution_relu}(Tensor self, Tensor weight, Tensor? bias, SymInt[] stride,
#     SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor
@kernel("cudnn_convolution_relu", "miopen_convolution_relu")
def cudnn_convolution_relu(self, weight, bias, stride, padding, dilation, groups):
    out = convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)
    return jnp.maximum(out, 0)


# aten::{cudnn_convolution_add_relu, miopen_convolution_add_relu}(Tensor self, Tensor weight, Tensor z, Scalar? alpha,
#     Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor
@kernel("cudnn_convolution_add_relu", "miopen_convolution_add_relu")
def cudnn_convolution_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups):
    out = convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)
    return jnp.maximum(out + cast(1 if alpha is None else alpha, out.dtype) * z, 0)
