"""Fakes of attention over sequences of different lengths.

ATen's meta functions create the state of dropout on the device meta, lack an argument, or serve another device.
"""

from __future__ import annotations

import torch

from jaten_ops.registry import fake

from .reuse import as_contiguous


@fake("_flash_attention_forward")
def flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, *args, **kwargs):
    batch, length, heads = query.shape[:3] if cum_seq_q is None else (0, *query.shape[:2])
    shape = (batch, heads, length) if cum_seq_q is None else (heads, length)
    return (
        query.new_empty((*query.shape[:-1], value.shape[-1])),
        query.new_empty(shape, dtype=torch.float32),
        query.new_empty((2,), dtype=torch.uint64),
        query.new_empty((), dtype=torch.uint64),
        query.new_empty((0,)),
    )


@fake("_flash_attention_forward.quantized")
def flash_attention_forward_quantized(query, *args, **kwargs):
    query = query.to(torch.bfloat16) if query.dtype.itemsize == 1 else query
    return flash_attention_forward(query, *args)


@fake("_scaled_dot_product_flash_attention.quantized")
def flash_attention_quantized(query, key, value, *args, **kwargs):
    swapped = [x.transpose(1, 2) for x in (query, key, value)]
    out, *rest = flash_attention_forward_quantized(*swapped, None, None)
    out = out.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, rest[0], None, None, query.shape[2], key.shape[2], *rest[1:]


@fake("_flash_attention_backward")
def flash_attention_backward(grad_out, query, key, value, *args, **kwargs):
    return as_contiguous(query), as_contiguous(key), as_contiguous(value)


@fake("_efficient_attention_forward")
def efficient_attention_forward(
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None
):  # fmt: skip
    varlen = cu_seqlens_q is not None
    if varlen and max_seqlen_q is None:
        raise RuntimeError("_efficient_attention_forward: max_seqlen_q is needed with cu_seqlens_q")
    longest_q = max_seqlen_q if varlen else query.shape[1]
    longest_k = key.shape[1] if max_seqlen_k is None else max_seqlen_k
    batch = cu_seqlens_q.shape[0] - 1 if varlen else query.shape[0]
    rows = (longest_q + 31) // 32 * 32 if compute_log_sumexp else 0
    return (
        query.new_empty((*query.shape[:-1], value.shape[-1])),
        query.new_empty((batch, query.shape[2], rows), dtype=torch.float32),
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
        longest_q,
        longest_k,
    )


@fake("_efficient_attention_backward")
def efficient_attention_backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp,
    dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, **kwargs
):  # fmt: skip
    of_bias = as_contiguous(bias) if bias is not None and bias_requires_grad else None
    return as_contiguous(query), as_contiguous(key), as_contiguous(value), of_bias


@fake("_fused_sdp_choice")  # ATen's answers for another device
def fused_sdp_choice(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    shapes = [x.shape for x in (query, key, value)]
    if dropout_p or any(len(s) != 4 for s in shapes) or not query.is_floating_point() or query.dtype.itemsize < 2:
        return 0
    heads, heads_k, heads_v = (s[1] for s in shapes)
    ok = query.dtype == key.dtype == value.dtype and all((s[0], s[3]) == (shapes[0][0], shapes[0][3]) for s in shapes)
    ok = ok and (heads == heads_k == heads_v or (enable_gqa and heads_k == heads_v and heads % heads_k == 0))
    ok = ok and shapes[0][2] > 0 and shapes[1][2] > 0
    if ok and attn_mask is not None:
        scores = (*shapes[0][:3], shapes[1][2])
        ok = attn_mask.dim() in (2, 4) and all(
            m in (1, s) for m, s in zip(attn_mask.shape[::-1], scores[::-1], strict=False)
        )
    return int(ok)
