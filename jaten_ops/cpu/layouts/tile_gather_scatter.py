"""Rows that are gathered by one index and scattered by another, as the messages of a graph network: in stretches.

XLA's CPU stores all that is gathered, and what is computed of it, before it scatters that. A loop over stretches of the
rows finds them in the processor's cache, and takes half of the time; they are scattered in the same order. What else
is scattered of the same rows, or is a sum over each of them, as the gradient of attention, is made in the same loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from jaten_ops.cpu.folding import fold_of
from jaten_ops.xla.equations import ELEMENTWISE, rebind

from .steps import Instruction, Listed, Value

_SCATTERS = frozenset({"scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"})
_REDUCTIONS = frozenset(f"reduce_{name}" for name in ("and", "max", "min", "or", "prod", "sum"))
_FLOATS = (np.float32, np.float64)
_LEAST = 2**19  # bytes of rows that do not stay in a cache
_STRETCH = 2**16  # bytes of the rows of a stretch


def in_stretches(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program in which such rows are computed in stretches; the same object if there are none."""
    if not any(e.primitive.name in _SCATTERS and _bytes(e.invars[2].aval) >= _LEAST for e in program.jaxpr.eqns):
        return program
    listed, inner = Listed(program), dict[int, _Group]()
    places = {id(step): i for i, step in enumerate(listed.steps)}

    def loop_at(at: int) -> _Loop | None:
        scatter = listed.steps[at]
        if id(scatter) in inner or not _scatters_rows(scatter) or not _is_large(scatter):
            return None
        groups = (_Group(listed, places, scatter, shares) for shares in (True, False))
        group = next((g for g in groups if g.pays() and inner.keys().isdisjoint(g.takes) and g.is_free(inner)), None)
        if group is None:
            return None
        inner.update(dict.fromkeys(group.takes, group))
        return _Loop(group)

    return listed.looped(loop_at)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def _is_of_rows(value: Value) -> bool:
    """True for a value that a step makes row by row, as a scatter does not."""
    return value.maker is not None and value.maker.name not in _SCATTERS


