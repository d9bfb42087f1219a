"""Long chains of cheap operations of which each step is used, as a recurrence that a program writes out: stored.

XLA's CPU computes what is cheap anew wherever it is used. Of a chain whose every step is a result as well it computes
each from the beginning, and takes time, and code, by the square of the length. Here some of the steps are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from jaten_ops.kernel_base.materialize import stored
from jaten_ops.kernel_base.promotion import is_float
from jaten_ops.xla.equations import ELEMENTWISE

from .rules import SIMPLE
from .steps import Instruction, Listed

# what XLA computes once, if it is used several times
_EXPENSIVE = ELEMENTWISE - frozenset(SIMPLE.split())
_MOVES = frozenset({"broadcast_in_dim", "concatenate", "pad", "reshape", "rev", "slice", "squeeze", "transpose"})
_LONGEST = 16  # operations, one after the other


def with_chains_stored(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with steps of its long chains stored; the same object if it has none."""
    if len(program.jaxpr.eqns) < _LONGEST:
        return program
    listed = Listed(program)
    kept = _to_store(listed.steps, listed.users)

    def apply(step: Instruction, known: dict[int, Any]) -> Sequence[Any]:
        found = step.apply(known)
        return [stored(lambda a: a, found[0])] if id(step) in kept else found

    return listed.applied(apply) if kept else program


def _to_store(steps: list[Instruction], users: dict[int, list[Any]]) -> set[int]:
    """The steps, by their `id`, whose results are stored."""
    kept: set[int] = set()
    lengths: dict[int, int] = {}  # of the chain that each value is computed anew by
    for step in steps:
        is_move = step.name in _MOVES
        if not is_move and step.name not in ELEMENTWISE:
            continue
        (made,), several = step.made, len(users.get(id(step.made[0]), ())) > 1
        if several and step.name in _EXPENSIVE:
            continue
        length = max((lengths.get(id(v), 0) for v in step.values()), default=0) + (not is_move)
        if several and not is_move and length >= _LONGEST and is_float(made.aval.dtype) and made.aval.size:
            kept.add(id(step))
        else:
            lengths[id(made)] = length
    return kept
