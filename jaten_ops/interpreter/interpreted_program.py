"""A program of JAX's, a jaxpr, as steps in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from ..xla.platform_branches import cpu_branch
from . import exact_arithmetic, exact_reductions, gathers, moved_elements  # noqa: F401  # their rules
from .flat_equations import SAME_ORDER, TURNING, Flat, FlatEquations
from .library_calls import LIBRARY_CALLS, SUMS, LibraryCall, step_between
from .primitive_rules import (
    EXPANSIONS,
    STEP_MAKERS,
    NotInterpreted,
    NumpyStep,
    computed_by,
    dtype_of,
    interpreted_if,
    is_short,
)

_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"})
# Bytes of an array, of all steps together, of these where none rounds, and of an array around a library's call, which
# takes several times as long to compile: beyond them a compile pays at once.
_MOST, _MOST_OF_STEPS, _MOST_OF_MOVES, _MOST_OF_CALLS = 1 << 18, 1 << 23, 1 << 25, 1 << 24
_MOST_REPEATED = 2000  # steps of a loop
_WITH_PRODUCTS = frozenset(
    ("broadcast_in_dim", "dot_general", "platform_index", "reduce_sum", "reshape", "slice", "squeeze", "transpose")
)
"""Beside products of matrices these add nothing to the time of a compile."""


def _inlined(equation: Any) -> tuple[core.ClosedJaxpr, Sequence[Any]] | None:
    """The program that an equation runs as a part of its own, and that program's operands."""
    if (branch := cpu_branch(equation)) is not None:
        return _exact_form(equation) or branch, equation.invars[1:]
    if (expand := EXPANSIONS.get(equation.primitive.name)) is not None:
        return expand(equation), equation.invars
    if equation.primitive.name in _INLINED:
        called = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        interpreted_if(isinstance(called, core.ClosedJaxpr))
        return called, equation.invars
    return None


def _exact_form(equation: Any) -> core.ClosedJaxpr | None:
    """The form of a computation for other platforms, if it rounds nothing: all forms then have the same results."""
    *_, other = equation.params["branches"]
    try:
        made = Interpreted(other)
        return None if made.rounds or made.calls else other
    except NotInterpreted:
        return None


