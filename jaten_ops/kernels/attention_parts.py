"""Scaled dot-product attention and its gradients: what the members of the family, in `attention`, are made of.

Tensors are (batch, heads, length, head size); key and value may have fewer heads, each for a group of query heads.
Scores and statistics are float32 where the inputs are smaller. A row in which every key is masked gives 0, and 0 as
its logsumexp, as in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..cpu import attention_tiles
from ..cpu.dot_reductions import contract
from ..kernel_base.platform import by_platform
from ..kernel_base.promotion import cast, compute_type, is_float

QK = (((3,), (3,)), ((0, 1), (0, 1)))
PV = (((3,), (2,)), ((0, 1), (0, 1)))
PTV = (((2,), (2,)), ((0, 1), (0, 1)))

# The forward


def _fold(x: jax.Array, heads: int) -> jax.Array:
    """Query heads of one group one after the other along the length: (B, H, L, E) to (B, heads, H / heads * L, E)."""
    return x if x.shape[1] == heads else x.reshape(x.shape[0], heads, x.shape[1] // heads * x.shape[2], x.shape[3])


def _scores(query: jax.Array, key: jax.Array, bias: Any, scale: Any, causal: bool, first: int = 0) -> jax.Array:
    """query @ key^T * scale + bias, -inf where a query comes before a key if causal: (B, H, L, S).

    Args:
        first: the position of the first query.
    """
    (batch, heads, length, _), size = query.shape, key.shape[2]
    scores = contract(_fold(query, key.shape[1]), key, QK).reshape(batch, heads, length, size) * scale
    if bias is not None and bias.dtype == bool:
        scores = jnp.where(bias, scores, -np.inf)
    elif bias is not None and bias.dtype == np.uint8:
        scores = scores + jnp.where(bias != 0, np.array(0, scores.dtype), -np.inf)
    elif bias is not None:
        scores = scores + cast(bias, scores.dtype)
    if causal:
        at = lax.broadcasted_iota(np.int32, (length, size), 0) + np.int32(first)
        scores = jnp.where(at < lax.broadcasted_iota(np.int32, (length, size), 1), -np.inf, scores)
    return scores


def _attend(query, key, value, bias, keep, scale, causal):
    if keep is not None or not attention_tiles.pay(query, key):
        return _attend_at_once(query, key, value, bias, keep, scale, causal)

    def in_tiles(query, key, value, bias):
        attend = partial(_attend_tile, scale=scale, causal=causal)
        return attention_tiles.over_heads(attend, query, key, (value, _four(bias)))

    return by_platform(
        *(query, key, value, bias),
        cpu=in_tiles,
        default=lambda *operands: _attend_at_once(*operands, None, scale, causal),
    )


def _four(bias: Any) -> Any:
    """A bias with all dimensions that the scores have."""
    return None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def _of_pairs(bias: Any, first: int, end: int, size: int) -> Any:
    """The bias of some queries, and of the first keys."""
    if bias is None:
        return None
    bias = bias if bias.shape[2] == 1 else bias[:, :, first:end]
    return bias if bias.shape[3] == 1 else bias[..., :size]


def _attend_tile(query, key, value, bias, *, scale, causal):
    """`_attend_at_once` for some queries at a time."""
    parts = []
    for first, end, size in attention_tiles.stretches(query, key, causal):
        pairs = query[:, :, first:end], key[:, :, :size], value[:, :, :size], _of_pairs(bias, first, end, size)
        parts.append(_attend_at_once(*pairs, None, scale, causal, first))
    return tuple(jnp.concatenate(part, 2) for part in zip(*parts, strict=True))


def _attend_at_once(query, key, value, bias, keep, scale, causal, first=0):
    scores = _scores(query, key, bias, scale, causal, first)
    top = lax.reduce_max(scores, (3,))[..., None]
    top = jnp.where(top == -np.inf, 0, top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, 3, keepdims=True)
    empty = total == 0
    weights = weights if keep is None else weights * keep
    context = contract(cast(_fold(weights, value.shape[1]), value.dtype), value, PV)
    context = context.reshape(*scores.shape[:3], value.shape[3]) / jnp.where(empty, 1, total)
    return cast(context, query.dtype), jnp.where(empty, 0, jnp.log(total) + top)[..., 0]


class _Parts(NamedTuple):
    """The gradients of query and scores, and the factors of those of key and value, which are summed over queries."""

    of_query: jax.Array
    of_key: tuple[jax.Array, jax.Array]
    of_value: tuple[jax.Array, jax.Array]
    of_scores: jax.Array


def _parts(grad, query, key, value, bias, keep, scale, out, logsumexp, causal, grad_logsumexp=0, first=0) -> _Parts:
    heads = key.shape[1]
    weights = jnp.exp(_scores(query, key, bias, scale, causal, first) - logsumexp[..., None])
    grad_weights = contract(_fold(grad, heads), value, QK).reshape(weights.shape)
    dropped = weights
    if keep is not None:
        grad_weights, dropped = grad_weights * keep, weights * keep
    wide = compute_type(query.dtype)
    delta = jnp.sum(cast(grad, wide) * cast(out, wide), 3, keepdims=True) - grad_logsumexp
    grad_scores = weights * (grad_weights - delta)
    scaled = cast(_fold(grad_scores * scale, heads), query.dtype)
    return _Parts(
        cast(contract(scaled, key, PV), query.dtype).reshape(query.shape),
        (scaled, _fold(query, heads)),
        (cast(_fold(dropped, heads), value.dtype), _fold(grad, heads)),
        grad_scores,
    )


def attention_backward(grad, query, key, value, *args):
    """The gradients of query, key, value and the scores, from the saved results; the weights are computed again."""
    parts = _parts(grad, query, key, value, *args)
    of_key, of_value = (contract(*factors, PTV) for factors in (parts.of_key, parts.of_value))
    return parts.of_query, cast(of_key, key.dtype), cast(of_value, value.dtype), parts.of_scores


def attention_gradients(grad, query, key, value, bias, scale, out, logsumexp, causal, grad_logsumexp=None):
    """The gradients of query, key and value without dropout: `attention_backward` where nobody asks for the scores'."""

    def at_once(grad, query, key, value, bias, out, logsumexp, grad_logsumexp):
        given = 0 if grad_logsumexp is None else grad_logsumexp
        saved = query, key, value, bias, None, scale, out, logsumexp
        return tuple(attention_backward(grad, *saved, causal, given)[:3])

    def in_tiles(grad, query, key, value, bias, out, logsumexp, grad_logsumexp):
        turned = attention_tiles.turn_gradients(key)
        differentiate = partial(_gradients_of_tile, scale=scale, causal=causal, turned=turned)
        others = value, _four(bias), grad, out, logsumexp, grad_logsumexp
        of_query, *of_others = attention_tiles.over_heads(differentiate, query, key, others)
        return of_query, *(x.mT if turned else x for x in of_others)

    operands = grad, query, key, value, bias, out, logsumexp, grad_logsumexp
    if not attention_tiles.pay(query, key):
        return at_once(*operands)
    return by_platform(*operands, cpu=in_tiles, default=at_once)


