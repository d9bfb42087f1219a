"""A program of JAX's, a jaxpr, as steps in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from ..xla.platform_branches import cpu_branch
from . import exact_arithmetic, exact_reductions, gathers, moved_elements  # noqa: F401  # their rules
from .primitive_rules import STEP_MAKERS, NotInterpreted, NumpyStep, computed_by, interpreted_if

_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"})
_MOST = 1 << 18  # bytes of an array: beyond them a compile pays at once


def _inlined(equation: Any) -> tuple[core.ClosedJaxpr, Sequence[Any]] | None:
    """The program that an equation runs as a part of its own, and that program's operands."""
    if (branch := cpu_branch(equation)) is not None:
        return _exact_form(equation) or branch, equation.invars[1:]
    if equation.primitive.name in _INLINED:
        called = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        interpreted_if(isinstance(called, core.ClosedJaxpr))
        return called, equation.invars
    return None


def _exact_form(equation: Any) -> core.ClosedJaxpr | None:
    """The form of a computation for other platforms, if it rounds nothing: all forms then have the same results."""
    *_, other = equation.params["branches"]
    try:
        return other if not Interpreted(other).rounds else None
    except NotInterpreted:
        return None


class Interpreted:
    """Steps over a list of values.

    Args:
        closed: the program.

    Attributes:
        rounds: how many operations in it round.
        length: how many steps it has.
        avals: the types of its results.

    Raises:
        NotInterpreted: NumPy would not compute the same.
    """

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self.rounds = 0
        self._steps: list[tuple[NumpyStep, tuple[int, ...], tuple[int, ...]]] = []
        self._values: list[Any] = []
        self._constant: set[int] = set()
        interpreted_if(not closed.effects)
        self._inputs = [(self._slot(v.aval), np.dtype(v.aval.dtype)) for v in closed.jaxpr.invars]
        self._outputs = self._add(closed, [slot for slot, _ in self._inputs])
        interpreted_if(self.rounds <= 1)
        self.length = len(self._steps)
        self.avals = [jax.core.ShapedArray(a.shape, a.dtype) for a in closed.out_avals]

    def _slot(self, aval: Any, value: Any = None) -> int:
        dtype = np.dtype(aval.dtype)  # raises for keys of random numbers
        interpreted_if(aval.size * dtype.itemsize <= _MOST)
        self._values.append(value)
        return len(self._values) - 1

    def _fixed(self, aval: Any, value: Any) -> int:
        slot = self._slot(aval, np.asarray(value, aval.dtype))
        self._constant.add(slot)
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
            part = _inlined(equation)
            if part is None:
                results = self._step(equation, [slot_of(v) for v in equation.invars])
            else:
                results = self._add(part[0], [slot_of(v) for v in part[1]])
            slots.update(zip(equation.outvars, results, strict=True))
        return [slot_of(v) for v in jaxpr.outvars]

    def _step(self, equation: Any, operands: Sequence[int]) -> Sequence[int]:
        make = STEP_MAKERS.get(equation.primitive.name)
        if make is None or equation.effects:
            raise NotInterpreted
        # a compiler multiplies by the reciprocal
        interpreted_if(equation.primitive.name != "div" or operands[1] not in self._constant)
        results = [self._slot(v.aval) for v in equation.outvars]
        if self._constant.issuperset(operands):
            self._constant.update(results)
        self.rounds += exact_arithmetic.rounds(equation)
        try:
            self._steps.append((make(equation), tuple(operands), tuple(results)))
        except (KeyError, AttributeError) as error:  # a JAX whose primitive has other parameters
            raise NotInterpreted from error
        return results

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The results for arrays and numbers; they may be parts of the operands, or of each other."""
        values = self._values.copy()
        for (slot, dtype), given in zip(self._inputs, inputs, strict=True):
            values[slot] = np.asarray(given, dtype)
        for step, operands, results in self._steps:
            found = step(*[values[i] for i in operands])
            if type(found) is tuple:
                for slot, value in zip(results, found, strict=True):
                    values[slot] = value
            else:
                values[results[0]] = found
        return [values[i] for i in self._outputs]


@computed_by("platform_index")
def _first(equation: Any) -> NumpyStep:
    return lambda: np.int32(0)  # only a choice by platform reads it, of which the CPU's part is taken


@computed_by("cond")
def _chosen(equation: Any) -> NumpyStep:
    branches = [Interpreted(branch) for branch in equation.params["branches"]]
    interpreted_if(not any(branch.rounds for branch in branches))

    def choose(index: Any, *operands: Any) -> Any:
        return tuple(branches[min(max(int(index), 0), len(branches) - 1)](operands))

    return choose
