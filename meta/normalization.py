"""Fakes of normalization.

ATen's meta functions follow CUDA, where statistics in evaluation mode have C elements, and those of float16 and
bfloat16 are float32. On CPU they are empty, and have the input's dtype unless a parameter is float32.
"""

from __future__ import annotations

import torch

from jaten_ops.registry import fake

from .reuse import as_contiguous, masked


def _statistics_dtype(input: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    mixed = input.dtype.itemsize < 4 and any(p is not None and p.dtype == torch.float32 for p in parameters)
    return torch.float32 if mixed else input.dtype


def _batch_norm(input: torch.Tensor, training: bool, *parameters: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    size, dtype = input.shape[1] if training else 0, _statistics_dtype(input, *parameters)
    return as_contiguous(input), input.new_empty((size,), dtype=dtype), input.new_empty((size,), dtype=dtype)


@fake("native_batch_norm")
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, training, weight, bias, running_mean, running_var)


@fake("_native_batch_norm_legit_functional")
def native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    results = _batch_norm(input, training, weight, bias, running_mean, running_var)
    return *results, as_contiguous(running_mean), as_contiguous(running_var)


@fake("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _batch_norm(input, training, weight, bias)


@fake("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    return _batch_norm(input, False, weight, bias, running_mean, running_var)


@fake("_batch_norm_no_update")
def batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps):
    return *_batch_norm(input, False, weight, bias, running_mean, running_var), input.new_empty((0,), dtype=torch.uint8)


@fake("_batch_norm_with_update_functional")
def batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps):
    results = _batch_norm(input, True, weight, bias, running_mean, running_var)
    return *results, input.new_empty((0,), dtype=torch.uint8), as_contiguous(running_mean), as_contiguous(running_var)


@fake("cudnn_batch_norm")
def cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return *_batch_norm(input, training, weight, bias, running_mean, running_var), input.new_empty(0, dtype=torch.uint8)


@fake("miopen_batch_norm")
def miopen_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, training, weight, bias, running_mean, running_var)


@fake("batch_norm_update_stats")  # ATen has no meta function
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    return _batch_norm(input, True, running_mean, running_var)[1:]


@fake("native_batch_norm_backward")  # ATen's meta function has a gradient of the input also where it is masked out
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    dtype = _statistics_dtype(input, running_mean, running_var) if weight is None else weight.dtype
    of_channel = input.new_empty((input.shape[1],), dtype=dtype)
    return masked(output_mask, as_contiguous(input), of_channel, torch.empty_like(of_channel))


@fake("batch_norm_backward")
def batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, reserve
):
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@fake("native_layer_norm")
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    results = torch.ops.aten.native_layer_norm(input, normalized_shape, weight, bias, eps)
    dtype = _statistics_dtype(input, weight, bias)
    return as_contiguous(results[0]), *(as_contiguous(s.to(dtype)) for s in results[1:])


@fake("native_layer_norm_backward")  # ATen's meta function gives an empty input's dtype to gradients of parameters
def native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    parameters = [None if p is None else as_contiguous(p) for p in (weight, bias)]
    one, two, three = masked(output_mask, as_contiguous(input), *(input if p is None else p for p in parameters))
    return one, None if weight is None else two, None if bias is None else three


@fake("native_group_norm")
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    results = torch.ops.aten.native_group_norm(input, weight, bias, N, C, HxW, group, eps)
    dtype = _statistics_dtype(input, weight, bias)
    return as_contiguous(results[0]), *(as_contiguous(s.to(dtype)) for s in results[1:])


@fake("native_group_norm_backward")  # ATen's meta function returns float32 gradients of a bfloat16 input
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    of_channel = input.new_empty((C,), dtype=input.dtype if weight is None else weight.dtype)
    return masked(output_mask, as_contiguous(input), of_channel, torch.empty_like(of_channel))


@fake("_weight_norm_interface")  # ATen's meta function forgets that norms of float16 are float32
def weight_norm_interface(v, g, dim=0):
    wide = torch.float32 if v.dtype in (torch.float16, torch.bfloat16) else v.dtype
    return as_contiguous(v), torch.empty_like(g, dtype=wide, memory_format=torch.contiguous_format)
