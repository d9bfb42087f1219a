"""The equations of a traced step, computed anew: its operands come from where they are then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend import core

from ..cpu.layouts.rules import traced_scope, within
from ..xla.equations import rebind
from .state_capture import weakened


def needed_for(
    wanted: Iterable[Any], equations: Sequence[Any], acts: Callable[[Any], bool] = lambda equation: False
) -> list[Any]:
    """The equations that compute these values, in order, and those that act besides."""
    needed, found = set(map(id, wanted)), []
    for equation in reversed(equations):
        if acts(equation) or not needed.isdisjoint(map(id, equation.outvars)):
            found.append(equation)
            needed.update(map(id, equation.invars))
    return found[::-1]


def replay(
    program: core.ClosedJaxpr,
    equations: Iterable[Any],
    known: dict[Any, Any],
    own: dict[Any, Callable[..., Any]],
) -> Callable[[Any], Any]:
    """Computes some equations of a program.

    Args:
        program: the traced step.
        equations: those to compute, in order.
        known: values that are known already, by their variables; the others are added.
        own: for primitives that no compiled program contains what computes them, from the equation and the values that
            it takes. `operand` is one of them.

    Returns:
        A function that reads a value of the program.
    """
    known.update(zip(program.jaxpr.constvars, program.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in equations:
        values = [read(atom) for atom in equation.invars]
        if equation.primitive is weakened:
            results: Sequence[Any] = values
        elif equation.primitive in own:
            results = [own[equation.primitive](equation, *values)]
        else:
            with within(traced_scope(equation)):
                results = rebind(equation, values)
        known.update(zip(equation.outvars, results, strict=True))
    return read
