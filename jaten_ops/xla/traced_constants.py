"""Values of arrays in programs that JAX traces, where they depend on constants alone: `torch.eye(3, device="jax")`.
Or on operands whose values are known while the program is traced, as some of a step's are.

JAX traces all that a function computes. Where the value itself is needed, as for the number of results of `x[mask]`, it
is computed from the equations that made it, at once and outside of the trace, if no operand of the program has entered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from .equations import rebind
from .x64 import Enabled

_OPERAND = "jaten_operand"
_NOT_RUN = frozenset({_OPERAND, "jaten_weakened"})
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
    equations = equations_of(array)
    return None if equations is None else computed(array, equations, {})


def computed(array: Any, equations: Iterable[Any], operands: Mapping[int, Any]) -> Any:
    """The value of an array that JAX traces, outside of the trace.

    Args:
        array: the array.
        equations: those on which it depends, in order.
        operands: the arrays of the operands of a traced step, by their numbers.

    Raises:
        Exception: what an equation raises.
    """
    with Enabled(), jax.ensure_compile_time_eval():
        found: dict[Any, Any] = {}
        for equation in equations:
            if is_operand(equation):
                found[equation.outvars[0]] = operands[equation.params["index"]]
            else:
                results = rebind(equation, [_read(tracer, found) for tracer in equation.in_tracers])
                found.update(zip(equation.outvars, results, strict=True))
        return _read(array, found)


def is_operand(equation: Any) -> bool:
    """True for the equation that stands for an operand of a traced step."""
    return equation.primitive.name == _OPERAND  # type: ignore[no-any-return]  # JAX's equations have no types here


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


def equations_of(array: Any, *, takes_operands: bool = False) -> list[Any] | None:
    """The equations on which an array that JAX traces depends, in an order to run them.

    Args:
        array: the array.
        takes_operands: whether it may depend on operands of a traced step, too.

    Returns:
        The equations; None if the array depends on what it may not, or on an effect.
    """
    not_run = _NOT_RUN - {_OPERAND} if takes_operands else _NOT_RUN
    ordered: dict[int, Any] = {}
    waiting: list[tuple[Any, bool]] = [(array, False)]
    while waiting:
        tracer, are_operands_ready = waiting.pop()
        if _constant(tracer) is not None:
            continue
        equation = getattr(tracer, "parent", None)  # None for operands of the program, and other kinds of tracers
        if equation is None or equation.effects or equation.primitive.name in not_run:
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
