"""Sums of what is multiplied by repeated values, as products of matrices or with vectors.

XLA's CPU runs a sum, and what is multiplied in it, operator by operator; where two sums repeat the same value it stores
that at full size. A weighted sum of rows, the gradient of weights that are repeated, or a sum of pairs is a product of
the values that are repeated, as XLA has libraries for. Of more factors, as in gradients of norms, those that are not
repeated are multiplied first, where that serves several sums, or another one would have to be stored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from .rules import within
from .steps import Instruction, Listed, Value

_LEAST = 2**12  # elements that are added: of fewer, no kernel takes long
_LEAST_ROW = 8  # elements: XLA's loops over shorter rows of many matrices are slow
_MOST_FACTORS = 4
_DTYPES = (np.float32, np.float64)


class _Factor(NamedTuple):
    """A value as it was before it was repeated.

    Attributes:
        value: it may have dimensions of one element.
        dims: for each of its dimensions that of the terms; None for those of one element.
    """

    value: Any
    dims: tuple[int | None, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in self.dims if d is not None)

    def array(self, known: dict[int, Any]) -> jax.Array:
        array = known[id(self.value)] if isinstance(self.value, Value) else jnp.asarray(self.value)
        return lax.squeeze(array, [i for i, d in enumerate(self.dims) if d is None])


class _Product(NamedTuple):
    """A product that stands for a sum.

    Attributes:
        factors: two of them.
        batch, contracted: the dimensions of the terms that are in both, and are kept and added up.
        first: the factors of the first one, if it has several parts: they have the shape of the terms, or are
            repeated.
        numbers: by which the second factor is multiplied.
        is_shared: whether one of these parts, times another factor, is used by something else.
    """

    factors: tuple[_Factor, _Factor]
    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    first: tuple[_Factor, ...]
    numbers: tuple[_Factor, ...]
    is_shared: bool

    def group(self) -> frozenset[int]:
        """The same for products that have the same first factor of several parts."""
        return frozenset(id(part.value) for part in self.first)

    def computed(self, step: Instruction, known: dict[int, Any]) -> jax.Array:
        a, b = self.factors
        second = b.array(known)
        for number in self.numbers:
            second = second * number.array(known)
        arrays = [self._multiplied(known) if self.first else a.array(known), second]
        larger = max(range(2), key=lambda i: arrays[i].size)
        behind = self.factors[larger].kept[len(self.batch) :][-len(self.contracted) :]
        if (larger == 0) != (set(behind) == set(self.contracted)):  # XLA would transpose it
            (a, b), arrays = (b, a), arrays[::-1]
        numbers = tuple(tuple(tuple(map(f.kept.index, dims)) for f in (a, b)) for dims in (self.contracted, self.batch))
        product = lax.dot_general(*arrays, numbers, precision=lax.Precision.HIGHEST)
        made = [*self.batch, *(d for f in (a, b) for d in f.kept if d not in (*self.batch, *self.contracted))]
        return lax.reshape(lax.transpose(product, np.argsort(made)), step.made[0].aval.shape)

    def _multiplied(self, known: dict[int, Any]) -> jax.Array:
        kept = self.factors[0].kept
        arrays = [part.array(known) for part in self.first]
        shape = next(a.shape for a, part in zip(arrays, self.first, strict=True) if part.kept == kept)
        product = None
        for array, part in zip(arrays, self.first, strict=True):
            whole = lax.broadcast_in_dim(array, shape, [kept.index(d) for d in part.kept])
            product = whole if product is None else product * whole
        return product  # type: ignore[return-value]  # there are several parts


def with_sums_as_products(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with such sums computed as products; the same object if it has none."""
    if "reduce_sum" not in {e.primitive.name for e in program.jaxpr.eqns}:
        return program
    listed = Listed(program)
    found = {id(s): p for s in listed.steps if (p := _product(s, listed.users)) is not None}
    times = Counter(p.group() for p in found.values())
    kept = {k: p for k, p in found.items() if not p.first or p.is_shared or times[p.group()] > 1}
    left_out = {id(s.taken[0].maker) for s in listed.steps if id(s) in kept}

    def apply(step: Instruction, known: dict[int, Any]) -> Any:
        if id(step) in left_out:
            return ()
        if id(step) not in kept:
            return step.apply(known)
        with within(step.scope):
            return [kept[id(step)].computed(step, known)]

    return listed.applied(apply) if kept else program


