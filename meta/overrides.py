"""The fakes that are not ATen's meta function, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from jaten_ops.registry import fake

from .reuse import aten_overload, row_major

# Matrix products. ATen's meta functions check strides, which kernels do not see, and what CUDA's kernels can do.


@fake("_scaled_mm")
def scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    return self.new_empty((self.shape[0], mat2.shape[1]), dtype=out_dtype or self.dtype)


@fake("baddbmm.dtype")  # ATen's meta function does not take out_dtype
def baddbmm_dtype(self, batch1, batch2, out_dtype, *, beta=1, alpha=1):
    return torch.ops.aten.bmm(batch1, batch2).to(out_dtype)


@fake("_grouped_mm")
def grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    shape = [self.shape[-2], mat2.shape[-1]]
    if self.dim() == mat2.dim():
        shape.insert(0, self.shape[0] if offs is None else offs.shape[0])
    return self.new_empty(shape, dtype=out_dtype or self.dtype)


# Normalization. ATen's meta functions answer for CUDA: statistics of evaluation mode have C elements there, those of
# float16 and bfloat16 are float32. On CPU they are empty, and have the input's dtype unless a parameter is float32.


def _statistics_dtype(input: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    mixed = input.dtype.itemsize < 4 and any(p is not None and p.dtype == torch.float32 for p in parameters)
    return torch.float32 if mixed else input.dtype


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _batch_norm(input: torch.Tensor, training: bool, *parameters: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    size, dtype = input.shape[1] if training else 0, _statistics_dtype(input, *parameters)
    return _like(input), input.new_empty((size,), dtype=dtype), input.new_empty((size,), dtype=dtype)


@fake("native_batch_norm")
def native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, training, weight, bias, running_mean, running_var)


@fake("_native_batch_norm_legit_functional")
def native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    results = _batch_norm(input, training, weight, bias, running_mean, running_var)
    return *results, _like(running_mean), _like(running_var)


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
    return *results, input.new_empty((0,), dtype=torch.uint8), _like(running_mean), _like(running_var)


@fake("cudnn_batch_norm")
def cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return *_batch_norm(input, training, weight, bias, running_mean, running_var), input.new_empty(0, dtype=torch.uint8)


@fake("miopen_batch_norm")
def miopen_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    return _batch_norm(input, training, weight, bias, running_mean, running_var)


@fake("batch_norm_update_stats")  # ATen has no meta function
def batch_norm_update_stats(input, running_mean, running_var, momentum):
    return _batch_norm(input, True, running_mean, running_var)[1:]


def _masked(mask: Sequence[bool], *gradients: Any) -> tuple[Any, ...]:
    return tuple(g if on else None for g, on in zip(gradients, mask, strict=True))


@fake("native_batch_norm_backward")  # ATen's meta function has a gradient of the input also where it is masked out
def native_batch_norm_backward(
    grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
):
    dtype = _statistics_dtype(input, running_mean, running_var) if weight is None else weight.dtype
    of_channel = input.new_empty((input.shape[1],), dtype=dtype)
    return _masked(output_mask, _like(input), of_channel, torch.empty_like(of_channel))


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
    return _like(results[0]), *(_like(s.to(dtype)) for s in results[1:])


@fake("native_group_norm")
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    results = torch.ops.aten.native_group_norm(input, weight, bias, N, C, HxW, group, eps)
    dtype = _statistics_dtype(input, weight, bias)
    return _like(results[0]), *(_like(s.to(dtype)) for s in results[1:])


@fake("native_group_norm_backward")  # ATen's meta function returns float32 gradients of a bfloat16 input
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    of_channel = input.new_empty((C,), dtype=input.dtype if weight is None else weight.dtype)
    return _masked(output_mask, _like(input), of_channel, torch.empty_like(of_channel))


@fake("_weight_norm_interface")  # ATen's meta function forgets that norms of float16 are float32
def weight_norm_interface(v, g, dim=0):
    wide = torch.float32 if v.dtype in (torch.float16, torch.bfloat16) else v.dtype
    return _like(v), torch.empty_like(g, dtype=wide, memory_format=torch.contiguous_format)


# Extrema of nothing. ATen's meta functions let them pass, or raise another class of error than its CPU kernels.


def _extremum(overload: str, default_dim: Any, whole_error: type[Exception]) -> None:
    op = aten_overload(overload)
    assert op is not None
    name = overload.partition(".")[0].removeprefix("_")

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = args[0] if args else kwargs.get("dim", default_dim)
        if dim is None or dim == []:
            if self.numel() == 0:
                raise whole_error(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        elif self.dim():
            for d in [dim] if isinstance(dim, int) else dim:
                if -self.dim() <= d < self.dim() and self.size(d) == 0:
                    raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
        return row_major(op(self, *args, **kwargs))

    fake(overload)(run)


for _overload in ("amax", "amin", "aminmax", "max", "min", "_aminmax"):
    _extremum(_overload, None, RuntimeError)
for _overload in ("argmax", "argmin", "max.dim", "min.dim", "_aminmax.dim", "median.dim", "nanmedian.dim"):
    _extremum(_overload, None, IndexError)
_extremum("mode", -1, IndexError)


@fake("nansum")  # the meta function takes dim=[] for no dimension; it stands for all
def nansum(self, dim=None, keepdim=False, *, dtype=None):
    return row_major(torch.ops.aten.nansum(self, dim or None, keepdim, dtype=dtype))


@fake("_masked_softmax")  # ATen has no meta function
def masked_softmax(self, mask, dim=None, mask_type=None):
    return row_major(self)


@fake("_masked_softmax_backward")  # ATen has no meta function
def masked_softmax_backward(grad_output, output, mask, dim=None):
    return row_major(grad_output)


# Ops whose result depends on values. ATen's fakes answer for fake tensors; its meta functions raise RuntimeError.


def _only_for_fake_tensors(overload: str) -> None:
    op = aten_overload(overload)
    assert op is not None

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FakeTensor) and kwargs.get("output_size") is None:
            raise NotImplementedError(f"the result of {overload} depends on values")
        return row_major(op(self, *args, **kwargs))

    fake(overload)(run)


for _overload in ("repeat_interleave.Tensor", "_local_scalar_dense"):
    _only_for_fake_tensors(_overload)


@fake("index.Tensor")  # ATen's meta function refuses masks of uint8, and raises another class of error
def index(self, indices):
    for i in indices:
        if i is not None and i.dtype not in (torch.int64, torch.int32, torch.uint8, torch.bool):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    masks = [i.bool() if i is not None and i.dtype == torch.uint8 else i for i in indices]
    return row_major(torch.ops.aten.index.Tensor(self, masks))


def _spaced(overload: str) -> None:
    """ATen's meta function of a range between complex tensors forgets that the result is complex."""
    op = aten_overload(overload)
    assert op is not None

    def run(start: Any, end: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dtype") is None and any(isinstance(x, torch.Tensor) and x.is_complex() for x in (start, end)):
            kwargs = kwargs | {"dtype": torch.get_default_dtype().to_complex()}
        return row_major(op(start, end, *args, **kwargs))

    fake(overload)(run)


for _name in ("linspace", "logspace"):
    for _kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        _spaced(f"{_name}.{_kind}")


@fake("_native_multi_head_attention")  # ATen's meta function has an empty tensor for weights that are not needed
def native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None
):  # fmt: skip
    batch, length = query.shape[:2]
    shape = (batch, length, length) if average_attn_weights else (batch, num_head, length, length)
    return _like(query), query.new_empty(shape) if need_weights else None


