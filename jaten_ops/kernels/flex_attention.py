"""Attention whose scores are changed by functions of single elements: `torch.nn.attention.flex_attention`.

Tensors are (batch, heads, length, head size); key and value may have fewer heads, each for a group of query heads, and
a batch of one. What is computed, and in which dtype, is said by `sdpa_dense` and `sdpa_dense_backward` in
torch/_higher_order_ops/flex_attention.py. Where the scores would be large they are made for some queries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaten_ops.registry import kernel

from ..kernel_base.checks import NONE, Guarded, first_broken
from ..kernel_base.promotion import cast

MOST_SCORES = 2**25
"""The largest number of scores computed at a time, unless one query has more."""

_LN2 = math.log(2)
_QK, _PV = "bhgme,bhne->bhgmn", "bhgmn,bhne->bhgme"
_TO_K, _TO_P = "bhgmn,bhgme->bhne", "bhne,bhgme->bhgmn"


class Mods(NamedTuple):
    """The functions of single elements, over all of them.

    Attributes:
        score: takes the numbers of the queries (M,), the shape (B, H, M, N), and scores; returns scores.
        mask: takes numbers and shape, returns which scores are kept.
        joint: takes numbers, shape, scores, and gradients of the changed scores; returns gradients of the scores, and
            those of the tensors that the function has captured, None for some.
    """

    score: Callable[..., jax.Array]
    mask: Callable[..., jax.Array]
    joint: Callable[..., tuple[jax.Array, Sequence[Any]]] | None = None


def collapsing(reduce: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A function of an element that under `jax.vmap` reduces all elements, along axis 0, to one: not batched any more.

    A value that is the same for all elements stays as it is.
    """

    @custom_vmap
    def collapse(x: jax.Array) -> jax.Array:
        return x

    @collapse.def_vmap
    def over_all(_size: int, is_batched: Sequence[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return collapse(reduce(x) if is_batched[0] else x), False

    return collapse


def each_score(fn: Callable[..., Any], scores: Sequence[bool], results: Any) -> Callable[..., Any]:
    """A function of single elements as one of arrays.

    Args:
        fn: takes b, h, m and n, and other elements.
        scores: of each of the others whether it is (B, H, M, N); if not, it is the same for all.
        results: as `jax.vmap` has `out_axes`.
    """
    for axis in (3, 2, 1, 0):
        numbers = [0 if i == axis else None for i in range(4)]
        fn = jax.vmap(fn, (*numbers, *[0 if each else None for each in scores]), results)
    return fn


def _groups(x: jax.Array, heads: int) -> jax.Array:
    """(B, H, M, E) as (B, heads, H / heads, M, E)."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads, *x.shape[2:])


def _working(dtype: Any) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _raw_scores(query: jax.Array, key: jax.Array, scale: Any) -> jax.Array:
    dtype = _working(query.dtype)
    grouped = _groups(cast(query, dtype), key.shape[1])
    scores = jnp.einsum(_QK, grouped, cast(key, dtype)) * scale
    return scores.reshape(*query.shape[:3], key.shape[2])


def _changed(scores: jax.Array, numbers: jax.Array, mods: Mods) -> jax.Array:
    """The changed scores in the working precision, -inf where they are masked."""
    kept = mods.mask(numbers, scores.shape)
    return jnp.where(kept, cast(mods.score(numbers, scores.shape, scores), scores.dtype), -np.inf)


def _as_batch(x: jax.Array, batch: int) -> jax.Array:
    return x if x.shape[0] == batch else jnp.broadcast_to(x, (batch, *x.shape[1:]))


def _by_queries(fn: Callable[..., tuple[Any, Any]], inputs: Sequence[jax.Array], others: int) -> tuple[Any, Any]:
    """Calls a function of what there is for each query, for as many queries as may be at a time.

    Args:
        fn: takes the queries' numbers, which of them count, as one may come again to fill up, and their part of each
            of the inputs. It returns results for each query, with the queries as their axis 2, and others to be summed.
        inputs: have the queries as their axis 2.
        others: how many scores there are for one query.
    """
    length = inputs[0].shape[2]
    size = max(MOST_SCORES // max(others, 1), 1)
    if length <= size:
        return fn(lax.iota(np.int32, length), np.ones(length, bool), *inputs)
    steps = -(-length // size)

    def some(first: jax.Array) -> tuple[Any, Any]:
        numbers = first + lax.iota(np.int32, size)
        at = jnp.minimum(numbers, length - 1)
        return fn(at, numbers < length, *[jnp.take(x, at, 2) for x in inputs])

    guarded, firsts = Guarded(some), size * lax.iota(np.int32, steps)

    def step(state: Any, first: jax.Array) -> tuple[Any, Any]:
        (found, added), broken = guarded(first)
        return (jax.tree.map(jnp.add, state[0], added), first_broken(state[1], broken)), found

    (_, added), _ = jax.eval_shape(guarded, firsts[0])
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), added), jnp.asarray(NONE)
    (total, broken), found = lax.scan(step, start, firsts)
    guarded.report(broken)

    def joined(x: jax.Array) -> jax.Array:
        whole = jnp.moveaxis(x, 0, 2)
        return whole.reshape(*whole.shape[:2], whole.shape[2] * whole.shape[3], *whole.shape[4:])[:, :, :length]

    return jax.tree.map(joined, found), total


def flex_forward(query: jax.Array, key: jax.Array, value: jax.Array, scale: Any, mods: Mods) -> tuple[jax.Array, ...]:
    """The attention (B, H, M, E); log2 of the sum of exp(score) and the largest score / ln 2, (B, H, M) in float32.

    A row in which all is masked gives 0, -inf and -inf.
    """
    batch, heads, _, _ = query.shape
    key, value = _as_batch(key, batch), _as_batch(value, batch)

    def attend(numbers: jax.Array, _counts: Any, query: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        scores = _changed(_raw_scores(query, key, scale), numbers, mods)
        top = jnp.max(scores, 3)
        weights = jnp.exp(scores - jnp.where(top == -np.inf, 0, top)[..., None])
        total = jnp.sum(weights, 3)
        weights = weights / jnp.where(total == 0, 1, total)[..., None]
        grouped = _groups(cast(weights, query.dtype), key.shape[1])
        out = jnp.einsum(_PV, grouped, cast(value, query.dtype)).reshape(*query.shape[:3], value.shape[3])
        lse = jnp.log(total) + jnp.where(top == -np.inf, 0, top)
        return (out, cast(lse / _LN2, np.float32), cast(top / _LN2, np.float32)), None

    return _by_queries(attend, [query], batch * heads * key.shape[2])[0]


def flex_backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    saved: tuple[jax.Array, jax.Array],
    grads: tuple[jax.Array | None, jax.Array | None],
    scale: Any,
    mods: Mods,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[Any, ...]]:
    """The gradients of query, key, value, and of what the function of the scores has captured.

    Args:
        saved: the first two results of `flex_forward`.
        grads: their gradients, None for 0.
    """
    shapes, batch, heads = (key.shape, value.shape), query.shape[0], key.shape[1]
    key, value = _as_batch(key, batch), _as_batch(value, batch)
    given = [jnp.zeros_like(x) if grad is None else cast(grad, x.dtype) for x, grad in zip(saved, grads, strict=True)]
    joint = mods.joint
    assert joint is not None

    def part(numbers: Any, counts: Any, query: Any, out: Any, lse: Any, grad_out: Any, grad_lse: Any) -> Any:
        grad_out, grad_lse = jnp.where(counts[:, None], grad_out, 0), jnp.where(counts, grad_lse, 0)
        raw = _raw_scores(query, key, scale)
        dtype, kept = raw.dtype, mods.mask(numbers, raw.shape)
        changed = jnp.where(kept, cast(mods.score(numbers, raw.shape, raw), dtype), -np.inf)
        # what is saved has single precision
        lse = cast(lse, dtype) * _LN2 if lse.dtype == dtype else jax.nn.logsumexp(changed, 3)
        lse = lse[..., None]
        weights = jnp.where(lse == -np.inf, 0, jnp.exp(changed - lse))
        by_group = _groups(grad_out, heads)
        to_value = jnp.einsum(_TO_K, _groups(cast(weights, query.dtype), heads), by_group)
        to_weights = jnp.einsum(_TO_P, cast(value, dtype), cast(by_group, dtype)).reshape(raw.shape)
        along = jnp.sum(cast(out, dtype) * cast(grad_out, dtype), 3, keepdims=True)
        to_changed = weights * (to_weights - along + cast(grad_lse, dtype)[..., None] / _LN2)
        to_raw, captured = joint(numbers, raw.shape, raw, to_changed)
        to_raw = _groups(cast(jnp.where(kept, to_raw * scale, 0), query.dtype), heads)
        to_key = jnp.einsum(_TO_K, to_raw, _groups(query, heads))
        to_query = jnp.einsum(_PV, to_raw, key).reshape(query.shape)
        return to_query, (to_key, to_value, tuple(captured))

    inputs = [query, *saved, *given]
    to_query, (to_key, to_value, captured) = _by_queries(part, inputs, batch * query.shape[1] * key.shape[2])
    summed = [
        jnp.sum(x, 0, keepdims=True) if shape[0] < batch else x
        for x, shape in zip((to_key, to_value), shapes, strict=True)
    ]
    return to_query, summed[0], summed[1], captured


@kernel("flex_lib::zeros_and_scatter(SymInt[] shape, Tensor[] indices, Tensor vals) -> Tensor")
def zeros_and_scatter(shape, indices, vals):
    """Zeros with values added at their indices. Under `jax.vmap` all elements add to one result, as in torch."""

    @custom_vmap
    def scatter(vals, *indices):
        if not shape:  # what all elements read is no indexed tensor
            return jnp.sum(vals)
        return jnp.zeros(shape, vals.dtype).at[indices].add(vals)

    @scatter.def_vmap
    def of_all(size, is_batched, vals, *indices):
        if not is_batched[0]:
            raise NotImplementedError(
                "the gradient of a tensor that a score_mod indexes twice, as in x[i][j]; index it once, as in x[i, j]"
            )
        pairs = zip(indices, is_batched[1:], strict=True)
        each = [x if batched else jnp.broadcast_to(x, (size, *x.shape)) for x, batched in pairs]
        return scatter(vals, *each), False

    return scatter(vals, *indices)
