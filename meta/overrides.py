"""Fakes that replace ATen's meta functions, each with its reason."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from jaten_ops.registry import fake

from .reuse import as_contiguous, aten_overload, known_true

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


@fake("_thnn_fused_lstm_cell")  # ATen's meta function fails without biases
def thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    zeros = input_gates.new_empty(input_gates.shape[-1])
    biases = [zeros if b is None else b for b in (input_bias, hidden_bias)]
    op = aten_overload("_thnn_fused_lstm_cell")
    assert op is not None
    return op(input_gates, hidden_gates, cx, *biases)


@fake("where.self")  # ATen's meta function refuses the bytes that its kernels take
def where(condition, self, other):
    op = aten_overload("where.self")
    assert op is not None
    return as_contiguous(op(condition.bool() if condition.dtype == torch.uint8 else condition, self, other))


# Extrema of empty tensors. ATen's meta functions accept them, or raise another exception than its CPU kernels.


def _extremum(overload: str, default_dim: Any, whole_error: type[Exception]) -> None:
    op = aten_overload(overload)
    assert op is not None
    name = overload.partition(".")[0].removeprefix("_")

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = args[0] if args else kwargs.get("dim", default_dim)
        if dim is None or dim == []:
            if known_true(self.numel() == 0):
                raise whole_error(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        elif self.dim():
            for d in [dim] if isinstance(dim, int) else dim:
                if -self.dim() <= d < self.dim() and known_true(self.size(d) == 0):
                    raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
        return as_contiguous(op(self, *args, **kwargs))

    fake(overload)(run)


for _overload in ("amax", "amin", "aminmax", "max", "min", "_aminmax"):
    _extremum(_overload, None, RuntimeError)
for _overload in ("argmax", "argmin", "max.dim", "min.dim", "_aminmax.dim", "median.dim", "nanmedian.dim"):
    _extremum(_overload, None, IndexError)
_extremum("mode", -1, IndexError)


@fake("nansum")  # the meta function takes dim=[] for no dimension; it means all
def nansum(self, dim=None, keepdim=False, *, dtype=None):
    return as_contiguous(torch.ops.aten.nansum(self, dim or None, keepdim, dtype=dtype))


@fake("_masked_softmax")  # ATen has no meta function
def masked_softmax(self, mask, dim=None, mask_type=None):
    return as_contiguous(self)


@fake("_masked_softmax_backward")  # ATen has no meta function
def masked_softmax_backward(grad_output, output, mask, dim=None):
    return as_contiguous(grad_output)


# Ops whose result depends on values. ATen's fakes answer for fake tensors; its meta functions raise RuntimeError.


def _only_for_fake_tensors(overload: str) -> None:
    op = aten_overload(overload)
    assert op is not None

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FakeTensor) and kwargs.get("output_size") is None:
            raise NotImplementedError(f"the result of {overload} depends on values")
        return as_contiguous(op(self, *args, **kwargs))

    fake(overload)(run)


for _overload in ("repeat_interleave.Tensor", "_local_scalar_dense"):
    _only_for_fake_tensors(_overload)


@fake("index.Tensor")  # ATen's meta function refuses masks of uint8, and raises another class of error
def index(self, indices):
    for i in indices:
        if i is not None and i.dtype not in (torch.int64, torch.int32, torch.uint8, torch.bool):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    masks = [i.bool() if i is not None and i.dtype == torch.uint8 else i for i in indices]
    return as_contiguous(torch.ops.aten.index.Tensor(self, masks))


@fake("_native_multi_head_attention")  # ATen's meta function returns an empty tensor for weights that are not needed
def native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None
):  # fmt: skip
    batch, length = query.shape[:2]
    shape = (batch, length, length) if average_attn_weights else (batch, num_head, length, length)
    return as_contiguous(query), query.new_empty(shape) if need_weights else None


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
    return self.new_empty((bins.shape[0] - 1,)), as_contiguous(bins)


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
    return as_contiguous(self)


@fake("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    return as_contiguous(self)


@fake("_logcumsumexp")  # ATen has no meta function
def _logcumsumexp(self, dim):
    return as_contiguous(self)


# A single sample makes a 0-d loss on CPU; ATen's meta functions say one element.


@fake("multi_margin_loss")
def multi_margin_loss(self, target, p=1, margin=1, weight=None, reduction=1):
    return self.new_empty(() if reduction else target.shape)


@fake("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self, target, reduction):
    loss = self.new_empty(() if reduction or self.dim() < 2 else self.shape[:1])
    return loss, torch.empty_like(target, dtype=self.dtype, memory_format=torch.contiguous_format)


@fake("geometric")  # ATen's meta function reads p, whose value is not known here
def geometric(self, p, *, generator=None):
    return as_contiguous(self)


def _targets_of_bytes(overload: str) -> None:
    """ATen's meta functions refuse targets of uint8, which its CPU kernels take."""
    op = aten_overload(overload)
    assert op is not None

    def run(self, target, weight, reduction, ignore_index):
        target = target.long() if target.dtype == torch.uint8 else target
        return as_contiguous(op(self, target, weight, reduction, ignore_index))

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
    return as_contiguous(log_probs)


