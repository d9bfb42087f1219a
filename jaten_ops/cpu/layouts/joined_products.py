"""Sums of products of matrices, as gradients of a weight that is used several times: one product of all terms.

A recurrence that a program writes out has a product for each step, whose few rows are the terms of a matrix as large as
the weight. XLA computes each, and adds the matrices up one after the other: most of the time is their memory's.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core

from .steps import ADDITIONS, Instruction, Listed, Value

_SEVERAL = 3


class _Kind(NamedTuple):
    """The properties that products have in common if they are terms of one.

    Attributes:
        dtype: of the factors and of the result.
        contracted: for each factor the dimension that is added up.
        free: for each the size of the other.
    """

    dtype: np.dtype[Any]
    contracted: tuple[int, int]
    free: tuple[int, int]


class _Term(NamedTuple):
    """A product in a sum.

    Attributes:
        kind: says with which others it can be joined.
        factors: the values that are multiplied.
        steps: what computes it, and nothing else.
    """

    kind: _Kind
    factors: tuple[Value, Value]
    steps: tuple[Instruction, ...]


class _Sum(NamedTuple):
    """A sum of several values, one of whose parts is joined.

    Attributes:
        groups: the products that become one, kind by kind.
        others: the values that are added as they are.
    """

    groups: list[list[_Term]]
    others: list[Any]


def with_joined_products(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with its sums of several products computed as one product; the same object if it has none."""
    names = [e.primitive.name for e in program.jaxpr.eqns]
    if names.count("dot_general") < _SEVERAL or ADDITIONS.isdisjoint(names):
        return program
    listed = Listed(program)
    left_out: set[int] = set()
    sums: dict[int, _Sum] = {}
    for step in reversed(listed.steps):  # the last addition of a sum first
        if step.name in ADDITIONS and id(step) not in left_out and step.made[0].aval.ndim == 2:
            additions, leaves = listed.summands(step)
            if (found := _joined(leaves, listed)) is not None:
                sums[id(step)] = found
                left_out |= {id(s) for s in additions}
                left_out |= {id(s) for group in found.groups for term in group for s in term.steps}

    def apply(step: Instruction, known: dict[int, Any]) -> Sequence[Any]:
        if id(step) in left_out:
            return ()
        return [_added(sums[id(step)], known)] if id(step) in sums else step.apply(known)

    return listed.applied(apply) if sums else program


def _joined(leaves: list[Any], listed: Listed) -> _Sum | None:
    by_kind: defaultdict[_Kind, list[_Term]] = defaultdict(list)
    others = []
    for leaf in leaves:
        term = _term(leaf, listed)
        if term is None:
            others.append(leaf)
        else:
            by_kind[term.kind].append(term)
    groups = [group for group in by_kind.values() if len(group) >= _SEVERAL]
    if not groups:
        return None
    chosen = {id(term.steps[0].made[0]) for group in groups for term in group}
    return _Sum(groups, [leaf for leaf in leaves if id(leaf) not in chosen])


def _term(leaf: Any, listed: Listed) -> _Term | None:
    """A summand as a term, if it is a product that has few terms beside its size."""
    steps, swapped = [], False
    maker = listed.only_maker(leaf)
    while maker is not None and _is_transposition(maker):
        steps.append(maker)
        swapped = not swapped
        maker = listed.only_maker(maker.taken[0])
    if maker is None or maker.name != "dot_general" or not all(isinstance(x, Value) for x in maker.taken):
        return None
    (of_a, of_b), batch = maker.equation.params["dimension_numbers"]
    a, b = maker.taken
    if any(map(len, batch)) or len(of_a) != 1 or a.aval.ndim != 2 or b.aval.ndim != 2:
        return None
    if not a.aval.dtype == b.aval.dtype == maker.made[0].aval.dtype:
        return None
    pairs = [_untransposed(a, of_a[0]), _untransposed(b, of_b[0])][:: -1 if swapped else 1]
    (a, along_a), (b, along_b) = pairs
    terms, free = a.aval.shape[along_a], (a.aval.shape[1 - along_a], b.aval.shape[1 - along_b])
    if terms * sum(free) > free[0] * free[1]:
        return None
    return _Term(_Kind(a.aval.dtype, (along_a, along_b), free), (a, b), (*steps, maker))


def _is_transposition(step: Instruction) -> bool:
    return step.name == "transpose" and step.equation.params["permutation"] == (1, 0)


def _untransposed(value: Value, dim: int) -> tuple[Value, int]:
    """A matrix as it lies in memory, and which of its dimensions that one is."""
    while value.maker is not None and _is_transposition(value.maker) and isinstance(value.maker.taken[0], Value):
        value, dim = value.maker.taken[0], 1 - dim
    return value, dim


def _added(total: _Sum, known: dict[int, Any]) -> jax.Array:
    def parts() -> Iterator[jax.Array]:
        for atom in total.others:
            yield known[id(atom)] if isinstance(atom, Value) else atom
        for group in total.groups:
            of_a, of_b = group[0].kind.contracted
            a, b = ([known[id(term.factors[i])] for term in group] for i in (0, 1))
            yield lax.dot_general(lax.concatenate(a, of_a), lax.concatenate(b, of_b), (((of_a,), (of_b,)), ((), ())))

    return functools.reduce(lax.add, parts())
