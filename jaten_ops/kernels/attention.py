"""The members of the family of scaled dot-product attention, and multi-head attention.

They differ in how they return logsumexp and the state of dropout; `attention_parts` computes all of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..cpu.dot_reductions import contract
from ..kernel_base import prng
from ..kernel_base.promotion import cast, compute_type
from .attention_parts import PV, QK, attention, attention_backward, attention_gradients, scale_of, sum_to
from .normalization import native_layer_norm
from .softmax import masked_softmax


def dropout_factors(query: jax.Array, key: jax.Array, dropout_p: float, rng: jax.Array) -> Any:
    """Factors by which dropout multiplies the weights: 0 or 1 / (1 - p)."""
    if dropout_p == 0:
        return None
    kept = jax.random.bernoulli(rng, 1 - dropout_p, (*query.shape[:3], key.shape[2]))
    return cast(kept, compute_type(query.dtype)) * (0.0 if dropout_p == 1 else 1 / (1 - dropout_p))


def _check_cpu(query, key, value, dropout_p, attn_mask) -> None:
    name = "scaled_dot_product_attention_flash_attention"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise RuntimeError(f"{name}: Accept only 4 dims inputs shape of {{B, H, T, K}}")
    if dropout_p != 0:
        raise RuntimeError(f"{name}: Currently do not support dropout > 0")
    if not query.shape[3] == key.shape[3] == value.shape[3]:
        raise RuntimeError(f"{name}: Q/K/V should have the same head size")
    if attn_mask is not None and attn_mask.dtype not in (query.dtype, compute_type(query.dtype)):
        raise RuntimeError(f"{name}: Attention mask is the same data type as query")
    if attn_mask is not None and attn_mask.ndim not in (2, 4):
        raise RuntimeError(f"{name}: Attention mask dim in {{2, 4}}")


# aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.,
#     bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)
@kernel("_scaled_dot_product_flash_attention_for_cpu", static=("dropout_p",))
def flash_attention_for_cpu(
    query, key_, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None, key=None
):
    _check_cpu(query, key_, value, dropout_p, attn_mask)
    return attention(query, key_, value, attn_mask, None, scale, is_causal)


# aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,
#     Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None,
#     float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)
@kernel("_scaled_dot_product_flash_attention_for_cpu_backward", static=("dropout_p",))
def flash_attention_for_cpu_backward(
    grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    return attention_gradients(
        grad_out, query, key, value, attn_mask, scale_of(query, scale), out, logsumexp, is_causal
    )


def pack_key(key: jax.Array, dtype: Any) -> jax.Array:
    """A PRNG key as a 0-d array of a 64-bit integer dtype: the state of dropout that the backward op gets."""
    return lax.bitcast_convert_type(jax.random.key_data(key), dtype)


def unpack_key(seed: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(lax.bitcast_convert_type(seed, np.uint32), impl=prng.IMPL)


def _zero(dtype: Any, *shape: int) -> jax.Array:
    return jnp.zeros(shape, dtype)


# aten::_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
#     bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, *, float? scale=None) -> (Tensor output,
#     Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)
@kernel("_scaled_dot_product_efficient_attention", static=("dropout_p",))
def efficient_attention(
    query, key_, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None, key
):
    keep = dropout_factors(query, key_, dropout_p, key)
    out, logsumexp = attention(query, key_, value, attn_bias, keep, scale, is_causal)
    padding = -logsumexp.shape[2] % 32  # CUDA's kernel writes whole tiles of 32 rows
    logsumexp = jnp.pad(logsumexp, ((0, 0), (0, 0), (0, padding))) if compute_log_sumexp else logsumexp[..., :0]
    return out, cast(logsumexp, np.float32), pack_key(key, np.int64), _zero(np.int64)


# aten::_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value,
#     Tensor attn_bias, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p,
#     bool[4] grad_input_mask, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("_scaled_dot_product_efficient_attention_backward", static=("dropout_p",))
def scaled_dot_product_efficient_attention_backward(
    grad_out_, query, key_, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
    is_causal=False, *, scale=None, key=None
):  # fmt: skip
    keep = dropout_factors(query, key_, dropout_p, unpack_key(philox_seed))
    bias = None if attn_bias is None or attn_bias.size == 0 else attn_bias
    *gradients, grad_scores = attention_backward(
        grad_out_, query, key_, value, bias, keep, scale_of(query, scale), out,
        logsumexp[..., : query.shape[2]], is_causal,
    )  # fmt: skip
    gradients.append(None if bias is None or not grad_input_mask[3] else sum_to(grad_scores, bias))
    return tuple(g if on else None for g, on in zip(gradients, grad_input_mask, strict=True))


# aten::_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None,
#     float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output,
#     Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed,
#     Tensor philox_offset, Tensor debug_attn_mask)
@kernel("_scaled_dot_product_fused_attention_overrideable", static=("dropout_p",))
def fused_attention_overrideable(
    query, key_, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, key
):
    keep = dropout_factors(query, key_, dropout_p, key)
    out, logsumexp = attention(query, key_, value, attn_bias, keep, scale, is_causal)
    lengths = jnp.asarray(query.shape[2]), jnp.asarray(key_.shape[2])
    return out, cast(logsumexp, np.float32), None, None, *lengths, pack_key(key, np.int64), _zero(np.int64), None


# aten::_scaled_dot_product_fused_attention_overrideable_backward(Tensor grad_out, Tensor query, Tensor key,
#     Tensor value, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, Tensor logsumexp, Tensor cum_seq_q,
#     Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor philox_seed,
#     Tensor philox_offset, *, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value,
#     Tensor grad_attn_bias)
@kernel("_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def fused_attention_overrideable_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None
):  # fmt: skip
    gradients = scaled_dot_product_efficient_attention_backward(
        grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p,
        grad_input_mask, is_causal, scale=scale,
    )  # fmt: skip
    # here also a gradient that is not needed is a tensor
    inputs = (query, key, value, attn_bias)
    return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))


# aten::_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.,
#     bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp,
#     Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused,
#     Tensor debug_attn_mask)
@kernel("_scaled_dot_product_flash_attention", static=("dropout_p",))
def flash_attention(query, key_, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, key):
    out, logsumexp = attention(query, key_, value, None, dropout_factors(query, key_, dropout_p, key), scale, is_causal)
    lengths = jnp.asarray(query.shape[2]), jnp.asarray(key_.shape[2])
    state = jnp.stack([pack_key(key, np.uint64), _zero(np.uint64)])
    return out, cast(logsumexp, np.float32), None, None, *lengths, state, _zero(np.uint64), _zero(query.dtype, 0)


# aten::_scaled_dot_product_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,
#     Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p,
#     bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> (Tensor grad_query,
#     Tensor grad_key, Tensor grad_value)
@kernel("_scaled_dot_product_flash_attention_backward", static=("dropout_p",))
def scaled_dot_product_flash_attention_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    philox_seed, philox_offset, *, scale=None
):  # fmt: skip
    seed = philox_seed if philox_seed.ndim == 0 else philox_seed[0]
    keep = dropout_factors(query, key, dropout_p, unpack_key(seed))
    return attention_backward(
        grad_out, query, key, value, None, keep, scale_of(query, scale), out, logsumexp, is_causal
    )[:3]


# aten::_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
#     bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *,
#     float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q,
#     SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)
@kernel("_scaled_dot_product_cudnn_attention", static=("dropout_p",))
def cudnn_attention(
    query, key_, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False,
    *, scale=None, key
):  # fmt: skip
    keep = dropout_factors(query, key_, dropout_p, key)
    out, logsumexp = attention(query, key_, value, attn_bias, keep, scale, is_causal)
    lengths = jnp.asarray(query.shape[2]), jnp.asarray(key_.shape[2])
    logsumexp = cast(logsumexp, np.float32)[..., None]
    return out, logsumexp, None, None, *lengths, pack_key(key, np.int64), _zero(np.int64), None


# aten::_scaled_dot_product_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,
#     Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q,
#     Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) -> (Tensor,
#     Tensor, Tensor)
@kernel("_scaled_dot_product_cudnn_attention_backward", static=("dropout_p",))
def cudnn_attention_backward(
    grad_out, query, key_, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k,
    max_q, max_k, dropout_p, is_causal, *, scale=None, key=None
):  # fmt: skip
    return scaled_dot_product_efficient_attention_backward(
        grad_out, query, key_, value, attn_bias, out, logsumexp[..., 0], philox_seed, philox_offset, dropout_p,
        (True, True, True, False), is_causal, scale=scale,
    )[:3]  # fmt: skip


# Multi-head attention, forward only: aten/src/ATen/native/transformers/attention.cpp


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    product = contract(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return cast(product + cast(bias, product.dtype), x.dtype)


# aten::_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> (Tensor, Tensor, Tensor)
@kernel("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(qkv, qkv_bias, num_heads):
    """(B, T, 3 D) to query, key and value of (B, heads, T, D / heads), with bias, the query scaled."""
    batch, length, width = qkv.shape
    size = width // 3 // num_heads
    wide = cast(qkv, compute_type(qkv.dtype)) + cast(qkv_bias, compute_type(qkv.dtype))
    query, key, value = wide.reshape(batch, length, 3, num_heads, size).transpose(2, 0, 3, 1, 4)
    return tuple(cast(x, qkv.dtype) for x in (query * size**-0.5, key, value))


# aten::_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head,
#     Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None,
#     bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> (Tensor, Tensor)
@kernel("_native_multi_head_attention")
def native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None
):  # fmt: skip
    none = jnp.zeros((), query.dtype)
    if query is key is value:
        projected = _linear(query, qkv_weight, none)
    else:
        parts = zip((query, key, value), jnp.split(qkv_weight, 3), strict=True)
        projected = jnp.concatenate([_linear(x, weight, none) for x, weight in parts], axis=2)
    query, key, value = transform_bias_rescale_qkv(projected, qkv_bias, num_head)
    scores = cast(contract(query, key, QK), query.dtype)
    if mask is None:
        weights = cast(jax.nn.softmax(cast(scores, compute_type(scores.dtype)), axis=3), scores.dtype)
    else:
        weights = masked_softmax(scores, cast(mask, bool), 3, mask_type)
    context = cast(contract(weights, value, PV), query.dtype)
    context = context.transpose(0, 2, 1, 3).reshape(*projected.shape[:2], embed_dim)
    out = _linear(context, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, cast(jnp.mean(weights, 1), weights.dtype) if average_attn_weights else weights


# aten::_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias,
#     Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1,
#     Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1,
#     Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor
@kernel("_transformer_encoder_layer_fwd")
def transformer_encoder_layer_fwd(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None,
    mask_type=None
):  # fmt: skip
    def attend(x: jax.Array) -> jax.Array:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def feed_forward(x: jax.Array) -> jax.Array:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    def norm_1(x: jax.Array) -> jax.Array:
        return native_layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)[0]

    def norm_2(x: jax.Array) -> jax.Array:
        return native_layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)[0]

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))
