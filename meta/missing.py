"""Fakes of operators for which ATen has no meta function, or one that serves only fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor

from jaten_ops.registry import fake

from .reuse import as_contiguous, masked

# Copies


@fake("_copy_from")
def copy_from(self, dst, non_blocking=False):
    return as_contiguous(dst)


@fake("_copy_from_and_resize")
def copy_from_and_resize(self, dst):
    return dst.new_empty(self.shape)


@fake("dequantize.self")
def dequantize(self):
    return torch.empty_like(self, dtype=torch.float32, memory_format=torch.contiguous_format)


@fake("slice_inverse")  # ATen's makes a view of the memory of `self`, which has none here
def slice_inverse(self, src, dim=0, start=None, end=None, step=1):
    return torch.ops.aten.slice_scatter(src, self, dim, start, end, step)


# A bool that depends on values: the fake can only raise ATen's errors for bad shapes and dtypes.


@fake("equal")
def equal(self, other):
    raise NotImplementedError("the result of equal depends on values")


@fake("allclose")
def allclose(self, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    torch.ops.aten.isclose(self, other, rtol, atol, equal_nan)
    raise NotImplementedError("the result of allclose depends on values")


# Elementwise ones


@fake("_dirichlet_grad")
def dirichlet_grad(x, alpha, total):
    return x.new_empty(torch.broadcast_shapes(x.shape, alpha.shape, total.shape))


@fake("_standard_gamma_grad")
def standard_gamma_grad(self, output):
    return as_contiguous(self)


@fake("glu_jvp")
def glu_jvp(glu, x, dx, dim):
    return as_contiguous(glu)


@fake("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    return as_contiguous(grad_x)


# Products


@fake("matmul_backward")
def matmul_backward(grad, self, other, mask):
    return masked(mask, self, other)


# Recurrent layers and cells


@fake("mkldnn_rnn_layer")  # ATen's has an empty workspace
def mkldnn_rnn_layer(
    input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, batch_sizes, mode, hidden_size, *flags
):  # fmt: skip
    length, batch, _ = input.shape
    wide = torch.float32 if input.dtype in (torch.bfloat16, torch.float16) else input.dtype
    workspace = input.new_empty((length, batch, 5 * hidden_size), dtype=wide)
    return input.new_empty((length, batch, hidden_size)), as_contiguous(hx_), as_contiguous(cx_), workspace


@fake("_thnn_fused_gru_cell")
def thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    return as_contiguous(hx), hx.new_empty((*hx.shape[:-1], 5 * hx.shape[-1]))


@fake("_thnn_fused_gru_cell_backward")
def thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias):
    gates = grad_hy.new_empty((*grad_hy.shape[:-1], 3 * grad_hy.shape[-1]))
    biases = [grad_hy.new_empty((3 * grad_hy.shape[-1],)) if has_bias else None for _ in range(2)]
    return gates, as_contiguous(gates), as_contiguous(grad_hy), *biases


# Shapes that depend on values


def _new_size(like: torch.Tensor, op: Any) -> Any:
    """A size that depends on values: a new symbol in the shape environment of a fake tensor."""
    if not isinstance(like, FakeTensor):
        raise NotImplementedError(f"a shape of {op} depends on values")
    environment = like.fake_mode.shape_env
    if environment is None or not environment.allow_dynamic_output_shape_ops:
        raise DynamicOutputShapeException(op)
    return environment.create_unbacked_symint()


@fake("unique_dim_consecutive")
def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    count = _new_size(self, torch.ops.aten.unique_dim_consecutive.default)
    length = self.shape[dim] if self.dim() else 1
    shape = list(self.shape)
    if self.dim():
        shape[dim] = count
    found = self.new_empty(shape if self.dim() else (count,))
    return found, self.new_empty((length,), dtype=torch.int64), self.new_empty((count,), dtype=torch.int64)


@fake("_ctc_loss.Tensor")
def ctc_loss_tensor(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    states = _new_size(log_probs, torch.ops.aten._ctc_loss.Tensor)  # twice the longest target, and one
    time, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, states))


@fake("linalg_lstsq")
def linalg_lstsq(self, b, rcond=None, *, driver=None):
    driver = driver or "gelsy"
    vector = b.dim() == 1 or (b.dim() == self.dim() - 1 and b.shape == self.shape[:-1])
    _check_lstsq(self, b, vector, driver)
    (m, n), real = self.shape[-2:], self.dtype.to_real()
    batch, columns = self.shape[:-2], () if vector else b.shape[-1:]
    batch = batch if vector else torch.broadcast_shapes(batch, b.shape[:-2])
    residuals = (*batch, *(columns or (1,))) if m > n and driver != "gelsy" else (0,)
    if m > n and driver in ("gelsd", "gelss"):  # there are none unless every matrix has full rank
        residuals = (_new_size(self, torch.ops.aten.linalg_lstsq.default),)
    return (
        self.new_empty((*batch, n, *columns)),
        self.new_empty(residuals, dtype=real),
        self.new_empty((0,) if driver == "gels" else batch, dtype=torch.int64),
        self.new_empty((*batch, min(m, n)) if driver in ("gelsd", "gelss") else (0,), dtype=real),
    )


def _check_lstsq(a: torch.Tensor, b: torch.Tensor, vector: bool, driver: str) -> None:
    """Source: linalg_lstsq_out in aten/src/ATen/native/BatchLinearAlgebra.cpp."""
    last = -1 if vector else -2
    for holds, message in (
        (a.dim() >= 2, "input must have at least 2 dimensions."),
        (b.dim() >= 1, "other must have at least 1 dimension."),
        (0 <= a.dim() - b.dim() <= 1, "input.dim() must be greater or equal to other.dim() and (input.dim() -"
         " other.dim()) <= 1"),
        (b.dim() > -1 - last and a.dim() > 1 and a.shape[-2] == b.shape[last],
         f"input.size(-2) should match other.size({last})"),
        (a.dtype == b.dtype, f"Expected input and other to have the same dtype, but got input's dtype {a.dtype} and"
         f" other's dtype {b.dtype}"),
        (driver in ("gels", "gelsy", "gelsd", "gelss"), "parameter `driver` should be one of (gels, gelsy, gelsd,"
         " gelss)"),
    ):  # fmt: skip
        if not holds:
            raise RuntimeError(f"torch.linalg.lstsq: {message}")


# Checks. ATen's meta functions treat equal sizes as unequal, or make the token on no device.


@fake("_assert_tensor_metadata")
def assert_tensor_metadata(a, size=None, stride=None, dtype=None, *, device=None, layout=None):
    facts = (("sizes", size, a.shape), ("strides", stride, a.stride()), ("dtype", dtype, a.dtype))
    on_meta = a.device.type == "meta"  # stands for a tensor on any device, with other strides
    for name, expected, got in (*facts, ("device", device, a.device), ("layout", layout, a.layout)):
        if expected is None or (on_meta and name in ("strides", "device")):
            continue
        if (tuple(expected) if isinstance(expected, list | tuple) else expected) != got:
            raise RuntimeError(f"Tensor {name} mismatch! Expected: {expected}, Got: {got}")


@fake("_make_dep_token")
def make_dep_token(*, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return torch.empty((), dtype=dtype, device=device)


@fake("_print")  # ATen's own prints
def print_(s):
    return None


@fake("_validate_compressed_sparse_indices")
def validate_compressed_sparse_indices(is_crow, compressed_idx, plain_idx, cdim, dim, nnz):
    return None


# Fake quantization


@fake(
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def fake_quantize(self, *parameters):
    return as_contiguous(self), torch.empty_like(self, dtype=torch.bool, memory_format=torch.contiguous_format)


@fake("_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_learnable_per_channel_affine")
def fake_quantize_learnable(self, *parameters):
    return as_contiguous(self)


@fake("_fake_quantize_learnable_per_tensor_affine_backward")
def fake_quantize_learnable_per_tensor_backward(grad, self, scale, zero_point, *parameters):
    if not self.numel():
        return as_contiguous(self), as_contiguous(scale), as_contiguous(zero_point)
    shapes = (self.shape, (1,), (1,))
    return tuple(self.new_empty(s, dtype=torch.float32) for s in shapes)


@fake("_fake_quantize_learnable_per_channel_affine_backward")
def fake_quantize_learnable_per_channel_backward(grad, self, scale, zero_point, *parameters):
    tensors = (self, scale, zero_point)
    return tuple(t.new_empty(t.shape, dtype=torch.float32 if self.numel() else t.dtype) for t in tensors)


@fake("_fused_moving_avg_obs_fq_helper_functional")  # ATen's leaves the size of statistics that are empty
def fused_moving_average_fake_quantize(
    self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min,
    quant_max, ch_axis, per_row_fake_quant=False, symmetric_quant=False
):  # fmt: skip
    if ch_axis >= self.dim():
        raise RuntimeError("Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()")
    made = per_row_fake_quant and running_min.numel() == 0
    state = (running_min, running_max, scale, zero_point)
    shapes = [(self.shape[ch_axis],) if made else t.shape for t in state]
    return *fake_quantize(self), *(t.new_empty(s) for t, s in zip(state, shapes, strict=True))


@fake("_pack_padded_sequence")  # ATen's wants the lengths' values
def pack_padded_sequence(input, lengths, batch_first):
    op = torch.ops.aten._pack_padded_sequence.default
    total, steps = _new_size(input, op), _new_size(input, op)
    return input.new_empty((total, *input.shape[2:])), lengths.new_empty((steps,))


# The parts of batch normalization


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype


@fake("batch_norm_stats")
def batch_norm_stats(input, eps):
    mean = input.new_empty((input.shape[1],), dtype=_wide(input.dtype))
    return mean, as_contiguous(mean)


@fake("batch_norm_elemt")
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    return as_contiguous(input)


@fake("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    of_parameter = torch.empty_like(mean if weight is None else weight)
    return masked((input_g, input_g, weight_g, bias_g), mean, mean, of_parameter, of_parameter)


@fake("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    return as_contiguous(input)


@fake("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(input, mean, invstd, *parameters):
    together = mean.new_empty((mean.shape[1],), dtype=_wide(mean.dtype))
    return together, as_contiguous(together)


# Rows given by offsets


@fake("_convert_indices_from_csr_to_coo")  # ATen's does not take symbolic sizes
def csr_to_coo(crow_indices, col_indices, *, out_int32=False, transpose=False):
    shape = (col_indices.dim() + 1, col_indices.numel())
    return col_indices.new_empty(shape, dtype=torch.int32 if out_int32 else torch.int64)


@fake("_jagged_to_padded_dense_forward")  # ATen's has another class of error
def jagged_to_padded_dense(values, offsets, max_lengths, padding_value=0.0):
    if len(offsets) != 1 or len(max_lengths) != 1:
        raise RuntimeError("_jagged_to_padded_dense_forward(): only one jagged dimension is supported")
    return values.new_empty((offsets[0].shape[0] - 1, max_lengths[0], *values.shape[1:]))


@fake("_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(dense, offsets, total_L=None):
    if total_L is None:
        total_L = _new_size(dense, torch.ops.aten._padded_dense_to_jagged_forward.default)
    return dense.new_empty((total_L, *dense.shape[2:]))


# The convolution that another backend may override: ATen's own body says that it does not exist


@fake("convolution_overrideable")
def convolution_overrideable(*args):
    return as_contiguous(torch.ops.aten.convolution(*args))


@fake("convolution_backward_overrideable")
def convolution_backward_overrideable(grad_output, input, weight, *settings):
    return masked(settings[-1], input, weight, grad_output.new_empty((grad_output.shape[1],)))


# Scaled products. ATen's meta functions check strides, which kernels do not see.


def _fits(self: torch.Tensor, mat2: torch.Tensor) -> None:
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"contraction sizes differ: got {list(self.shape)} and {list(mat2.shape)}")


@fake("_scaled_mm_v2")
def scaled_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, *ignored):
    if self.dim() != 2 or mat2.dim() != 2:
        raise RuntimeError(f"Inputs must be 2D but got self.dim()={self.dim()} and mat2.dim()={mat2.dim()}")
    _fits(self, mat2)
    return self.new_empty((self.shape[0], mat2.shape[1]), dtype=out_dtype or self.dtype)


def _grouped(self: torch.Tensor, mat2: torch.Tensor, offs: Any, out_dtype: Any) -> torch.Tensor:
    if (self.dim() == 3 and mat2.dim() == 3) != (offs is None):
        raise RuntimeError(f"Offsets are for 2-d operands, got {self.dim()}-d and {mat2.dim()}-d ones, offs={offs}")
    _fits(self, mat2)
    shape = [self.shape[-2], mat2.shape[-1]]
    if self.dim() == mat2.dim():
        shape.insert(0, self.shape[0] if offs is None else offs.shape[0])
    return self.new_empty(shape, dtype=out_dtype or torch.bfloat16)


@fake("_scaled_grouped_mm")
def scaled_grouped_mm(
    self, mat2, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    return _grouped(self, mat2, offs, out_dtype)


@fake("_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(
    self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs=None, bias=None, out_dtype=None,
    *ignored
):  # fmt: skip
    return _grouped(self, mat2, offs, out_dtype)
