"""The rules of `padding_proof` for operations that run a program: calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax.extend import core

from .padding_proof import KNOWING, WALKING, EquationPair, NotProved, State, join, rule

_BY_ROWS = "decides by what is in the rows what all of them do"


def _programs(step: EquationPair, name: str) -> list[tuple[Any, Any]]:
    """The programs of an equation in both traces, closed."""
    found = []
    for equation in (step.small, step.large):
        value = equation.params[name]
        several = value if isinstance(value, tuple | list) else [value]
        found.append([v if hasattr(v, "consts") else core.ClosedJaxpr(v, ()) for v in several])
    return list(zip(*found, strict=True))


@rule(
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remote_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat2",
    "checkpoint",
)
def _call(step: EquationPair) -> Sequence[State]:
    name = "jaxpr" if "jaxpr" in step.params else "call_jaxpr"
    ((small, large),) = _programs(step, name)
    return step.walk(small, large, step.operands)


@rule("cond")
def _cond(step: EquationPair) -> Sequence[State]:
    if step.operands[0] is not None:
        raise NotProved(_BY_ROWS)
    each = [step.walk(small, large, step.operands[1:]) for small, large in _programs(step, "branches")]
    return [_either(states) for states in zip(*each, strict=True)]


def _either(states: Sequence[State]) -> State:
    """The rows of a value that is one of several."""
    if any(s is None for s in states) and any(s is not None for s in states):
        raise NotProved("has rows in one case and not in another")
    return join(states)


def _settled(
    step: EquationPair, body: tuple[Any, Any], constants: Sequence[State], start: Sequence[State], rest: Sequence[State]
) -> list[State]:
    """The results of the body of a loop, once the carried values have the same rows before and after it."""
    carried = list(start)
    for _ in range(4):
        results = step.walk(*body, [*constants, *carried, *rest])
        after = [_either(pair) for pair in zip(carried, results[: len(carried)], strict=True)]
        if after == carried:
            return results
        carried = after
    raise NotProved("moves rows in a loop")


@rule("while")
def _while(step: EquationPair) -> Sequence[State]:
    tests, bodies = step.params["cond_nconsts"], step.params["body_nconsts"]
    test, constants, start = (
        step.operands[:tests],
        step.operands[tests : tests + bodies],
        step.operands[tests + bodies :],
    )
    ((small, large),) = _programs(step, "body_jaxpr")
    results = _settled(step, (small, large), constants, start, ())
    carried = [_either(pair) for pair in zip(start, results, strict=True)]
    ((small, large),) = _programs(step, "cond_jaxpr")
    if any(step.walk(small, large, [*test, *carried])):
        raise NotProved(_BY_ROWS)
    return carried


@rule("scan")
def _scan(step: EquationPair) -> Sequence[State]:
    constants, start, over = _parts_of_scan(step)
    if any(s is not None and s.axis == 0 for s in over):
        raise NotProved("goes from row to row")
    ((small, large),) = _programs(step, "jaxpr")
    inside = [s and replace(s, axis=s.axis - 1) for s in over]
    results = _settled(step, (small, large), constants, start, inside)
    held = [_either(pair) for pair in zip(start, results[: len(start)], strict=True)]
    return [*held, *(s and replace(s, axis=s.axis + 1) for s in results[len(start) :])]


def _parts_of_scan(step: EquationPair) -> Sequence[Sequence[State]]:
    """The operands of a scan: its constants, its carried values, and the sequences that it iterates over."""
    if "ft_in" in step.params:  # JAX 0.11
        return [list(part) for part in step.params["ft_in"].update(step.operands).unpack()]
    first = step.params["num_consts"]
    second = first + step.params["num_carry"]
    return step.operands[:first], step.operands[first:second], step.operands[second:]


KNOWING.update({"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"})
WALKING.update({_call, _cond, _while, _scan})