# ATen's meta function answers for CUDA: on CPU the sum leaves offset2bag empty in its fast path, and there is one size
# a bag even where the last offset is no bag's start


def _embedding_bag(weight, indices, offsets, mode, bags, sizes, padding_idx):
    dtype = indices.dtype if indices.dtype == offsets.dtype else torch.int64
    fast = mode == 0 and padding_idx < 0 and weight.dtype != torch.float64
    shape = (bags, weight.shape[1])
    return (
        weight.new_empty(shape),
        indices.new_empty((0 if fast else indices.shape[0],), dtype=dtype),
        indices.new_empty((sizes if mode == 0 else bags,), dtype=dtype),
        indices.new_empty(shape if mode == 2 else (sizes if mode == 0 else bags,), dtype=dtype),
    )


@fake("_embedding_bag")
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1
):  # fmt: skip
    bags = offsets.shape[0] - include_last_offset
    return _embedding_bag(weight, indices, offsets, mode, bags, bags, padding_idx)


@fake("_embedding_bag_forward_only")
def embedding_bag_forward_only(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1
):  # fmt: skip
    bags = offsets.shape[0] - include_last_offset
    return _embedding_bag(weight, indices, offsets, mode, bags, offsets.shape[0], padding_idx)


# Histograms: ATen has no meta functions.


@fake("histogram.bin_ct")
def histogram_bin_ct(self, bins=100, *, range=None, weight=None, density=False):
    return self.new_empty((bins,)), self.new_empty((bins + 1,))


@fake("histogram.bins_tensor")
def histogram_bins_tensor(self, bins, *, weight=None, density=False):
    return self.new_empty((bins.shape[0] - 1,)), row_major(bins)


@fake("_histogramdd_bin_edges")
def histogramdd_bin_edges(self, bins, *, range=None, weight=None, density=False):
    return [self.new_empty((n + 1,)) for n in bins]


@fake("_histogramdd_from_bin_cts")
def histogramdd_from_bin_cts(self, bins, *, range=None, weight=None, density=False):
    return self.new_empty(tuple(bins))


@fake("_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(self, bins, *, weight=None, density=False):
    return self.new_empty(tuple(edges.shape[0] - 1 for edges in bins))


# Backward ops of losses: ATen has no meta functions.


@fake("multi_margin_loss_backward")
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=1):
    return row_major(self)