class _Group:
    """A scatter of rows, the steps that make its updates of what is gathered, and what else is made of these rows.

    Args:
        listed: the program.
        places: those of its steps, by their `id`.
        scatter: the scatter.
        shares: whether values may be taken by others: other scatters, and reductions of each row.

    Attributes:
        takes: for each step, by its `id`, which of its operands it takes by rows.
        steps: these, in order.
    """

    def __init__(self, listed: Listed, places: dict[int, int], scatter: Instruction, shares: bool) -> None:
        self._users, self._scatter, self._all = listed.users, scatter, listed.steps
        self.count, self._large = scatter.taken[2].aval.shape[0], _bytes(scatter.taken[2].aval) // 2
        self.takes: dict[int, list[bool]] = {}
        self.steps = sorted(self._reached(shares), key=lambda step: places[id(step)])
        self._leave(shares)
        self._keep_connected()

    def _reached(self, shares: bool) -> list[Instruction]:
        """Takes all steps that rows lead to."""
        found, left = list[Instruction](), [self._scatter]
        while left:
            step = left.pop()
            takes = None if id(step) in self.takes else _takes_rows(step, self.count)
            if takes is None:
                continue
            self.takes[id(step)] = takes
            found.append(step)
            made = [v for v, by_rows in zip(step.taken, takes, strict=True) if by_rows and _is_of_rows(v)]
            left += [v.maker for v in made]
            if shares:
                rows = [*made, *filter(_is_of_rows, step.made)]
                left += [u for v in rows if _bytes(v.aval) >= self._large for u in self._users[id(v)] if u is not None]
        return found

    def _leave(self, shares: bool) -> None:
        """Leaves steps whose results are needed elsewhere as a whole."""
        count = 0
        while count != len(self.takes):
            count = len(self.takes)
            for step in reversed(self.steps):
                is_result = step is self._scatter or (shares and (step.name in _SCATTERS or self._is_sum(step)))
                if id(step) in self.takes and not is_result and self._is_needed_whole(step):
                    del self.takes[id(step)]
        self.steps = [s for s in self.steps if id(s) in self.takes]

    def _is_needed_whole(self, step: Instruction) -> bool:
        users = self._users.get(id(step.made[0]), [])
        return any(u is None or id(u) not in self.takes for u in users) or any(
            a is step.made[0] and not by_rows
            for u in users
            for a, by_rows in zip(u.taken, self.takes[id(u)], strict=True)
        )

    def _is_sum(self, step: Instruction) -> bool:
        """True for a reduction of each row."""
        return step.name in _REDUCTIONS and _bytes(step.taken[0].aval) >= self._large

    def _keep_connected(self) -> None:
        """Keeps the steps before the scatter, and those before another result that has large rows in common."""
        kept = self._before(self._scatter)
        others = [self._before(s) for s in self.steps if self.is_result(s) and s is not self._scatter]
        large = {id(s) for s in self.steps if _bytes(s.made[0].aval) >= self._large}
        are_new = True
        while are_new:
            joined = [b for b in others if not kept.keys() >= b.keys() and large & b.keys() & kept.keys()]
            are_new = bool(joined)
            for before in joined:
                kept |= before
        self.steps = [s for s in self.steps if id(s) in kept]
        self.takes = {k: t for k, t in self.takes.items() if k in kept}

    def _before(self, last: Instruction) -> dict[int, Instruction]:
        found, left = dict[int, Instruction](), [last]
        while left:
            step = left.pop()
            if id(step) in self.takes and id(step) not in found:
                found[id(step)] = step
                left += [v.maker for v in step.values() if v.maker is not None]
        return found

    def is_result(self, step: Instruction) -> bool:
        return step.name in _SCATTERS or self._is_needed_whole(step)

    def sliced(self) -> list[Value]:
        """Values of as many rows that are not made here."""
        pairs = ((s, a) for s in self.steps for a, r in zip(s.taken, self.takes[id(s)], strict=True) if r)
        return list({id(a): a for _, a in pairs if not self._is_made_here(a)}.values())

    def _is_made_here(self, value: Value) -> bool:
        return id(value.maker) in self.takes and _is_of_rows(value)

    def is_free(self, others: Mapping[int, _Group]) -> bool:
        """True if nothing that is taken depends on a result, each of the other groups being one loop."""
        late, count = {id(s) for s in self.steps if self.is_result(s)}, 0
        while count != len(late):
            count = len(late)
            for step in self._all:
                is_inner = id(step) in self.takes
                if (id(step) in late and not is_inner) or not any(id(v.maker) in late for v in self._outer(step)):
                    continue
                if is_inner:
                    return False
                late |= others[id(step)].takes.keys() if id(step) in others else {id(step)}
        return True

    def _outer(self, step: Instruction) -> Iterator[Value]:
        """Operands of a step, but for rows that are made in the loop that it is in."""
        takes = self.takes.get(id(step), [False] * len(step.taken))
        for value, by_rows in zip(step.taken, takes, strict=True):
            if isinstance(value, Value) and not (by_rows and self._is_made_here(value)):
                yield value

    def pays(self) -> bool:
        """True if what need not be stored is more than half of the rows that are made before, and read once more."""
        gathered = sum(_bytes(s.made[0].aval) for s in self.steps if s.name == "gather")
        read = sum(b for v in self.sliced() if (b := _bytes(v.aval)) >= self._large)
        return gathered >= self._large and 2 * gathered > read


