"""Values of arrays in programs that JAX traces, where they depend on constants alone: `torch.eye(3, device="jax")`.

JAX traces all that a function computes. Where the value itself is needed, as for the number of results of `x[mask]`, it
is computed from the equations that made it, at once and outside of the trace, if no operand of the program has entered.
"""

from __future__ import annotations

from typing import Any

import jax

from .equations import rebind
from .x64 import Enabled

_NOT_RUN = frozenset({"jaten_operand", "jaten_weakened"})
"""Primitives of a traced step whose results are known at its calls."""


def constant_value(array: Any) -> Any:
    """The value of an array that JAX traces, if it depends on constants alone; None if not. Other arrays are their own.

    Args:
        array: an array; an equation that had effects is not run again.

    Raises:
        Exception: what an equation raises.
    """
    if not isinstance(array, jax.core.Tracer):
        return array
    equations = _equations_of(array)
    if equations is None:
        return None
    with Enabled(), jax.ensure_compile_time_eval():
        found: dict[Any, Any] = {}
        for equation in equations:
            results = rebind(equation, [_read(operand, found) for operand in equation.in_tracers])
            found.update(zip(equation.outvars, results, strict=True))
        return _read(array, found)


def number_in(array: Any) -> Any:
    """The number in an array of one element, also in one that depends on constants alone.

    Raises:
        jax.errors.ConcretizationTypeError: JAX traces the array, and operands of the program have entered it.
    """
    try:
        return array.item()
    except jax.errors.ConcretizationTypeError:
        known = constant_value(array)
        if known is None:
            raise
        return known.item()


def _equations_of(array: Any) -> list[Any] | None:
    """The equations on which an array depends, in an order to run them; None if it depends on an operand."""
    ordered: dict[int, Any] = {}
    waiting: list[tuple[Any, bool]] = [(array, False)]
    while waiting:
        tracer, are_operands_ready = waiting.pop()
        if _constant(tracer) is not None:
            continue
        equation = getattr(tracer, "parent", None)  # None for operands of the program, and other kinds of tracers
        if equation is None or equation.effects or equation.primitive.name in _NOT_RUN:
            return None
        if id(equation) in ordered:
            continue
        if are_operands_ready:
            ordered[id(equation)] = equation
        else:
            waiting.append((tracer, True))
            waiting.extend((operand, False) for operand in equation.in_tracers)
    return list(ordered.values())


def _constant(tracer: Any) -> Any:
    """The array that a tracer stands for; None if there is none, or that is traced itself."""
    value = tracer.full_lower()
    return None if isinstance(value, jax.core.Tracer) else value


def _read(tracer: Any, found: dict[Any, Any]) -> Any:
    value = _constant(tracer)
    return found[tracer.val] if value is None else value
