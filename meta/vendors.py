"""Fakes of convolution, pooling and sampling operators of single backends, which have no meta functions in ATen."""

from __future__ import annotations

import torch

from jaten_ops.registry import fake

from .reuse import as_contiguous

# Convolutions of one backend. ATen has no meta function for them; they have the shapes of `convolution`.


def _convolution(input, weight, bias, stride, padding, dilation, transposed=False, output_padding=(0,), groups=1):
    lists = [list(v) * (input.dim() - 2) if len(v) == 1 else v for v in (stride, padding, dilation, output_padding)]
    return torch.ops.aten.convolution(input, weight, bias, *lists[:3], transposed, lists[3], groups)


def _unbatched_convolution(self, weight, kernel_size, *settings):
    weight = weight.reshape(weight.shape[0], -1, *kernel_size)
    if self.dim() == len(kernel_size) + 2:
        return _convolution(self, weight, *settings)
    return _convolution(self[None], weight, *settings)[0]


@fake("_slow_conv2d_forward", "slow_conv3d_forward")
def slow_conv_forward(self, weight, kernel_size, bias, stride, padding):
    return _unbatched_convolution(self, weight, kernel_size, bias, stride, padding, (1,))


@fake("slow_conv_dilated2d", "slow_conv_dilated3d")
def slow_conv_dilated(self, weight, kernel_size, bias=None, stride=(1,), padding=(0,), dilation=(1,)):
    return _unbatched_convolution(self, weight, kernel_size, bias, stride, padding, dilation)


@fake("slow_conv_transpose3d")
def slow_conv_transpose3d(
    self, weight, kernel_size, bias=None, stride=(1,), padding=(0,), output_padding=(0,), dilation=(1,)
):
    return _unbatched_convolution(self, weight, kernel_size, bias, stride, padding, dilation, True, output_padding)


@fake("_slow_conv2d_backward.output_mask")
def slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask):
    bias = grad_output.new_empty(grad_output.shape[-3])
    return tuple(as_contiguous(t) if on else None for t, on in zip((self, weight, bias), output_mask, strict=True))


@fake("_conv_depthwise2d", "conv_depthwise3d")
def conv_depthwise(self, weight, kernel_size, bias, stride, padding, dilation):
    return _convolution(self, weight, bias, stride, padding, dilation, groups=self.shape[1])


@fake("_nnpack_spatial_convolution")
def nnpack_spatial_convolution(input, weight, bias, padding, stride=(1,)):
    return _convolution(input, weight, bias, stride, padding, (1,))


@fake("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")
def mkldnn_convolution(self, weight, bias, padding, stride, dilation, groups, *ignored):
    return _convolution(self, weight, bias, stride, padding, dilation, groups=groups)


@fake("cudnn_convolution")
def cudnn_convolution(self, weight, padding, stride, dilation, groups, *ignored):
    return _convolution(self, weight, None, stride, padding, dilation, groups=groups)


@fake("miopen_convolution_transpose")
def miopen_convolution_transpose(self, weight, bias, padding, output_padding, stride, dilation, groups, *ignored):
    return _convolution(self, weight, bias, stride, padding, dilation, True, output_padding, groups)


@fake("cudnn_convolution_transpose")
def cudnn_convolution_transpose(self, weight, padding, output_padding, stride, dilation, groups, *ignored):
    return _convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)


@fake("cudnn_convolution_relu", "miopen_convolution_relu")
def cudnn_convolution_relu(self, weight, bias, stride, padding, dilation, groups):
    return _convolution(self, weight, bias, stride, padding, dilation, groups=groups)


@fake("cudnn_convolution_add_relu", "miopen_convolution_add_relu")
def cudnn_convolution_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups):
    return _convolution(self, weight, bias, stride, padding, dilation, groups=groups)


# Pooling and sampling of one backend, without meta functions in ATen.


@fake("max_pool2d_backward")
def max_pool2d_backward(grad_output, self, *settings):
    return as_contiguous(self)


@fake("_grid_sampler_2d_cpu_fallback")
def grid_sampler_2d_cpu_fallback(input, grid, interpolation_mode, padding_mode, align_corners):
    return torch.ops.aten.grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners)


@fake("_grid_sampler_2d_cpu_fallback_backward")
def grid_sampler_2d_cpu_fallback_backward(grad_output, input, grid, *settings):
    return as_contiguous(input), as_contiguous(grid)


@fake("cudnn_grid_sampler")
def cudnn_grid_sampler(self, grid):
    return torch.ops.aten.grid_sampler_2d(self, grid, 0, 0, True)


@fake("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(self, grid, grad_output):
    return as_contiguous(self), as_contiguous(grid)


@fake("cudnn_affine_grid_generator")
def cudnn_affine_grid_generator(theta, N, C, H, W):
    return theta.new_empty((N, H, W, 2))


@fake("cudnn_affine_grid_generator_backward")
def cudnn_affine_grid_generator_backward(grad, N, C, H, W):
    return grad.new_empty((N, 2, 3))


@fake("_transform_bias_rescale_qkv")  # ATen has no meta function
def transform_bias_rescale_qkv(qkv, qkv_bias, num_heads):
    batch, length, width = qkv.shape
    return tuple(qkv.new_empty((batch, num_heads, length, width // 3 // num_heads)) for _ in range(3))