class _Loop:
    """The steps of a group for one stretch after the other.

    Attributes:
        steps: in order.
        made: what is needed of them: the results of scatters, and values for each row.
    """

    def __init__(self, group: _Group) -> None:
        self.steps, self._takes, self._sliced = group.steps, group.takes, group.sliced()
        results = [s for s in group.steps if group.is_result(s)]
        self._scatters = [s for s in results if s.name in _SCATTERS]
        self._of_rows = [s.made[0] for s in results if s.name not in _SCATTERS]
        self.made = [*(s.made[0] for s in self._scatters), *self._of_rows]
        updates = self._scatters[0].taken[2].aval
        self._count = updates.shape[0]
        self._length = max(1, _STRETCH * self._count // _bytes(updates))

    def run(self, known: dict[int, Any]) -> list[Any]:
        """The results, from the values that are known by their `id`."""

        def advance(targets: Sequence[Any], parts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            rows = dict(zip(map(id, self._sliced), parts, strict=True))
            written = {id(s): t for s, t in zip(self._scatters, targets, strict=True)}
            for step in self.steps:
                taken = [
                    (rows if by_rows else known)[id(a)] if isinstance(a, Value) else a
                    for a, by_rows in zip(step.taken, self._takes[id(step)], strict=True)
                ]
                if id(step) in written:
                    written[id(step)] = rebind(step.equation, [written[id(step)], *taken[1:]])[0]
                else:
                    rows[id(step.made[0])] = _of_rows(step, taken, len(parts[0]))
            return list(written.values()), [rows[id(v)] for v in self._of_rows]

        arrays = [known[id(v)] for v in self._sliced]
        targets = [known[id(t)] if isinstance(t := s.taken[0], Value) else t for s in self._scatters]
        whole = self._count // self._length * self._length
        stacked = [lax.reshape(a[:whole], (whole // self._length, self._length, *a.shape[1:])) for a in arrays]
        targets, made = lax.scan(advance, targets, stacked)
        made = [lax.reshape(m, (whole, *m.shape[2:])) for m in made]
        if whole < self._count:
            targets, last = advance(targets, [a[whole:] for a in arrays])
            made = [lax.concatenate(pair, 0) for pair in zip(made, last, strict=True)]
        return [*targets, *made]


def _scatters_rows(step: Instruction) -> bool:
    """True for a scatter of many rows, each to a place in the first dimension."""
    if step.name not in _SCATTERS:
        return False
    (_, index, updates), numbers = step.taken, step.equation.params["dimension_numbers"]
    return (
        isinstance(index, Value)
        and isinstance(updates, Value)
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and not numbers.operand_batching_dims
        and numbers.update_window_dims == tuple(range(1, updates.aval.ndim))
        and index.aval.shape == (updates.aval.shape[0], 1)
    )


def _is_large(scatter: Instruction) -> bool:
    """True if the rows of a scatter take several stretches."""
    updates = scatter.taken[2].aval
    return _bytes(updates) >= _LEAST and updates.shape[0] >= 2 * _bytes(updates) // _STRETCH


def _takes_rows(step: Instruction, count: int) -> list[bool] | None:
    """The operands of which a step needs some rows to make, or to scatter, the same rows; None if it needs others."""
    if _scatters_rows(step):
        return [False, True, True] if step.taken[2].aval.shape[0] == count else None
    if len(step.made) != 1:
        return None
    takes = _taken_by_rows(step, count)
    return takes if takes is None or all(isinstance(a, Value) for a in itertools.compress(step.taken, takes)) else None


def _taken_by_rows(step: Instruction, count: int) -> list[bool] | None:
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
    if step.name in _REDUCTIONS:
        return [True] if 0 not in params["axes"] else None
    # of more than one row none is squeezed
    moves = step.name == "squeeze" or (step.name == "reshape" and params["dimensions"] is None)
    return [True] if moves and shapes[0][:1] == (count,) else None


def _of_rows(step: Instruction, taken: Sequence[Any], count: int) -> Any:
    """The results of a step for `count` rows."""
    if step.name == "reduce_sum" and taken[0].dtype in _FLOATS:
        fold = fold_of(taken[0].shape, step.equation.params["axes"], in_stretches=False)  # they are in the cache
        return rebind(step.equation, taken)[0] if fold is None else fold.computed(taken[0])
    changed = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}.get(step.name)
    sizes = {} if changed is None else {changed: (count, *step.equation.params[changed][1:])}
    return rebind(step.equation, taken, **sizes)[0]
