"""Attention in tiles: some heads at a time, of short sequences of several batches, and of long ones some queries.

XLA's CPU stores the scores of all pairs, and goes over them several times: for their maximum, their exponentials, the
sums of these and the product with the values. Of a tile they stay in the processor's cache. Where queries see only the
keys before them, a tile of queries leaves out the keys behind its last one, half of all products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

from ..kernel_base.platform import is_open
from ..xla import cpu_features

_LEAST = 2**20  # bytes of scores that do not stay in a cache anyway
_LEAST_SHORT = 2**18  # bytes of the scores of a head in a short dtype, of which small products take long to begin
_FEW = 16  # queries of each head; with fewer, scores are small beside the keys
_SCORES = 2**19  # bytes of the scores of a tile
_ROWS = 128  # queries of a tile that sees the keys before it: of fewer, products are slower
_MOST = 8  # tiles of the queries of a head: each is compiled
_WIDE = 256  # columns of a transposed factor: products with as many take long, and before that with multiples of 64

Fn = Callable[..., tuple[jax.Array, ...]]


def pay(query: jax.Array, key: jax.Array) -> bool:
    """True if attention takes less time in tiles. Both are (batch, heads, length, size)."""
    if is_open(query) or is_open(key) or query.shape[2] < _FEW or not key.size:
        return False
    of_head = _bytes(query, query.shape[2] * key.shape[2])
    is_large = query.dtype.itemsize >= 4 or of_head >= _LEAST_SHORT
    return is_large and query.shape[0] * query.shape[1] * of_head >= _LEAST


def turn_gradients(key: jax.Array) -> bool:
    """True if the gradients of key and value take less time transposed, and are transposed afterwards."""
    size = key.shape[2]
    return size >= _WIDE or (size >= _WIDE // 2 and size % 64 == 0)


def _bytes(like: jax.Array, elements: int) -> int:
    return max(like.dtype.itemsize, 4) * elements  # scores of short dtypes are float32


def over_heads(fn: Fn, query: jax.Array, key: jax.Array, others: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """`fn(query, key, *others)`, of some heads of one batch at a time, or of all heads of some batches.

    Args:
        fn: its results are arrays (batches, heads of the query or of the key, ...).
        query: (batch, heads, length, size).
        key: the same with as many heads or fewer, each for a group of the query's.
        others: arrays with the batch and the heads of one of them, or 1; None stays None.
    """
    batch, heads = key.shape[:2]
    group = query.shape[1] // heads
    of_batch, of_heads = _tile(batch, heads, _bytes(query, group * query.shape[2] * key.shape[2]))
    steps = heads // of_heads

    def part(x: Any, at: jax.Array) -> Any:
        if x is None or x.shape[:2] == (1, 1):
            return x
        taken = 1 if x.shape[1] == 1 else of_heads * (group if x.shape[1] == query.shape[1] else 1)
        zero = np.zeros((), at.dtype)
        # of one head none is to be found, and of one batch neither
        start = zero if x.shape[0] == 1 else lax.div(at, at.dtype.type(steps)) * at.dtype.type(of_batch)
        first = zero if x.shape[1] == 1 else lax.rem(at, at.dtype.type(steps)) * at.dtype.type(taken)
        sizes = 1 if x.shape[0] == 1 else of_batch, taken, *x.shape[2:]
        return lax.dynamic_slice(x, (start, first, *[zero] * (x.ndim - 2)), sizes)

    def tile(at: jax.Array) -> tuple[jax.Array, ...]:
        return fn(*(part(x, at) for x in (query, key, *others)))

    results = lax.map(tile, lax.iota(np.dtype("int32"), batch // of_batch * steps))
    return tuple(r.reshape(batch, steps * r.shape[2], *r.shape[3:]) for r in results)


def _tile(batch: int, heads: int, bytes_of_head: int) -> tuple[int, int]:
    """The batches and the heads of a tile: as many as give each core one, or as fit into its cache."""
    most = max(cpu_features.cores(), _SCORES // bytes_of_head)
    of_heads = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= most)
    if of_heads < heads:
        return 1, of_heads
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n * heads <= most), heads


def stretches(query: jax.Array, key: jax.Array, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Stretches of the queries of a tile: the first one, the end, and how many keys these see."""
    batch, heads, length, _ = query.shape
    size = key.shape[2]
    fit = max(1, _SCORES // _bytes(query, batch * heads * size))
    rows = min(_ROWS, fit) if causal else fit
    rows = -(-max(rows, length // _MOST, 1) // _FEW) * _FEW
    for first in range(0, length, rows):
        end = min(first + rows, length)
        yield first, end, min(end, size) if causal else size
