"""Functional overloads that jaten does not support, each with its reason.

An overload belongs here only if no JAX kernel could implement it: its arguments or results are not arrays, or it is
defined as a call of one particular library. Rare or difficult ops, and those without a kernel yet, do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

# reason: patterns of overloads, as in a shell
EXCLUSIONS: dict[str, tuple[str, ...]] = {
    "sparse: an operand or the result has a sparse layout, and a jax.Array is dense": (
        "*_sparse_backward",
        "_coalesce",
        "_coalesced",
        "_dimI",
        "_dimV",
        "_indices*",
        "_nnz",
        "_sparse_*",
        "_spdiags",
        "_spsolve",
        "_to_dense",
        "_to_sparse*",
        "_validate_sparse_*",
        "_values*",
        "ccol_indices*",
        "coalesce",
        "col_indices*",
        "copy_sparse_to_sparse",
        "crow_indices*",
        "hspmm",
        "indices*",
        "is_coalesced",
        "native_norm*",  # norm of a sparse tensor: its only kernels are sparse ones
        "resize_as_sparse",
        "row_indices*",
        "smm",
        "sparse_b*",
        "sparse_c*",
        "sparse_mask",
        "sparse_resize*",
        "sparse_sampled_addmm",
        "sspaddmm",
        "to_sparse*",
        "values*",
    ),
    "quantized: an operand or the result has a quantizer, and a jax.Array has none": (
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
        "_make_per_*_quantized_tensor",
        "dequantize.tensors",
        "empty_quantized",
        "int_repr",
        "q_*",
        "qscheme",
        "quantize_per_*",
        "quantized_*",  # quantized_gru and quantized_lstm take their weights as packed C++ objects
    ),
    "packed weights: in the private layout of one CPU or GPU library's kernel, which no schema describes": (
        "_convert_weight_to_int4pack*",
        "_cslt_*",
        "_dyn_quant_*",
        "_mixed_dtypes_linear",
        "_weight_int4pack_*",
        "_wrapped_*",
        "fbgemm_*",
    ),
    "nested: makes, takes or measures a nested tensor, which is not one array": (
        "_nested_*",
        "nested_to_padded_tensor",
        "to_padded_tensor",
    ),
    "mkldnn layout: an operand or the result has oneDNN's opaque layout": (
        "_mkldnn_*",
        "mkldnn_adaptive_avg_pool2d*",
        "mkldnn_linear*",
        "mkldnn_max_pool*",
        "mkldnn_reorder_*",
        "to_mkldnn*",
    ),
    "vendor library: names one library's call, beside the general operator that jaten has or is to have": (
        "_cudnn_*",
        "_cufft_*",
        "_lstm_mps",
        "_mps_*",
        "_scaled_dot_product_attention_math_for_mps",
        "_triton_*",
        "_use_cudnn_*",
        "_use_miopen_*",
        "lstm_mps_backward",
        "miopen_ctc_loss*",
        "miopen_rnn*",
        "mps_*",
    ),
    "storage: asks about or takes the memory of a tensor, not its values, and a jax.Array has no storage to show": (
        "_has_same_storage_numel",
        "from_file",
        "is_pinned",
        "is_set_to",
        "set.source_Storage*",
    ),
    "autograd bookkeeping: the levels of forward-mode differentiation, which live above every backend": (
        "_fw_primal*",
        "_make_dual*",
        "_unpack_dual",
    ),
    "internal test: exists only for PyTorch's own tests": (
        "_foobar",
        "_test_*",
    ),
}


def matches(overload: str, patterns: Iterable[str]) -> bool:
    """True if one of the patterns matches."""
    return any(fnmatchcase(overload, pattern) for pattern in patterns)


def reason_of(overload: str) -> str | None:
    """The reason for which an overload is excluded; None if it is not."""
    return next((reason for reason, patterns in EXCLUSIONS.items() if matches(overload, patterns)), None)


def stale(overloads: Iterable[str]) -> list[str]:
    """The patterns that match none of the overloads."""
    names = list(overloads)
    patterns = (pattern for group in EXCLUSIONS.values() for pattern in group)
    return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