@fake("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    return row_major(self)


@fake("_logcumsumexp")  # ATen has no meta function
def _logcumsumexp(self, dim):
    return row_major(self)


# A single sample makes a 0-d loss on CPU; ATen's meta functions say one element.


@fake("multi_margin_loss")
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=1):
    return self.new_empty(() if reduction else target.shape)


@fake("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self, target, reduction):
    loss = self.new_empty(() if reduction or self.dim() < 2 else self.shape[:1])
    return loss, torch.empty_like(target, dtype=self.dtype, memory_format=torch.contiguous_format)


@fake("geometric")  # ATen's meta function looks at p, of which only the type is known here
def geometric(self, p, *, generator=None):
    return _like(self)


# The dtype of these losses is that of self on CPU; ATen's meta functions promote.


@fake("soft_margin_loss")
def soft_margin_loss(self, target, reduction=1):
    return torch.ops.aten.soft_margin_loss(self, target.to(self.dtype), reduction)


@fake("huber_loss")
def huber_loss(self, target, reduction=1, delta=1.0):
    return torch.ops.aten.huber_loss(self, target.to(self.dtype), reduction, delta)


def _targets_of_bytes(overload: str) -> None:
    """ATen's meta functions refuse targets of uint8, which its CPU kernels take."""
    op = aten_overload(overload)
    assert op is not None

    def run(self, target, weight, reduction, ignore_index):
        target = target.long() if target.dtype == torch.uint8 else target
        return row_major(op(self, target, weight, reduction, ignore_index))

    fake(overload)(run)


_targets_of_bytes("nll_loss_forward")
_targets_of_bytes("nll_loss2d_forward")


# CTC: ATen has no meta functions, or one whose sizes are those of another layout.


@fake("_ctc_loss")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    time, batch, _ = log_probs.shape
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, 2 * max(target_lengths, default=0) + 1))


@fake("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    return row_major(log_probs)


# ATen's meta functions ask for `scalars` on the CPU, as their kernels do


@fake("_foreach_addcdiv.Tensor")
def foreach_addcdiv(self, tensor1, tensor2, scalars):
    return row_major(torch.ops.aten._foreach_addcdiv.Scalar(self, tensor1, tensor2, 1))


@fake("_foreach_addcmul.Tensor")
def foreach_addcmul(self, tensor1, tensor2, scalars):
    return row_major(torch.ops.aten._foreach_addcmul.Scalar(self, tensor1, tensor2, 1))


# Linear algebra: ATen has no meta functions.


@fake("geqrf")
def geqrf(self):
    return row_major(self), self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


@fake("_compute_linear_combination")
def _compute_linear_combination(input, coefficients):
    return input.new_empty((coefficients.shape[0], *input.shape[1:]))


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
    return tuple(_like(t) if on else None for t, on in zip((self, weight, bias), output_mask, strict=True))


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
    return _like(self)


@fake("_grid_sampler_2d_cpu_fallback")
def grid_sampler_2d_cpu_fallback(input, grid, interpolation_mode, padding_mode, align_corners):
    return torch.ops.aten.grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners)


@fake("_grid_sampler_2d_cpu_fallback_backward")
def grid_sampler_2d_cpu_fallback_backward(grad_output, input, grid, *settings):
    return _like(input), _like(grid)


@fake("cudnn_grid_sampler")
def cudnn_grid_sampler(self, grid):
    return torch.ops.aten.grid_sampler_2d(self, grid, 0, 0, True)


@fake("cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(self, grid, grad_output):
    return _like(self), _like(grid)


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


# Elementwise ones whose ATen meta function does not take symbolic sizes, or is missing


@fake("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_out, self, lambd):
    return row_major(torch.ops.aten.mul(grad_out, self))


@fake("_add_relu.Scalar")
def add_relu_scalar(self, other, alpha=1):
    return row_major(torch.ops.aten.add.Scalar(self, other, alpha))


@fake("fractional_max_pool3d_backward")  # ATen has no meta function for it
def fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices):
    return row_major(self)


@fake("normal.Tensor_Tensor")  # ATen's meta function promotes mean and std; its kernel keeps the dtype of mean
def normal_tensors(mean, std, *, generator=None):
    return mean.new_empty(torch.broadcast_shapes(mean.shape, std.shape))


# Random ops of which ATen has no meta function.


@fake("binomial")
def binomial(count, prob, generator=None):
    return count.new_empty(torch.broadcast_shapes(count.shape, prob.shape))


@fake("_sample_dirichlet")
def sample_dirichlet(self, generator=None):
    return _like(self)


@fake("_fused_dropout")
def fused_dropout(self, p, generator=None):
    return _like(self), _like(self).to(torch.uint8)


@fake("_masked_scale")
def masked_scale(self, mask, scale):
    return _like(self)