# Linear algebra: ATen has no meta functions.


@fake("geqrf")
def geqrf(self):
    return as_contiguous(self), self.new_empty((*self.shape[:-2], min(self.shape[-2:])))


@fake("_compute_linear_combination")
def _compute_linear_combination(input, coefficients):
    return input.new_empty((coefficients.shape[0], *input.shape[1:]))


# Elementwise ones whose ATen meta function does not take symbolic sizes, or is missing


@fake("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_out, self, lambd):
    return as_contiguous(torch.ops.aten.mul(grad_out, self))


@fake("_add_relu.Scalar")
def add_relu_scalar(self, other, alpha=1):
    return as_contiguous(torch.ops.aten.add.Scalar(self, other, alpha))


@fake("fractional_max_pool3d_backward")  # ATen has no meta function for it
def fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices):
    return as_contiguous(self)


# Random ops of which ATen has no meta function.


@fake("binomial")
def binomial(count, prob, generator=None):
    return count.new_empty(torch.broadcast_shapes(count.shape, prob.shape))


@fake("_sample_dirichlet")
def sample_dirichlet(self, generator=None):
    return as_contiguous(self)


@fake("_fused_dropout")
def fused_dropout(self, p, generator=None):
    return as_contiguous(self), as_contiguous(self).to(torch.uint8)


@fake("_masked_scale")
def masked_scale(self, mask, scale):
    return as_contiguous(self)


@fake("view_copy")
def view_copy(self, size):
    """A copy where no view is possible, as in ATen's kernel; its meta function raises there."""
    return torch.ops.aten.view(as_contiguous(self), size)


@fake("fractional_max_pool2d_backward")
def fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices):
    if isinstance(self, FakeTensor):  # ATen's meta function asserts if a size is a symbol; otherwise its error is right
        return self.new_empty(self.shape)
    return as_contiguous(
        torch.ops.aten.fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices)
    )


# Empty batches. ATen's meta functions in Python divide by their size, or return a number instead of a bool.


@fake("linalg_vector_norm")
def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    """The dims are counted from the first one: ATen's meta function takes others for empty, where another dim is."""
    if dim is not None and self.dim():
        dim = [d + self.dim() if -self.dim() <= d < 0 else d for d in dim]
    return as_contiguous(torch.ops.aten.linalg_vector_norm(self, ord, dim, keepdim, dtype=dtype))


def _of_losses(overload: str) -> None:
    op = aten_overload(overload)
    assert op is not None

    def run(grad_output: Any, self: torch.Tensor, target: Any, reduction: int, *args: Any) -> torch.Tensor:
        return as_contiguous(op(grad_output, self, target, 0 if known_true(self.numel() == 0) else reduction, *args))

    fake(overload)(run)


for _overload in ("mse", "smooth_l1", "huber", "soft_margin"):
    _of_losses(f"{_overload}_loss_backward")


def _of_batches(overload: str) -> None:
    op = aten_overload(overload)
    assert op is not None

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes = list(self.shape)
        if 0 in sizes[2:]:
            raise RuntimeError(f"Input and output sizes should be greater than 0, but got input sizes {sizes}")
        if 0 in sizes[1:2]:
            raise RuntimeError(f"Non-empty {len(sizes)}D data tensor expected but got a tensor with sizes {sizes}")
        if self.dim() == 0 or self.shape[0] != 0:
            return as_contiguous(op(self, *args, **kwargs))
        of_one = op(self.new_empty((1, *self.shape[1:])), *args, **kwargs)
        return of_one.new_empty((0, *of_one.shape[1:]))

    fake(overload)(run)


for _n in (1, 2, 3):
    _of_batches(f"upsample_nearest{_n}d")
    _of_batches(f"_upsample_nearest_exact{_n}d")


@fake("resize")
def resize(self, size, *, memory_format=None):
    """A result in the requested memory format; other results are contiguous."""
    return torch.empty_like(self).resize_(size, memory_format=memory_format)


@fake("resize_as")
def resize_as(self, the_template, *, memory_format=None):
    return torch.empty_like(self).resize_as_(the_template, memory_format=memory_format)
