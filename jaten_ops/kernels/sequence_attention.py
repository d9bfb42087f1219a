"""Attention for tensors (batch, length, heads, head size), or for concatenated sequences of different lengths.

ATen has these for CUDA only: aten/src/ATen/native/transformers/cuda/attention.cu. Sequences are padded to the longest
and masked, and the padding is taken off the results; `attention` and its backward do the rest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel
from jaten_ops.schema import RELEASE

from ..kernel_base.promotion import cast
from .attention import dropout_factors, pack_key, unpack_key
from .attention_parts import attention, attention_backward, scale_of, sum_to
from .sorting import binary_search


class Sequences(NamedTuple):
    """Tensors (batch, heads, length, head size), and how many of each sequence's rows count: an int, or (batch,)."""

    x: jax.Array
    lengths: Any
    ends: jax.Array | None  # of sequences one after the other: 0, the end of the first, of the second, ...

    def put(self, other: jax.Array) -> jax.Array:
        """A tensor in the layout of the original, as these rows."""
        return _rows(other, self.ends, self.x.shape[2], None).x

    def take(self, x: jax.Array, total: int) -> jax.Array:
        """Results (batch, heads, length, *) as the original is laid out: (batch, length, heads, *), or one row each."""
        x = jnp.moveaxis(x, 1, 2)
        if self.ends is None:
            return x
        at = lax.iota(np.int64, total)
        sequence = jnp.clip(cast(binary_search(self.ends, at, True), "int64") - 1, 0, x.shape[0] - 1)
        return x.at[sequence, jnp.minimum(at - self.ends[sequence], x.shape[1] - 1)].get(mode="promise_in_bounds")


def _rows(x: jax.Array, ends: jax.Array | None, longest: int, lengths: jax.Array | None) -> Sequences:
    """Sequences (total, heads, size) with ends, or (batch, length, heads, size) without.

    Args:
        lengths: how many rows of each sequence count; None for all.
    """
    if ends is None:
        return Sequences(jnp.moveaxis(x, 1, 2), x.shape[1] if lengths is None else cast(lengths, "int64"), None)
    ends = cast(ends, "int64")
    lengths = ends[1:] - ends[:-1] if lengths is None else cast(lengths, "int64")
    if not x.shape[0]:
        return Sequences(jnp.zeros((lengths.shape[0], x.shape[1], longest, x.shape[2]), x.dtype), lengths, ends)
    at = jnp.clip(ends[:-1, None] + lax.iota(np.int64, longest), 0, x.shape[0] - 1)
    return Sequences(jnp.moveaxis(x.at[at].get(mode="promise_in_bounds"), 1, 2), lengths, ends)


def _column(lengths: Any) -> Any:
    return lengths if isinstance(lengths, int) else lengths[:, None, None, None]


def _distance(query: Sequences, key: Sequences, from_right: bool) -> jax.Array:
    """The position of each query minus that of each key: (batch or 1, 1, queries, keys).

    `from_right`: the last query stands where the last key does, not the first where the first does.
    """
    shape = (1, 1, query.x.shape[2], key.x.shape[2])
    distance = lax.broadcasted_iota(np.int64, shape, 2) - lax.broadcasted_iota(np.int64, shape, 3)
    return distance + (_column(key.lengths) - _column(query.lengths)) if from_right else distance


def _visible(query: Sequences, key: Sequences, distance: jax.Array, left: int | None, right: int | None) -> Any:
    """Mask of the keys at most `left` before a query and `right` after it; None if it attends to all."""
    conditions = []
    if left is not None:
        conditions.append(distance <= left)
    if right is not None:
        conditions.append(distance >= -right)
    shape = (1, 1, query.x.shape[2], key.x.shape[2])
    if not isinstance(query.lengths, int):
        conditions.append(lax.broadcasted_iota(np.int64, shape, 2) < _column(query.lengths))
    if not isinstance(key.lengths, int):
        conditions.append(lax.broadcasted_iota(np.int64, shape, 3) < _column(key.lengths))
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = mask & condition
    return mask


def _limit(window: int | None) -> int | None:
    return None if window is None or window < 0 else window


# FlashAttention: causal is from the right, and so are windows


def _flash_mask(
    query: Sequences, key: Sequences, causal: bool, left: int | None, right: int | None, slopes: Any = None
) -> Any:
    distance = _distance(query, key, True)
    mask = _visible(query, key, distance, _limit(left), 0 if causal else _limit(right))
    if slopes is None:
        return mask
    slopes = slopes.reshape(math.prod(slopes.shape[:-1]), slopes.shape[-1], 1, 1)
    bias = -slopes * cast(jnp.abs(distance), slopes.dtype)
    return bias if mask is None else jnp.where(mask, bias, -np.inf)


