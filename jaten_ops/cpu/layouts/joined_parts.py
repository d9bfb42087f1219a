"""Sums of arrays that are padded with zeros, as gradients of parts of one tensor: the parts side by side.

A program that takes a tensor apart, such as `x[:, t]` in a loop over time, has a gradient for each part, padded to the
whole tensor. XLA makes one loop of their sum, which asks for each element whether it is in the first part, in the
second and so on: sums of 16 parts took 5 of the 12 ms of a training step of the benchmarks' mamba-mini (an AMD EPYC).

Graphs of `torch.compile` have such sums no more when they come here (`backend/passes/concat_gradients.py`, for all
platforms); steps of `compile_step` and functions of JAX have them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core

from .steps import ADDITIONS, Instruction, Listed, Value, bodies_of

_FEWEST = 3  # parts: with fewer, the sum is as fast


class _Part(NamedTuple):
    """A summand that is zero but for the elements from `start` to `stop` along a dimension.

    Attributes:
        values: what these are, a value or a literal.
        step: pads them, and is taken by the sum alone.
    """

    dim: int
    start: int
    stop: int
    values: Any
    step: Instruction


class _Sum(NamedTuple):
    """A sum: the parts of each dimension that has several, and what is added as it is."""

    parts: dict[int, list[_Part]]
    others: list[Any]


def with_joined_parts(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with its sums of several padded parts put side by side; the same object if it has none."""
    if sum(map(_pads, program.jaxpr.eqns)) < _FEWEST:
        return program
    listed = Listed(program)
    left_out: set[int] = set()
    sums: dict[int, _Sum] = {}
    for step in reversed(listed.steps):  # the last addition of a sum first
        if step.name in ADDITIONS and id(step) not in left_out:
            additions, leaves = listed.summands(step)
            if (found := _joined(leaves[::-1], listed)) is not None:
                sums[id(step)] = found
                left_out |= {id(s) for s in additions}
                left_out |= {id(part.step) for parts in found.parts.values() for part in parts}

    def apply(step: Instruction, known: dict[int, Any]) -> Sequence[Any]:
        if id(step) in left_out:
            return ()
        return [_added(sums[id(step)], known, step.made[0].aval)] if id(step) in sums else step.apply(known)

    return listed.applied(apply) if sums else program


def _pads(equation: Any) -> bool:
    return equation.primitive.name == "pad" or any(map(_has_pads, bodies_of(equation)))


@functools.lru_cache(maxsize=1024)
def _has_pads(jaxpr: Any) -> bool:
    return any(map(_pads, jaxpr.eqns))


def _joined(leaves: list[Any], listed: Listed) -> _Sum | None:
    parts = {id(leaf): part for leaf in leaves if (part := _part(leaf, listed)) is not None}
    counts = Counter(part.dim for part in parts.values())
    of_dims: dict[int, list[_Part]] = {dim: [] for dim in sorted(counts) if counts[dim] >= _FEWEST}
    others = []
    for leaf in leaves:
        part = parts.get(id(leaf))
        (others if part is None or part.dim not in of_dims else of_dims[part.dim]).append(part or leaf)
    return _Sum(of_dims, [x.step.made[0] if isinstance(x, _Part) else x for x in others]) if of_dims else None


def _part(leaf: Any, listed: Listed) -> _Part | None:
    maker = listed.only_maker(leaf)
    if maker is None or maker.name != "pad" or leaf.aval.sharding.mesh.size > 1:
        return None
    values, filled = maker.taken
    config = maker.equation.params["padding_config"]
    sizes = *leaf.aval.shape, *(n for each in config for n in each)
    if not _is_zero(filled) or not all(isinstance(n, int | np.integer) for n in sizes):  # none of them is open
        return None
    padded = [d for d, (low, high, _) in enumerate(config) if low or high]
    if len(padded) != 1 or any(inner or min(low, high) < 0 for low, high, inner in config):
        return None
    low, high, _ = config[padded[0]]
    size = leaf.aval.shape[padded[0]]
    return _Part(padded[0], int(low), size - int(high), values, maker) if low + high < size else None


def _is_zero(atom: Any) -> bool:
    if isinstance(atom, Value):
        maker = atom.maker
        return maker is not None and maker.name == "convert_element_type" and _is_zero(maker.taken[0])
    return bool(np.all(np.asarray(atom) == 0))


def _added(total: _Sum, known: dict[int, Any], aval: Any) -> jax.Array:
    def read(atom: Any) -> Any:
        return known[id(atom)] if isinstance(atom, Value) else atom

    arrays = [read(atom) for atom in total.others]
    for dim, parts in total.parts.items():
        found: dict[tuple[int, int], jax.Array] = {}
        for part in parts:
            place, values = (part.start, part.stop), read(part.values)
            found[place] = lax.add(found[place], values) if place in found else values
        arrays += [_side_by_side(layer, dim, aval) for layer in _layers(found)]
    return functools.reduce(lax.add, arrays)


def _layers(parts: dict[tuple[int, int], jax.Array]) -> list[list[tuple[int, int, jax.Array]]]:
    """Parts by their places, in as many layers as lie over each other."""
    layers: list[list[tuple[int, int, jax.Array]]] = []
    for start, stop in sorted(parts):
        free = next((layer for layer in layers if layer[-1][1] <= start), None)
        if free is None:
            layers.append(free := [])
        free.append((start, stop, parts[start, stop]))
    return layers


def _side_by_side(layer: list[tuple[int, int, jax.Array]], dim: int, aval: Any) -> jax.Array:
    """Parts in zeros."""
    pieces, end, size = [], 0, aval.shape[dim]
    for start, stop, values in [*layer, (size, size, None)]:
        if end < start:
            pieces.append(lax.full((*aval.shape[:dim], start - end, *aval.shape[dim + 1 :]), 0, aval.dtype))
        if values is not None:
            pieces.append(values)
        end = stop
    return lax.concatenate(pieces, dim)
