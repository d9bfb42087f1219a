"""Rows that are gathered by one index and scattered by another, as the messages of a graph network: in stretches.

XLA's CPU stores all that is gathered, and what is computed of it, before it scatters that. A loop over stretches of the
rows finds them in the processor's cache, and takes half of the time; they are scattered in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend import core

from jaten_ops.xla.equations import ELEMENTWISE, rebind

from .steps import Instruction, Listed, Value

_SCATTERS = frozenset({"scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"})
_LEAST = 2**20  # bytes of rows that do not stay in a cache
_STRETCH = 2**16  # bytes of the rows of a stretch


def in_stretches(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program in which such rows are computed in stretches; the same object if there are none."""
    if not any(e.primitive.name in _SCATTERS and _bytes(e.invars[2].aval) >= _LEAST for e in program.jaxpr.eqns):
        return program
    listed = Listed(program)
    return listed.looped(lambda at: _loop_at(listed.steps, at, listed.users))


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


class _Loop:
    """A scatter of rows, and the steps that make its updates of what is gathered.

    Attributes:
        last: the scatter.
        steps: those before, in order, each with which of its operands it takes by rows.
        sliced: values of as many rows, of which a stretch takes a part.
    """

    def __init__(self, scatter: Instruction, steps: list[tuple[Instruction, list[bool]]], sliced: list[Value]) -> None:
        self.last, self.steps, self.sliced = scatter, steps, sliced

    def run(self, known: dict[int, Any]) -> Any:
        """The scatter's result, from the values that are known by their `id`."""
        target, index, updates = self.last.taken
        count = updates.aval.shape[0]
        length = max(1, _STRETCH * count // _bytes(updates.aval))

        def advance(target: Any, parts: Sequence[Any]) -> tuple[Any, None]:
            rows = dict(zip(map(id, self.sliced), parts, strict=True))
            for step, takes in self.steps:
                taken = [
                    (rows if by_rows else known)[id(a)] if isinstance(a, Value) else a
                    for a, by_rows in zip(step.taken, takes, strict=True)
                ]
                rows[id(step.made[0])] = _of_rows(step, taken, len(parts[0]))
            return rebind(self.last.equation, [target, rows[id(index)], rows[id(updates)]])[0], None

        arrays = [known[id(v)] for v in self.sliced]
        whole = count // length * length
        stacked = [lax.reshape(a[:whole], (count // length, length, *a.shape[1:])) for a in arrays]
        result, _ = lax.scan(advance, known[id(target)] if isinstance(target, Value) else target, stacked)
        return result if whole == count else advance(result, [a[whole:] for a in arrays])[0]


def _loop_at(steps: Sequence[Instruction], at: int, users: dict[int, list[Any]]) -> _Loop | None:
    """The loop that a step may be the scatter of."""
    scatter = steps[at]
    if not _scatters_rows(scatter):
        return None
    _, index, updates = scatter.taken
    count, inner, gathered = updates.aval.shape[0], {id(scatter)}, 0
    by_rows, whole, found = {id(index): index, id(updates): updates}, set[int](), list[tuple[Instruction, list[bool]]]()
    for step in reversed(steps[:at]):
        value = step.made[0] if len(step.made) == 1 else Value(None)
        if id(value) not in by_rows or id(value) in whole or not all(id(u) in inner for u in users[id(value)]):
            continue
        takes = _takes_rows(step, count)
        if takes is None or not all(isinstance(a, Value) for a in itertools.compress(step.taken, takes)):
            continue
        if step.name == "gather":
            gathered += _bytes(value.aval)
        inner.add(id(step))
        found.append((step, takes))
        del by_rows[id(value)]
        for operand, is_by_rows in zip(step.taken, takes, strict=True):
            if is_by_rows:
                by_rows[id(operand)] = operand
            elif isinstance(operand, Value):
                whole.add(id(operand))
    pays = 2 * gathered >= _bytes(updates.aval)
    return _Loop(scatter, found[::-1], list(by_rows.values())) if pays else None


def _scatters_rows(step: Instruction) -> bool:
    """True for a scatter of many rows, each to a place in the first dimension."""
    if step.name not in _SCATTERS:
        return False
    (_, index, updates), numbers = step.taken, step.equation.params["dimension_numbers"]
    return (
        isinstance(index, Value)
        and isinstance(updates, Value)
        and _bytes(updates.aval) >= _LEAST
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims
        and numbers.update_window_dims == tuple(range(1, updates.aval.ndim))
        and index.aval.shape == (updates.aval.shape[0], 1)
        and updates.aval.shape[0] >= 2 * _bytes(updates.aval) // _STRETCH
    )


def _takes_rows(step: Instruction, count: int) -> list[bool] | None:
    """The operands of which a step needs some rows to make the same rows; None if it also needs other rows."""
    (made,), params = step.made, step.equation.params
    shapes: list[tuple[int, ...]] = [getattr(getattr(a, "aval", a), "shape", ()) for a in step.taken]
    if made.aval.shape[:1] != (count,):
        return None
    if step.name in ELEMENTWISE:  # operands are numbers, or may be repeated along some dimensions
        return [s[:1] == (count,) for s in shapes]
    if step.name == "broadcast_in_dim" and len(step.taken) == 1:
        return [params["broadcast_dimensions"][:1] == (0,) and shapes[0][0] == count]
    if step.name == "gather":
        numbers = params["dimension_numbers"]
        plain = len(shapes[1]) == 2 and 0 not in numbers.offset_dims and not numbers.operand_batching_dims
        return [False, True] if plain else None
    # of more than one row none is squeezed
    moves = step.name == "squeeze" or (step.name == "reshape" and params["dimensions"] is None)
    return [True] if moves and shapes[0][:1] == (count,) else None


def _of_rows(step: Instruction, taken: Sequence[Any], count: int) -> Any:
    """The results of a step for `count` rows."""
    changed = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}.get(step.name)
    sizes = {} if changed is None else {changed: (count, *step.equation.params[changed][1:])}
    return rebind(step.equation, taken, **sizes)[0]