def _pages(x: jax.Array, block_table: jax.Array) -> jax.Array:
    """(pages, rows, heads, size) to (batch, rows of all its pages, heads, size)."""
    found = x.at[block_table].get(mode="clip")
    return found.reshape(found.shape[0], found.shape[1] * found.shape[2], *found.shape[3:])


# aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k,
#     SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None,
#     SymInt? window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None,
#     Tensor? block_table=None, int? num_splits=None) -> (Tensor output, Tensor softmax_logsumexp, Tensor rng_state,
#     Tensor unused, Tensor debug_attn_mask)
@kernel("_flash_attention_forward", static=("dropout_p",))
def flash_attention_forward(
    query, key_, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
    window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None,
    num_splits=None, key
):  # fmt: skip
    """The forward pass; `num_splits` only affects how CUDA's kernel divides its work."""
    if return_debug_mask:
        raise NotImplementedError("_flash_attention_forward: return_debug_mask shows the registers of CUDA's kernel")
    ends_k = cum_seq_k
    if block_table is not None:
        if seqused_k is None and ends_k is not None:
            seqused_k = ends_k[1:] - ends_k[:-1]
        key_, value, ends_k = _pages(key_, block_table), _pages(value, block_table), None
    queries = _rows(query, cum_seq_q, max_q, None)
    keys, values = (_rows(x, ends_k, max_k, seqused_k) for x in (key_, value))
    bias = _flash_mask(queries, keys, is_causal, window_size_left, window_size_right, alibi_slopes)
    keep = dropout_factors(queries.x, keys.x, dropout_p, key)
    out, logsumexp = attention(queries.x, keys.x, values.x, bias, keep, scale)
    logsumexp = cast(logsumexp, np.float32)
    if cum_seq_q is not None:
        logsumexp = queries.take(logsumexp, query.shape[0]).T
    state = jnp.stack([pack_key(key, np.uint64), jnp.zeros((), np.uint64)])
    unused, debug_mask = jnp.zeros((), np.uint64), jnp.zeros((0,), query.dtype)
    return queries.take(out, query.shape[0]), logsumexp, state, unused, debug_mask


# Of float8 tensors, each times a scale for each sequence and head of the keys; the output is bfloat16


