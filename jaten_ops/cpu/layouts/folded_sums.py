"""Sums of what is computed for them, folded (`cpu/folding.py`): losses, norms, their gradients."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from jax.extend import core

from jaten_ops.cpu.folding import Fold, fold_of
from jaten_ops.xla.equations import ELEMENTWISE

from .rules import within
from .steps import Instruction, Listed, Value, bodies_of, branch_of

_LEAST = 2**12  # elements that are added: of fewer, no kernel takes long
_MOST_IN_ROWS = 2**21  # elements that are added along rows: of more, reading the stretches at once takes longer
_FEW = 32  # rows
_DTYPES = (np.float32, np.float64)
_LIGHT_NAMES = """
abs add add_any and bitcast_convert_type clamp convert_element_type copy eq ge gt integer_pow is_finite le lt max min
mul ne neg not or select_n shift_right_logical sign square stop_gradient sub xor
"""
_LIGHT = frozenset(_LIGHT_NAMES.split())
_KNOWN = _LIGHT | {"ceil", "div", "erf", "exp2", "floor", "logistic", "round", "rsqrt", "sqrt", "tanh"}
"""Functions for which the library for sums has no better loops than XLA.

Not exponentials: a program may compute one twice, in `softmax` and in `log_softmax`, and XLA shares what is the same.
"""
_BITS = "bitcast_convert_type"
"""A function that the library for sums does not take, as of the divisors of `division.quotient`.

XLA would store what is made of that, and then each operand of the library's part of the terms: also where terms are
shared, or too many to be read in stretches, storing the terms alone takes less time.
"""


def with_folded_sums(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with such sums folded; the same object if it has none."""
    if not _has_sum(program.jaxpr):
        return program
    listed = Listed(program)
    folds = {id(s): found for s in listed.steps if (found := _fold(s, listed.users)) is not None}

    def apply(step: Instruction, known: dict[int, Any]) -> Any:
        if id(step) not in folds:
            return step.apply(known)
        with within(step.scope):
            return [folds[id(step)].computed(known[id(step.taken[0])])]

    return listed.applied(apply) if folds else program


@functools.lru_cache(maxsize=1024)
def _has_sum(jaxpr: Any) -> bool:
    return any(e.primitive.name == "reduce_sum" or any(map(_has_sum, bodies_of(e))) for e in jaxpr.eqns) or any(
        _has_sum(branch.jaxpr) for e in jaxpr.eqns if (branch := branch_of(e)) is not None
    )


def _fold(step: Instruction, users: dict[int, list[Any]]) -> Fold | None:
    """The fold of a step; None for other steps."""
    terms = step.taken[0] if step.name == "reduce_sum" and step.equation.params.get("out_sharding") is None else None
    if not isinstance(terms, Value) or terms.aval.dtype not in _DTYPES:
        return None
    shape = terms.aval.shape
    if not all(isinstance(n, int) for n in shape) or math.prod(shape) < _LEAST:
        return None
    axes = step.equation.params["axes"]
    if terms.maker is None or terms.maker.name not in ELEMENTWISE:
        return fold_of(shape, axes) if _are_few(shape, axes) else None
    alone, shared = _functions(terms, users)
    has_bits = _BITS in alone | shared
    are_many = len(shape) - 1 in axes and math.prod(shape) > _MOST_IN_ROWS
    is_light = shared <= _LIGHT and not _is_square(terms.maker)
    if alone | shared <= _KNOWN and (has_bits or is_light) and not are_many:
        return fold_of(shape, axes)
    return fold_of(shape, axes, in_stretches=False) if has_bits else None


def _are_few(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """True if of what is stored so few rows are added that the library for sums is slow."""
    return len(shape) - 1 not in axes and math.prod(shape[d] for d in axes) <= _FEW


def _functions(terms: Value, users: dict[int, list[Any]]) -> tuple[set[str], set[str]]:
    """The functions that terms are computed by, element by element: of what they alone take, and of what others take.

    The latter would be stored for the others, or computed once more.
    """
    alone: set[str] = set()
    shared: set[str] = set()
    left, found = [(terms, len(users[id(terms)]) > 1)], {}
    while left:
        value, is_shared = left.pop()
        step = value.maker
        if step is None or step.name not in ELEMENTWISE:
            continue
        (shared if is_shared else alone).add(step.name)
        for v in step.values():
            is_taken = is_shared or len(set(map(id, users[id(v)]))) > 1
            if v.aval.shape == terms.aval.shape and found.get(id(v)) not in (True, is_taken):
                found[id(v)] = is_taken
                left.append((v, is_taken))
    return alone, shared


def _is_square(step: Instruction) -> bool:
    """True if a step squares what is stored, which the library for sums does as fast as it reads."""
    if step.name not in ("integer_pow", "mul", "square") or len({id(x) for x in step.taken}) > 1:
        return False
    factor = step.taken[0]
    return not isinstance(factor, Value) or factor.maker is None or factor.maker.name not in ELEMENTWISE
