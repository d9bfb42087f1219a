"""A program of JAX's as one list of equations over numbered values: calls within it are parts of the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from .primitive_rules import STEP_MAKERS, NotInterpreted

TURNING = frozenset({"transpose", "rev"})
"""Primitives that give the same elements in another order."""

SAME_ORDER = frozenset({"reshape", "squeeze", "broadcast_in_dim", "copy", "copy_p"})
"""Primitives that give the same elements in the same order."""

Called = Callable[[Any], tuple[core.ClosedJaxpr, Sequence[Any]] | None]


class Flat(NamedTuple):
    """An equation, with the numbers of its operands' and its results' values."""

    equation: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def name(self) -> str:
        """The primitive's."""
        return str(self.equation.primitive.name)

    def moves(self) -> bool:
        """True if it gives the elements of one operand."""
        return self.name in TURNING or self.name in SAME_ORDER


class FlatEquations:
    """The equations of a program.

    Args:
        closed: the program.
        called: the program that an equation runs as a part of its own, with that program's operands; None for others.
        most: the most bytes that an array may have.

    Attributes:
        equations: in their order.
        values: by number, those of constants; None for others.
        constant: the numbers of constants.
        inputs: for each operand its number and dtype.
        outputs: the results' numbers.
        largest: the bytes of the largest array.

    Raises:
        NotInterpreted: there is a larger array, or a primitive without a rule, or an effect.
    """

    def __init__(self, closed: core.ClosedJaxpr, called: Called, most: int) -> None:
        self.equations: list[Flat] = []
        self.values: list[Any] = []
        self.constant: set[int] = set()
        self.largest = 0
        self._called, self._most = called, most
        self.inputs = [(self._slot(v.aval), np.dtype(v.aval.dtype)) for v in closed.jaxpr.invars]
        self.outputs = self._add(closed, [slot for slot, _ in self.inputs])
        self._made_by = {slot: flat for flat in self.equations for slot in flat.results}
        self._read_by: dict[int, list[Flat | None]] = {slot: [None] for slot in self.outputs}
        for flat in self.equations:
            for slot in flat.operands:
                self._read_by.setdefault(slot, []).append(flat)

    def _slot(self, aval: Any, value: Any = None) -> int:
        dtype = np.dtype(aval.dtype)  # raises for keys of random numbers
        self.largest = max(self.largest, aval.size * dtype.itemsize)
        if self.largest > self._most:
            raise NotInterpreted
        self.values.append(value)
        return len(self.values) - 1

    def _fixed(self, aval: Any, value: Any) -> int:
        slot = self._slot(aval, np.asarray(value, aval.dtype))
        self.constant.add(slot)
        return slot

    def _add(self, closed: core.ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        jaxpr = closed.jaxpr
        slots: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, const in zip(jaxpr.constvars, closed.consts, strict=True):
            slots[var] = self._fixed(var.aval, const)

        def slot_of(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self._fixed(atom.aval, atom.val)
            return slots[atom]

        for equation in jaxpr.eqns:
            part = self._called(equation)
            if part is None:
                if equation.primitive.name not in STEP_MAKERS or equation.effects:
                    raise NotInterpreted
                operands = tuple([slot_of(v) for v in equation.invars])
                results = [self._slot(v.aval) for v in equation.outvars]
                self.equations.append(Flat(equation, operands, tuple(results)))
                if self.constant.issuperset(operands):
                    self.constant.update(results)
            else:
                results = self._add(part[0], [slot_of(v) for v in part[1]])
            slots.update(zip(equation.outvars, results, strict=True))
        return [slot_of(v) for v in jaxpr.outvars]

    def moves_to(self, slot: int) -> list[Flat]:
        """The equations that turn a value and give it as the one of a number; empty if none turns it."""
        chain: list[Flat] = []
        made = self._made_by.get(slot)
        while made is not None and made.moves():
            chain.insert(0, made)
            made = self._made_by.get(made.operands[0])
        first = next((i for i, flat in enumerate(chain) if flat.name in TURNING), len(chain))
        return chain[first:]

    def moves_from(self, slot: int) -> list[Flat]:
        """The equations that turn the value of a number which nothing else reads; empty if none turns it."""
        chain: list[Flat] = []
        readers = self._read_by.get(slot, [])
        while len(readers) == 1 and readers[0] is not None and readers[0].moves():
            chain.append(readers[0])
            readers = self._read_by.get(readers[0].results[0], [])
        last = max((i for i, flat in enumerate(chain) if flat.name in TURNING), default=-1)
        return chain[: last + 1]
