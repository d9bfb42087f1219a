"""Gradients of attention with dropout: the backward op draws the forward's mask again, from its saved state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jaten_ops.registry import gradient

ops = torch.ops.jaten


def _attention_gradients(
    names: Sequence[str], gradients: Sequence[torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    return dict(zip(names, gradients, strict=True))


@gradient("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(grads, args, results):
    query, key, value, dropout_p, causal, attn_mask, scale = args
    gradients = ops._scaled_dot_product_flash_attention_for_cpu_backward(
        grads[0], query, key, value, *results, dropout_p, causal, attn_mask=attn_mask, scale=scale
    )
    return _attention_gradients(("query", "key", "value"), gradients)


@gradient("_scaled_dot_product_efficient_attention")
def efficient_attention(grads, args, results):
    query, key, value, bias, _, dropout_p, causal, scale = args
    out, logsumexp, seed, offset = results
    mask = [True, True, True, bias is not None]
    if not logsumexp.numel():
        raise RuntimeError("_scaled_dot_product_efficient_attention: compute_log_sumexp must be True for a gradient")
    bias = ops.new_zeros(query, [0]) if bias is None else bias
    gradients = ops._scaled_dot_product_efficient_attention_backward(
        grads[0], query, key, value, bias, out, logsumexp, seed, offset, dropout_p, mask, causal, scale=scale
    )
    return _attention_gradients(("query", "key", "value", "attn_bias"), gradients)


@gradient("_scaled_dot_product_flash_attention")
def flash_attention(grads, args, results):
    query, key, value, dropout_p, causal, _, scale = args
    out, logsumexp, _, _, max_q, max_k, state, unused, _ = results
    lengths = ops.new_zeros(query, [0], dtype=torch.int32)  # the ends of sequences of different lengths: there are none
    gradients = ops._scaled_dot_product_flash_attention_backward(
        grads[0], query, key, value, out, logsumexp, lengths, lengths, max_q, max_k, dropout_p, causal, state, unused,
        scale=scale,
    )  # fmt: skip
    return _attention_gradients(("query", "key", "value"), gradients)


@gradient("_scaled_dot_product_cudnn_attention")
def cudnn_attention(grads, args, results):
    query, key, value, bias, _, dropout_p, causal, _, scale = args
    out, logsumexp, _, _, max_q, max_k, seed, offset, _ = results
    empty = ops.new_zeros(query, [0])
    lengths = ops.new_zeros(query, [0], dtype=torch.int32)
    gradients = ops._scaled_dot_product_cudnn_attention_backward(
        grads[0], query, key, value, out, logsumexp, seed, offset, empty if bias is None else bias, lengths, lengths,
        max_q, max_k, dropout_p, causal, scale=scale,
    )  # fmt: skip
    return _attention_gradients(("query", "key", "value"), gradients)


@gradient("_scaled_dot_product_fused_attention_overrideable")
def fused_attention_overrideable(grads, args, results):
    query, key, value, bias, dropout_p, causal, _, scale = args
    out, logsumexp, _, _, max_q, max_k, seed, offset, _ = results
    mask = [True, True, True, bias is not None]
    empty = ops.new_zeros(query, [0])
    lengths = ops.new_zeros(query, [0], dtype=torch.int32)
    gradients = ops._scaled_dot_product_fused_attention_overrideable_backward(
        grads[0], query, key, value, empty if bias is None else bias, mask, out, logsumexp, lengths, lengths,
        max_q, max_k, dropout_p, causal, seed, offset, scale=scale,
    )  # fmt: skip
    return _attention_gradients(("query", "key", "value", "attn_bias"), gradients)


def _refuse(name: str, **absent: Any) -> None:
    """ATen's backward ops have no such argument, and its formulas leave it out."""
    given = [argument for argument, value in absent.items() if value is not None]
    if given:
        raise RuntimeError(
            f"{name}: has no gradient with {', '.join(given)}. Fix: leave it out, or call without gradients"
        )


@gradient("_flash_attention_forward")
def flash_attention_forward(grads, args, results):
    query, key, value, ends_q, ends_k, max_q, max_k, dropout_p, causal, _, scale, left, right, *rest = args
    out, logsumexp, state, unused, _ = results
    _refuse("_flash_attention_forward", seqused_k=rest[0], alibi_slopes=rest[1], block_table=rest[2])
    none = ops.new_zeros(query, [0], dtype=torch.int32)
    ends = [none if e is None else e for e in (ends_q, ends_k)]
    gradients = ops._flash_attention_backward(
        grads[0], query, key, value, out, logsumexp, *ends, max_q, max_k, dropout_p, causal, state, unused,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return _attention_gradients(("query", "key", "value"), gradients)


@gradient("_efficient_attention_forward")
def efficient_attention_forward(grads, args, results, wanted):
    query, key, value, bias, ends_q, ends_k, _, _, dropout_p, mask_type, _, scale, lengths_k, window_size = args
    out, logsumexp, seed, offset, max_q, max_k = results
    _refuse("_efficient_attention_forward", seqlen_k=lengths_k)
    if not logsumexp.numel():
        raise RuntimeError("_efficient_attention_forward: compute_log_sumexp must be True for a gradient")
    gradients = ops._efficient_attention_backward(
        grads[0], query, key, value, bias, out, ends_q, ends_k, max_q, max_k, logsumexp, dropout_p, seed, offset,
        mask_type, "bias" in wanted, scale=scale, window_size=window_size,
    )  # fmt: skip
    return _attention_gradients(("query", "key", "value", "bias"), gradients)
