"""Sums of what is computed for them, folded: stretches or rows are added element by element, the rest is a product.

XLA's CPU runs a sum, and what is computed in it, operator by operator. What is computed element by element is a loop
of vectors, and where that also adds stretches, only an eighth of the terms is stored. The sum of these is a product
with ones, since XLA would make one kernel of two sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..kernel_base.platform import by_platform, is_open

_PARTS = 8  # stretches: of more, XLA stores what they are made of
_LEAST_STRETCH = 16  # elements of a row: two vectors
_LEAST_ROW = 8  # elements: XLA's loops over shorter rows are slow
_MOST_IN_ORDER = 512  # terms that a product may add one after the other


class _Part(NamedTuple):
    """A sum over neighbouring dimensions, of which one is folded.

    Attributes:
        shape: of the terms, in which dimensions that are folded together are one.
        first, last: the dimensions that are added up.
        axis: the one that is cut into stretches.
        parts: the number of stretches; one for terms that are not folded.
    """

    shape: tuple[int, ...]
    first: int
    last: int
    axis: int
    parts: int

    def computed(self, terms: jax.Array) -> jax.Array:
        terms, n = lax.reshape(terms, self.shape), self.shape[self.axis]
        whole = n // self.parts * self.parts
        total = self._total(_added(self._stretches(terms, whole)))
        if whole == n:
            return total
        rest = _added([lax.slice_in_dim(terms, at, at + 1, axis=self.axis) for at in range(whole, n)])
        return total + lax.reduce_sum(rest, tuple(range(self.first, self.last + 1)))

    def _stretches(self, terms: jax.Array, n: int) -> list[jax.Array]:
        """The parts to add of the first n along the axis: stretches of a row, or each eighth row from one of the first.

        Rows that follow each other lie next to each other. An eighth apart, many lie a power of two apart, where a
        processor's cache has room for eight lines, and several tensors are read at once.
        """
        if self.axis == len(self.shape) - 1:
            length = n // self.parts
            return [lax.slice_in_dim(terms, at, at + length, axis=self.axis) for at in range(0, n, length)]
        return [lax.slice_in_dim(terms, at, n, self.parts, self.axis) for at in range(self.parts)]

    def _total(self, terms: jax.Array) -> jax.Array:
        """The sum of what has been folded, as products with ones."""
        dims = terms.shape
        parts = dims[: self.first], dims[self.first : self.last + 1], dims[self.last + 1 :]
        before, count, behind = map(math.prod, parts)
        # rows of the dimensions as they are: XLA would compute the place of each element in others
        row = _row(count if parts[2] else dims[self.last])
        rows = lax.reshape(terms, (before * (count // row), row, behind))
        if row == 1:
            totals = rows
        elif behind == 1:
            totals = lax.dot(rows[..., 0], jnp.ones(row, rows.dtype), precision=lax.Precision.HIGHEST)
        else:
            ones, numbers = jnp.ones(rows.shape[:2], rows.dtype), (((1,), (1,)), ((0,), (0,)))
            totals = lax.dot_general(ones, rows, numbers, precision=lax.Precision.HIGHEST)
        if count > row:
            totals = lax.reduce_sum(lax.reshape(totals, (before, count // row, behind)), (1,))
        return lax.reshape(totals, (*parts[0], *parts[2]))


class Fold(NamedTuple):
    """A sum that is folded.

    Attributes:
        part: over neighbouring dimensions.
        others: the dimensions of what that leaves that are added up afterwards.
    """

    part: _Part
    others: tuple[int, ...]

    def computed(self, terms: jax.Array) -> jax.Array:
        totals = self.part.computed(terms)
        return lax.reduce_sum(totals, self.others) if self.others else totals


def _added(terms: Sequence[jax.Array]) -> jax.Array:
    return sum(terms[1:], terms[0])


def fold_of(shape: tuple[int, ...], axes: tuple[int, ...], in_stretches: bool = True) -> Fold | None:
    """The fold of terms of a shape over some axes; None if that is no gain.

    Not in stretches, the terms are stored as they are, and all of the sum is a product.
    """
    if not axes:
        return None
    block = max(_neighbours(sorted(axes)), key=lambda b: (b[-1] == len(shape) - 1, math.prod(shape[d] for d in b)))
    part = _part_of(shape, block[0], block[-1])
    if part is not None and not in_stretches:
        part = part._replace(parts=1)
    others = tuple(a if a < block[0] else a - len(block) for a in axes if a not in block)
    return None if part is None else Fold(part, others)


def folded_sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`sum(x, axes, keepdims=True)` of what is computed for it; folded on a CPU."""
    fold = None if is_open(x) else fold_of(x.shape, axes)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axes, keepdims=True)

    def folded(x: jax.Array) -> jax.Array:
        return total(x) if fold is None else lax.expand_dims(fold.computed(x), axes)

    return by_platform(x, cpu=folded, default=total)


def _neighbours(dims: list[int]) -> list[list[int]]:
    """Runs of dimensions that follow each other."""
    runs: list[list[int]] = []
    for d in dims:
        if not runs or runs[-1][-1] != d - 1:
            runs.append([])
        runs[-1].append(d)
    return runs


def _part_of(shape: tuple[int, ...], first: int, last: int) -> _Part | None:
    """The fold of terms over the dimensions from the first to the last; None if that is no gain."""
    if last < len(shape) - 1:
        axis = max(range(first, last + 1), key=shape.__getitem__)
        n = shape[axis]
        return _Part(shape, first, last, axis, _parts(n)) if n > 1 and shape[-1] >= _LEAST_STRETCH else None
    row, n = shape[last], math.prod(shape[first:])
    if row < _PARTS * _LEAST_STRETCH <= n:
        shape, last, row = (*shape[:first], n), first, n
    if row >= _LEAST_STRETCH * 4:
        return _Part(shape, first, last, last, _parts(row) if row >= _PARTS * _LEAST_STRETCH else 4)
    return _Part(shape, first, last, last, 1) if row >= _LEAST_ROW else None


def _row(count: int) -> int:
    """The number of terms, of so many, that one product adds: a product has less digits than a sum of products."""
    least = -(-count // _MOST_IN_ORDER)
    return next((count // n for n in range(least, 2 * least + _PARTS) if count % n == 0), count)


def _parts(n: int) -> int:
    """The number of stretches to cut so many elements into: with nothing left over, if that can be."""
    return n if n < _PARTS else next((p for p in range(_PARTS, 3, -1) if n % p == 0), _PARTS)