def _descaled(x: jax.Array, descale: jax.Array | None, ends: jax.Array | None) -> jax.Array:
    """`x` times `descale` (batch, heads of the keys), in float32."""
    wide = cast(x, np.float32)
    if descale is None:
        return wide
    factors = jnp.repeat(descale, x.shape[-2] // descale.shape[1], 1)
    if ends is None:
        return wide * factors[:, None, :, None]
    sequence = cast(binary_search(ends, lax.iota(ends.dtype, x.shape[0]), True), "int64") - 1
    return wide * factors[jnp.clip(sequence, 0, factors.shape[0] - 1)][..., None]


# aten::_flash_attention_forward.quantized(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k,
#     SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, Tensor? q_descale,
#     Tensor? k_descale, Tensor? v_descale, *, float? scale=None, SymInt? window_size_left=None,
#     SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None) -> (Tensor output,
#     Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)
@kernel("_flash_attention_forward.quantized", static=("dropout_p",))
def flash_attention_forward_quantized(
    query, key_, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, q_descale,
    k_descale, v_descale, *, scale=None, window_size_left=None, window_size_right=None, seqused_k=None,
    alibi_slopes=None, key
):  # fmt: skip
    ends = (cum_seq_q, cum_seq_k, cum_seq_k)
    tensors = zip((query, key_, value), (q_descale, k_descale, v_descale), ends, strict=True)
    out, logsumexp, state, unused, debug_mask = flash_attention_forward(
        *(_descaled(*t) for t in tensors), cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
        scale=scale, window_size_left=window_size_left, window_size_right=window_size_right, seqused_k=seqused_k,
        alibi_slopes=alibi_slopes, key=key,
    )  # fmt: skip
    dtype = jnp.bfloat16 if query.dtype.itemsize == 1 else query.dtype
    return cast(out, dtype), logsumexp, state, unused, cast(debug_mask, dtype)


# aten::_scaled_dot_product_flash_attention.quantized(Tensor query, Tensor key, Tensor value, Tensor? q_descale,
#     Tensor? k_descale, Tensor? v_descale, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *,
#     float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q,
#     SymInt max_k, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)
@kernel("_scaled_dot_product_flash_attention.quantized", static=("dropout_p",))
def flash_attention_quantized(
    query, key_, value, q_descale, k_descale, v_descale, dropout_p=0.0, is_causal=False, return_debug_mask=False, *,
    scale=None, key
):  # fmt: skip
    """The same for tensors (batch, heads, length, head size)."""
    lengths = query.shape[2], key_.shape[2]
    out, logsumexp, *rest = flash_attention_forward_quantized(
        *(jnp.moveaxis(x, 1, 2) for x in (query, key_, value)), None, None, *lengths, dropout_p, is_causal,
        return_debug_mask, q_descale, k_descale, v_descale, scale=scale, key=key,
    )  # fmt: skip
    return jnp.moveaxis(out, 1, 2), logsumexp, None, None, *(jnp.asarray(n) for n in lengths), *rest


def _statistics(queries: Sequences, logsumexp: jax.Array) -> jax.Array:
    """(heads, total) to (batch, heads, length)."""
    return logsumexp if queries.ends is None else queries.put(logsumexp.T[..., None])[..., 0]


def _backward(grad, out, queries, keys, values, bias, keep, scale, logsumexp):
    """The gradients as the inputs are laid out, and that of the scores."""
    *gradients, grad_scores = attention_backward(
        queries.put(grad), queries.x, keys.x, values.x, bias, keep, scale, queries.put(out), logsumexp, False
    )
    return gradients, grad_scores


def _given(ends: jax.Array | None) -> jax.Array | None:
    return None if ends is None or not ends.size else ends


# aten::_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp,
#     Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor rng_state,
#     Tensor unused, *, float? scale=None, SymInt? window_size_left=None, SymInt? window_size_right=None) -> (Tensor,
#     Tensor, Tensor)
@kernel("_flash_attention_backward", static=("dropout_p",))
def flash_attention_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale=None, window_size_left=None, window_size_right=None
):  # fmt: skip
    queries = _rows(query, _given(cum_seq_q), max_q, None)
    keys, values = (_rows(x, _given(cum_seq_k), max_k, None) for x in (key, value))
    bias = _flash_mask(queries, keys, is_causal, window_size_left, window_size_right)
    keep = dropout_factors(queries.x, keys.x, dropout_p, unpack_key(rng_state.reshape(-1)[0]))
    statistics = _statistics(queries, logsumexp)
    gradients, _ = _backward(grad_out, out, queries, keys, values, bias, keep, scale_of(query, scale), statistics)
    rows = zip((queries, keys, values), gradients, (query, key, value), strict=True)
    return tuple(r.take(g, x.shape[0]) for r, g, x in rows)


# Memory-efficient attention: sequences one after the other have a batch dimension of 1

_FROM_RIGHT = 2  # of custom_mask_type: 0 none, 1 causal from the left


def _efficient_rows(x: jax.Array, ends: jax.Array | None, longest: int | None, lengths: jax.Array | None) -> Sequences:
    if ends is None:
        return _rows(x, None, 0, lengths)
    if x.shape[0] != 1:
        raise RuntimeError(f"_efficient_attention: with cu_seqlens the batch is of 1, got {list(x.shape)}")
    return _rows(x[0], ends, x.shape[1] if longest is None else longest, lengths)


def _efficient_mask(query: Sequences, key: Sequences, custom_mask_type: int, bias: Any, window_size: int | None) -> Any:
    distance = _distance(query, key, custom_mask_type == _FROM_RIGHT)
    left = window_size - 1 if window_size is not None and window_size > 0 else None
    mask = _visible(query, key, distance, left, 0 if custom_mask_type else None)
    if bias is None:
        return mask
    if query.ends is not None:
        raise RuntimeError("_efficient_attention: a bias is not supported with cu_seqlens")
    return bias if mask is None else jnp.where(mask, bias, -np.inf)


def _without_batch(x: jax.Array, rows: Sequences) -> jax.Array:
    return x if rows.ends is None else x[0]


def _laid_out(rows: Sequences, x: jax.Array, like: jax.Array) -> jax.Array:
    return rows.take(x, 0) if rows.ends is None else rows.take(x, like.shape[1])[None]


