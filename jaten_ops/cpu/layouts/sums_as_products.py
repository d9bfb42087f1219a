"""Sums of what is multiplied by repeated values, as products of matrices or with vectors.

XLA's CPU runs a sum, and what is multiplied in it, operator by operator; where two sums repeat the same value it stores
that at full size. A weighted sum of rows, the gradient of weights that are repeated, or a sum of pairs is a product of
the values that are repeated, as XLA has libraries for.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core

from .rules import within
from .steps import Instruction, Listed, Value

_LEAST = 2**12  # elements that are added: of fewer, no kernel takes long
_LEAST_ROW = 8  # elements: XLA's loops over shorter rows of many matrices are slow
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
        array = known[id(self.value)] if isinstance(self.value, Value) else self.value
        return lax.squeeze(array, [i for i, d in enumerate(self.dims) if d is None])


class _Product(NamedTuple):
    """A product that stands for a sum, with the dimensions of the terms that are in both factors, and in one."""

    factors: tuple[_Factor, _Factor]
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    def computed(self, step: Instruction, known: dict[int, Any]) -> jax.Array:
        a, b = self.factors
        numbers = tuple(tuple(tuple(map(f.kept.index, dims)) for f in (a, b)) for dims in (self.contracted, self.batch))
        product = lax.dot_general(a.array(known), b.array(known), numbers, precision=lax.Precision.HIGHEST)
        made = [*self.batch, *(d for f in (a, b) for d in f.kept if d not in (*self.batch, *self.contracted))]
        return lax.reshape(lax.transpose(product, np.argsort(made)), step.made[0].aval.shape)


def with_sums_as_products(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with such sums computed as products; the same object if it has none."""
    if not {"reduce_sum", "mul"} <= {e.primitive.name for e in program.jaxpr.eqns}:
        return program
    listed = Listed(program)
    products = {id(s): found for s in listed.steps if (found := _product(s, listed.users)) is not None}
    left_out = {id(s.taken[0].maker) for s in listed.steps if id(s) in products}

    def apply(step: Instruction, known: dict[int, Any]) -> Any:
        if id(step) in left_out:
            return ()
        if id(step) not in products:
            return step.apply(known)
        with within(step.scope):
            return [products[id(step)].computed(step, known)]

    return listed.applied(apply) if products else program


def _product(step: Instruction, users: dict[int, list[Any]]) -> _Product | None:
    """The product that a step can be computed as; None for other steps."""
    terms = step.taken[0] if step.name == "reduce_sum" and step.equation.params.get("out_sharding") is None else None
    if not isinstance(terms, Value) or terms.maker is None or terms.maker.name != "mul" or len(users[id(terms)]) > 1:
        return None
    shape = terms.aval.shape
    if terms.aval.dtype not in _DTYPES or not all(isinstance(n, int) for n in shape) or math.prod(shape) < _LEAST:
        return None
    a, b = (_repeated(x, shape) for x in terms.maker.taken)
    contracted = tuple(d for d in step.equation.params["axes"] if shape[d] != 1)
    wide = {d for d, n in enumerate(shape) if n != 1}
    shared = set(a.kept) & set(b.kept)
    if not contracted or not set(contracted) <= shared or shared == wide or shape[max(wide)] < _LEAST_ROW:
        return None
    batch = tuple(sorted(shared - set(contracted)))
    if any(set(f.kept) == wide and not _lies_in_order(f.kept, batch, contracted) for f in (a, b)):
        return None
    free = [min(set(f.kept) - shared, default=len(shape)) for f in (a, b)]
    return _Product((a, b) if free[0] <= free[1] else (b, a), batch, contracted)


def _repeated(x: Any, shape: tuple[int, ...]) -> _Factor:
    """A factor of terms of a shape, without its repetition."""
    dims: list[int] = list(range(len(shape)))
    while isinstance(x, Value) and x.maker is not None and x.maker.name == "broadcast_in_dim":
        if len(x.maker.taken) > 1:  # with sizes that are not known
            break
        dims = [dims[d] for d in x.maker.equation.params["broadcast_dimensions"]]
        x = x.maker.taken[0]
    sizes = np.shape(x) if not isinstance(x, Value) else x.aval.shape
    if not sizes:
        dims = []
    return _Factor(x, tuple(None if n == 1 else d for d, n in zip(dims, sizes, strict=True)))


def _lies_in_order(kept: tuple[int, ...], batch: tuple[int, ...], contracted: tuple[int, ...]) -> bool:
    """True if a factor need not be transposed: the batch comes first, and what is added up lies together at an end."""
    rest, n = kept[len(batch) :], len(contracted)
    return kept[: len(batch)] == batch and set(contracted) in (set(rest[:n]), set(rest[-n:]))