class Interpreted:
    """Steps over a list of values.

    Args:
        closed: the program.

    Attributes:
        rounds: the number of its operations that round.
        only_sums: whether all of those are sums of two numbers, none of them a constant.
        calls: the number of its steps that a library computes.
        avals: the types of its results.

    Raises:
        NotInterpreted: NumPy would not compute the same.
    """

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self.rounds = self.calls = self._repeated = 0
        self._bytes_of_steps = 0  # of all results
        self._reduces, self.only_sums = False, True
        self._steps: list[tuple[NumpyStep, tuple[int, ...], tuple[int, ...]]] = []
        # values in another order than they were given or made in, and those of a library's call in whatever shape
        self._turned: set[int] = set()
        self._called: set[int] = set()
        interpreted_if(not closed.effects)
        self._flat = flat = FlatEquations(closed, _inlined, _MOST_OF_CALLS)
        self._values, self._inputs, self._outputs = flat.values, flat.inputs, flat.outputs
        taken: set[int] = set()  # results of moves that a library's call has taken
        for each in flat.equations:
            if taken.isdisjoint(each.results):
                taken.update(self._add(each))
        interpreted_if(self.only_sums or self.rounds <= (0 if self._reduces else 1))
        interpreted_if(self.calls or not self._reduces)
        interpreted_if(self.only_sums or not self._repeated)  # XLA may take a loop apart
        most_of_steps = _MOST_OF_STEPS if self.rounds else _MOST_OF_MOVES
        interpreted_if(self.calls or flat.largest <= _MOST or self._bytes_of_steps <= most_of_steps)
        self.avals = [jax.core.ShapedArray(a.shape, a.dtype) for a in closed.out_avals]

    @property
    def seconds_of_calls(self) -> float:
        """The time of a library's calls so far, their compile included: they would take it in any case."""
        return sum([step.seconds for step, _, _ in self._steps if type(step) is LibraryCall])

    @property
    def length(self) -> int:
        """The number of its steps, those of a loop as often as they run."""
        return len(self._steps) + self._repeated

    @property
    def saved_steps(self) -> int:
        """The number of its steps that would add to the time of a compile, beside that of a library's calls."""
        names = [flat.name for flat in self._flat.equations]
        if self.calls and self.calls == names.count("dot_general"):
            return sum(name not in _WITH_PRODUCTS for name in names)
        return len(self._steps) - self.calls

    def _add(self, flat: Flat) -> Sequence[int]:
        """Adds the step of an equation; returns the results of moves that it has taken with it."""
        equation, operands, results = flat
        name = flat.name
        # a compiler multiplies by the reciprocal
        interpreted_if(name != "div" or operands[1] not in self._flat.constant)
        self._bytes_of_steps += sum(v.aval.size * np.dtype(v.aval.dtype).itemsize for v in equation.outvars)
        if exact_arithmetic.rounds(equation):
            # of short numbers it does not round those between
            is_sum = name in exact_arithmetic.SUMS_OF_TWO and not is_short(dtype_of(equation))
            self.only_sums &= is_sum and self._flat.constant.isdisjoint(operands)
            self.rounds += 1
        is_reduced = name in SUMS and dtype_of(equation).kind == "f"
        self._reduces |= is_reduced
        if name == "scan":
            self._repeated += equation.params["length"] * len(equation.params["jaxpr"].jaxpr.eqns)
        try:
            step = STEP_MAKERS[name](equation)
            if name in LIBRARY_CALLS:
                return self._add_call(flat, step)
        except (KeyError, AttributeError, TypeError) as error:  # a JAX whose primitive has other parameters
            raise NotInterpreted from error
        self._follow(flat, is_reduced)
        self._steps.append((step, operands, results))
        return ()

    def _follow(self, flat: Flat, is_reduced: bool) -> None:
        """Notes which results are turned, or a library's; refuses those that XLA might take into a call."""
        is_turned = not self._turned.isdisjoint(flat.operands)
        is_called = not self._called.isdisjoint(flat.operands)
        interpreted_if(not (is_called and flat.name in TURNING) and not (is_turned and is_reduced))
        if flat.name in TURNING or (flat.name in SAME_ORDER and is_turned):
            self._turned.update(flat.results)
        if flat.name in SAME_ORDER and is_called:
            self._called.update(flat.results)

    def _add_call(self, flat: Flat, step: NumpyStep) -> Sequence[int]:
        """Adds a library's call, with the moves around it that turn its operands and its result."""
        self.calls += 1
        before = [self._flat.moves_to(slot) for slot in flat.operands]
        after = self._flat.moves_from(flat.results[0])
        operands, results = flat.operands, flat.results
        # XLA makes one of two that are the same; and it might take what is between two into either
        same = [other for other in self._flat.equations if other.operands == operands and other.name == flat.name]
        interpreted_if(len(same) == 1 or not (after or any(before)))
        interpreted_if(self._called.isdisjoint(chain[0].operands[0] for chain in before if chain))
        self._called.update(results)
        if after or any(before):
            chains = [[move.equation for move in chain] for chain in before]
            step = step_between(flat.equation, chains, [move.equation for move in after])
            operands = tuple([c[0].operands[0] if c else slot for c, slot in zip(before, operands, strict=True)])
            results = after[-1].results if after else results
        self._called.update(results)
        self._turned.difference_update(results)
        self._steps.append((step, operands, results))
        return [slot for move in after for slot in move.results]

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


def _same_shape(one: Any, other: Any) -> bool:
    return bool(one.aval.shape == other.aval.shape)


@computed_by("scan")
def _repeated(equation: Any) -> NumpyStep:
    params = equation.params
    body, length = params["jaxpr"], params["length"]
    # JAX's parameters with their numbers have changed: what goes through the loop whole has the body's shape
    carried = sum(map(_same_shape, equation.outvars, body.jaxpr.outvars))
    consts = sum(map(_same_shape, equation.invars, body.jaxpr.invars)) - carried
    run = Interpreted(body)
    interpreted_if(run.only_sums and not run.calls and length * run.length <= _MOST_REPEATED and length)
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)

    def repeat(*operands: Any) -> Any:
        fixed, state, rows = operands[:consts], list(operands[consts : consts + carried]), operands[consts + carried :]
        found: list[Any] = [None] * length
        for i in order:
            results = run([*fixed, *state, *(row[i] for row in rows)])
            state, found[i] = results[:carried], results[carried:]
        return (*state, *(np.stack(values) for values in zip(*found, strict=True)))

    return repeat