def _summed(step: Instruction) -> Value | None:
    """The terms of a sum that is worth a product; None for other steps."""
    terms = step.taken[0] if step.name == "reduce_sum" and step.equation.params.get("out_sharding") is None else None
    if not isinstance(terms, Value) or terms.maker is None or terms.aval.dtype not in _DTYPES:
        return None
    shape = terms.aval.shape
    return terms if all(isinstance(n, int) for n in shape) and math.prod(shape) >= _LEAST else None


def _product(step: Instruction, users: dict[int, list[Any]]) -> _Product | None:
    """The product that a step can be computed as; None for other steps."""
    terms = _summed(step)
    if terms is None or terms.maker is None or terms.maker.name != "mul" or len(users[id(terms)]) > 1:
        return None
    shape = terms.aval.shape
    factors = [_repeated(x, shape) for x in _multiplied_in(terms)]
    if len(factors) > _MOST_FACTORS:
        factors = [_repeated(x, shape) for x in terms.maker.taken]
    contracted = tuple(d for d in step.equation.params["axes"] if shape[d] != 1)
    wide = tuple(d for d, n in enumerate(shape) if n != 1)
    if not contracted or shape[wide[-1]] < _LEAST_ROW:
        return None
    repeated = [f for f in factors if set(contracted) <= set(f.kept) and f.kept != wide]
    if not repeated:
        return None
    second = min(repeated, key=lambda f: math.prod(shape[d] for d in f.kept))
    rest, numbers = ([f for f in factors if f is not second and bool(f.kept) == kept] for kept in (True, False))
    if not rest:
        return None
    first = rest[0] if len(rest) == 1 else _Factor(None, wide)
    batch = tuple(d for d in first.kept if d in second.kept and d not in contracted)
    parts = tuple(sorted(rest, key=lambda f: (f.kept != wide, id(f.value)))) if len(rest) > 1 else ()
    fits = set(contracted) <= set(first.kept) and (not parts or parts[0].kept == wide)
    if not fits or any(f.kept == wide and not _lies_in_order(f.kept, batch, contracted) for f in (first, second)):
        return None
    return _Product((first, second), batch, contracted, parts, tuple(numbers), _has_other_users(terms, users))


def _multiplied_in(x: Any, like: Any = None) -> Iterator[Any]:
    """The factors of a product, and of those among them that are products of the same shape."""
    is_product = isinstance(x, Value) and x.maker is not None and x.maker.name == "mul"
    if is_product and (like is None or x.aval.shape == like.aval.shape):
        for factor in x.maker.taken:
            yield from _multiplied_in(factor, x)
    else:
        yield x


def _has_other_users(x: Value, users: dict[int, list[Any]]) -> bool:
    """True if something else uses one of the products that a product of several factors is made of."""
    inner = [f for f in x.maker.taken if isinstance(f, Value) and f.maker is not None and f.maker.name == "mul"]  # type: ignore[union-attr]  # it is a product
    return any(len(users[id(f)]) > 1 or _has_other_users(f, users) for f in inner)


def _repeated(x: Any, shape: tuple[int, ...]) -> _Factor:
    """A factor of terms of a shape, without its repetition."""
    dims: list[int] = list(range(len(shape)))
    while isinstance(x, Value) and x.maker is not None and x.maker.name == "broadcast_in_dim":
        if len(x.maker.taken) > 1:  # with sizes that are not known
            break
        dims = [dims[d] for d in x.maker.equation.params["broadcast_dimensions"]]
        x = x.maker.taken[0]
    sizes = x.aval.shape if isinstance(x, Value) else np.shape(x)
    places = dims if sizes else []
    return _Factor(x, tuple(None if n == 1 else d for d, n in zip(places, sizes, strict=True)))


def _lies_in_order(kept: tuple[int, ...], batch: tuple[int, ...], contracted: tuple[int, ...]) -> bool:
    """True if a factor need not be transposed: the batch comes first, and what is added up lies together at an end."""
    rest, n = kept[len(batch) :], len(contracted)
    return kept[: len(batch)] == batch and set(contracted) in (set(rest[:n]), set(rest[-n:]))