# aten::_efficient_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? cu_seqlens_q,
#     Tensor? cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, float dropout_p, int custom_mask_type,
#     bool compute_log_sumexp=False, *, float? scale=None, Tensor? seqlen_k=None,
#     int? window_size=None) -> (Tensor output, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset,
#     SymInt max_seqlen_batch_q, SymInt max_seqlen_batch_k)
@kernel("_efficient_attention_forward", static=("dropout_p",))
def efficient_attention_forward(
    query, key_, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None, key
):  # fmt: skip
    queries = _efficient_rows(query, cu_seqlens_q, max_seqlen_q, None)
    keys, values = (_efficient_rows(x, cu_seqlens_k, max_seqlen_k, seqlen_k) for x in (key_, value))
    mask = _efficient_mask(queries, keys, custom_mask_type, bias, window_size)
    keep = dropout_factors(queries.x, keys.x, dropout_p, key)
    out, logsumexp = attention(queries.x, keys.x, values.x, mask, keep, scale)
    longest = queries.x.shape[2]
    padding = -longest % 32  # CUDA's kernel writes whole tiles of 32 rows
    logsumexp = jnp.pad(logsumexp, ((0, 0), (0, 0), (0, padding))) if compute_log_sumexp else logsumexp[..., :0]
    lengths = jnp.asarray(longest), jnp.asarray(keys.x.shape[2] if max_seqlen_k is None else max_seqlen_k)
    seed, offset = pack_key(key, np.int64), jnp.zeros((), np.int64)
    return _laid_out(queries, out, query), cast(logsumexp, np.float32), seed, offset, *lengths


# aten::_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor? bias,
#     Tensor out, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k,
#     Tensor logsumexp, float dropout_p, Tensor philox_seed, Tensor philox_offset, int custom_mask_type,
#     bool bias_requires_grad, *, float? scale=None, int? num_splits_key=None, int? window_size=None,
#     bool shared_storage_dqdkdv=False) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("_efficient_attention_backward", static=("dropout_p",))
def efficient_attention_backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp,
    dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, *, scale=None, num_splits_key=None,
    window_size=None, shared_storage_dqdkdv=False
):  # fmt: skip
    """The gradients; `num_splits_key` and `shared_storage_dqdkdv` only affect CUDA's kernel."""
    queries = _efficient_rows(query, cu_seqlens_q, max_seqlen_q, None)
    keys, values = (_efficient_rows(x, cu_seqlens_k, max_seqlen_k, None) for x in (key, value))
    mask = _efficient_mask(queries, keys, custom_mask_type, bias, window_size)
    keep = dropout_factors(queries.x, keys.x, dropout_p, unpack_key(philox_seed))
    statistics = logsumexp[..., : queries.x.shape[2]]
    grad, out = (_without_batch(x, queries) for x in (grad_out_, out))
    gradients, grad_scores = _backward(grad, out, queries, keys, values, mask, keep, scale_of(query, scale), statistics)
    rows = zip((queries, keys, values), gradients, (query, key, value), strict=True)
    of_bias = sum_to(grad_scores, bias) if bias is not None and bias_requires_grad else None
    return *(_laid_out(r, g, x) for r, g, x in rows), of_bias


# aten::_fused_sdp_choice(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.,
#     bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> int
@kernel("_fused_sdp_choice", static=("dropout_p",))
def fused_sdp_choice(
    query, key_, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False, key=None
):
    """1 (flash) where ATen's fused kernel for CPU takes such operands, else 0 (math): sdp_utils_cpp.cpp.

    From torch 2.14 on it takes operands without batches, and one head of keys and values for all of the queries'.
    """
    is_newer = RELEASE >= (2, 14)
    is_batched = query.ndim == 4
    shapes = [x.shape if is_batched else (1, *x.shape) for x in (query, key_, value)]
    ok = dropout_p == 0 and all(len(s) == 4 for s in shapes) and (is_batched or is_newer)
    ok = ok and query.dtype.name in ("float16", "bfloat16", "float32", "float64")
    ok = ok and query.dtype == key_.dtype == value.dtype and len({(s[0], s[3]) for s in shapes}) == 1
    if ok:
        heads, heads_k, heads_v = (s[1] for s in shapes)
        grouped = enable_gqa and heads_k == heads_v > 0 and heads % heads_k == 0
        ok = grouped or heads == heads_k == heads_v or (is_newer and heads_k == heads_v == 1)
        ok = ok and shapes[0][2] > 0 and shapes[1][2] > 0
    if ok and attn_mask is not None:
        scores = (*shapes[0][:3], shapes[1][2])
        sizes = zip(attn_mask.shape[::-1], scores[::-1], strict=False)
        has_rank = attn_mask.ndim in (2, 4) if is_batched else attn_mask.ndim <= 4
        ok = has_rank and all(m in (1, s) for m, s in sizes)
    return np.int64(ok)