def _gradients_of_tile(query, key, value, bias, grad, out, logsumexp, grad_logsumexp, *, scale, causal, turned):
    """The gradients in a tile, those of key and value transposed if turned."""
    shapes = [x.mT.shape if turned else x.shape for x in (key, value)]
    of_query, totals = [], [jnp.zeros(s, compute_type(x.dtype)) for s, x in zip(shapes, (key, value), strict=True)]
    for first, end, size in attention_tiles.stretches(query, key, causal):
        rows = slice(None), slice(None), slice(first, end)
        seen = query[rows], key[:, :, :size], value[:, :, :size], _of_pairs(bias, first, end, size)
        given = 0 if grad_logsumexp is None else grad_logsumexp[rows]
        parts = _parts(grad[rows], *seen, None, scale, out[rows], logsumexp[rows], causal, given, first)
        of_query.append(parts.of_query)
        rest = [(0, 0), (0, 0), (0, 0), (0, 0)]
        rest[3 if turned else 2] = (0, key.shape[2] - size)
        for i, (weights, factor) in enumerate((parts.of_key, parts.of_value)):
            product = contract(factor, weights, PTV) if turned else contract(weights, factor, PTV)
            totals[i] += jnp.pad(lax.optimization_barrier(product), rest)
    return jnp.concatenate(of_query, 2), cast(totals[0], key.dtype), cast(totals[1], value.dtype)


def sum_to(x: jax.Array, like: jax.Array) -> jax.Array:
    """The gradient of broadcasting `like` to the shape of `x`."""
    extra = x.ndim - like.ndim
    dims = [d for d in range(x.ndim) if d < extra or like.shape[d - extra] == 1 != x.shape[d]]
    return cast(jnp.sum(x, dims).reshape(like.shape), like.dtype)


@jax.custom_vjp
def _attention(query, key, value, bias, keep, scale):
    return _attend(query, key, value, bias, keep, scale, False)


@jax.custom_vjp
def _causal_attention(query, key, value, bias, keep, scale):
    return _attend(query, key, value, bias, keep, scale, True)


def _define_gradient(fn: Any, causal: bool) -> None:
    def forward(query, key, value, bias, keep, scale):
        out, logsumexp = fn(query, key, value, bias, keep, scale)
        return (out, logsumexp), (query, key, value, bias, keep, scale, out, logsumexp)

    def backward(saved, grads):
        query, key, value, bias, keep, scale, out, logsumexp = saved
        of_statistics = grads[1][..., None]
        if keep is None and (bias is None or not is_float(bias.dtype)):
            operands = grads[0], query, key, value, bias, scale, out, logsumexp
            return *attention_gradients(*operands, causal, of_statistics), None, None, None
        *gradients, grad_scores = attention_backward(
            grads[0], query, key, value, bias, keep, scale, out, logsumexp, causal, of_statistics
        )
        grad_bias = None if bias is None or not is_float(bias.dtype) else sum_to(grad_scores, bias)
        return *gradients, grad_bias, None, None

    fn.defvjp(forward, backward)


_define_gradient(_attention, False)
_define_gradient(_causal_attention, True)


def scale_of(query: jax.Array, scale: Any) -> Any:
    return cast(query.shape[-1] ** -0.5 if scale is None else scale, compute_type(query.dtype))


def attention(query, key, value, bias=None, keep=None, scale=None, causal=False):
    """softmax(query @ key^T * scale + bias) @ value, and the logsumexp of the scores, (B, H, L).

    Args:
        bias: added to the scores, or, if bool, True for the keys that count; it broadcasts to (B, H, L, S). With a mask
            of uint8 scores that are NaN stay NaN, as with ATen's masks on a CPU.
        keep: multiplied with the softmax, (B, H, L, S); None for 1.
        scale: None for 1 / sqrt(head size).
        causal: a query attends to the keys up to its own position.
    """
    fn = _causal_attention if causal else _attention
    return fn(query, key, value, bias, keep, scale_of(query, scale))
