"""A program as the steps that it takes, those of simple programs in it one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
from jax.extend import core

from jaten_ops.xla.equations import ELEMENTWISE, rebind
from jaten_ops.xla.platform_branches import cpu_branch

from .rules import RULES, traced_scope, within

_CALLS = frozenset({"custom_jvp_call", "jit", "pjit"})
ADDITIONS = frozenset({"add", "add_any"})
_MOVES = frozenset({"broadcast_in_dim", "pad"})
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def bodies_of(equation: Any) -> list[Any]:
    """The programs in an equation."""
    found = [equation.params[name] for name in _BODIES if name in equation.params]
    return [getattr(body, "jaxpr", body) for body in found if hasattr(getattr(body, "jaxpr", body), "eqns")]


def body_of(equation: Any) -> core.ClosedJaxpr:
    """The program that an equation calls."""
    (body,) = [equation.params[name] for name in _BODIES if name in equation.params]
    return body if hasattr(body, "consts") else core.ClosedJaxpr(body, ())


def branch_of(equation: Any) -> core.ClosedJaxpr | None:
    """The CPU's program in a traced `by_platform`, if it is made of primitives that have rules."""
    branch = cpu_branch(equation)
    return branch if branch is not None and _has_rules(branch.jaxpr) else None


@functools.lru_cache(maxsize=1024)
def _has_rules(jaxpr: Any) -> bool:
    return all(
        e.primitive.name in RULES
        or (e.primitive.name in _CALLS and _has_rules(body_of(e).jaxpr))
        or branch_of(e) is not None
        or e.primitive.name == "platform_index"
        for e in jaxpr.eqns
    )


class Value:
    """A value in a program.

    Attributes:
        maker: the step that makes it, of the class that was asked for; None for an operand or a constant.
    """

    __slots__ = ("aval", "is_used_outside", "maker")

    def __init__(self, aval: Any, maker: Any = None) -> None:
        self.aval, self.maker = aval, maker
        self.is_used_outside = False


class Instruction:
    """An equation as it is applied once, to values and to literals, in the scope of the programs that it is in."""

    __slots__ = ("equation", "made", "scope", "taken")

    def __init__(self, equation: Any, taken: list[Any], scope: str) -> None:
        self.equation, self.taken, self.scope = equation, taken, scope
        self.made = [Value(v.aval, self) for v in equation.outvars]

    @property
    def name(self) -> str:
        return str(self.equation.primitive.name)

    def values(self) -> list[Value]:
        return [v for v in self.taken if isinstance(v, Value)]

    def apply(self, known: dict[int, Any]) -> Sequence[Any]:
        """The results for known values, by `id`."""
        with within(self.scope):
            return rebind(self.equation, [known[id(a)] if isinstance(a, Value) else a for a in self.taken])


def list_steps(
    jaxpr: Any, operands: Sequence[Any], steps: list[Any], kind: type[Instruction] = Instruction, scope: str = ""
) -> list[Any]:
    """Adds a program's equations to the steps; returns its results: values and literals.

    Args:
        jaxpr: the program.
        operands: its constants and what it takes.
        steps: is added to.
        kind: the class of the steps.
        scope: the names of the scopes around the program.
    """
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        taken = [read(a) for a in equation.invars]
        inner = "/".join(filter(None, (scope, traced_scope(equation))))
        if (branch := branch_of(equation)) is not None:
            made = list_steps(branch.jaxpr, [*branch.consts, *taken[1:]], steps, kind, inner)
        elif equation.primitive.name == "custom_jvp_call" or _is_simple_call(equation):
            body = body_of(equation)
            made = list_steps(body.jaxpr, [*body.consts, *taken], steps, kind, inner)
        else:
            step = kind(equation, taken, inner)
            steps.append(step)
            made = list(step.made)
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _is_simple_call(equation: Any) -> bool:
    return equation.primitive.name in _CALLS and _is_simple(body_of(equation).jaxpr)


@functools.lru_cache(maxsize=1024)
def _is_simple(jaxpr: Any) -> bool:
    """True if it computes element by element, and moves these."""
    names = (e.primitive.name for e in _computing(jaxpr) if not _is_simple_call(e))
    return all(name in ELEMENTWISE or name in _MOVES for name in names)


def _computing(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program, with those of a CPU where it depends on the platform."""
    for equation in jaxpr.eqns:
        if (branch := branch_of(equation)) is not None:
            yield from _computing(branch.jaxpr)
        elif equation.primitive.name != "platform_index":
            yield equation


def users_of(steps: Sequence[Instruction], results: Sequence[Any]) -> dict[int, list[Any]]:
    """For each value, by its `id`, the steps that take it, and None if it is a result."""
    users: dict[int, list[Any]] = {id(v): [None] for v in results if isinstance(v, Value)}
    for step in steps:
        for value in step.values():
            users.setdefault(id(value), []).append(step)
    return users


class Loop(Protocol):
    """A loop in the place of some steps.

    Attributes:
        steps: those that it takes the place of, in order.
        made: those of their results that others take.
    """

    @property
    def steps(self) -> Sequence[Instruction]: ...

    @property
    def made(self) -> Sequence[Value]: ...

    def run(self, known: dict[int, Any]) -> Sequence[Any]:
        """The results, from the values that are known by their `id`."""


class Listed:
    """A program as steps.

    Attributes:
        steps: in their order.
        users: as `users_of` has them.
    """

    def __init__(self, program: core.ClosedJaxpr) -> None:
        self._program = program
        self._operands = [Value(v.aval) for v in [*program.jaxpr.constvars, *program.jaxpr.invars]]
        self.steps: list[Instruction] = []
        self._results = list_steps(program.jaxpr, self._operands, self.steps)
        self.users = users_of(self.steps, self._results)

    def only_maker(self, atom: Any) -> Instruction | None:
        """The step that makes a value which only one other takes."""
        return atom.maker if isinstance(atom, Value) and len(self.users.get(id(atom), ())) == 1 else None

    def summands(self, root: Instruction) -> tuple[list[Instruction], list[Any]]:
        """The other additions of the sum that ends with a step, and what they add, from right to left."""
        additions, leaves, left = [], [], list(root.taken)
        while left:
            atom = left.pop()
            maker = self.only_maker(atom)
            if maker is not None and maker.name in ADDITIONS and atom.aval == root.made[0].aval:
                additions.append(maker)
                left += maker.taken
            else:
                leaves.append(atom)
        return additions, leaves

    def applied(self, apply: Callable[[Instruction, dict[int, Any]], Sequence[Any]]) -> core.ClosedJaxpr:
        """The program in which `apply` makes what each step does, of the values that are known by their `id`.

        It may make nothing of a step, if nothing else takes what that would.
        """

        def run(*arrays: Any) -> list[Any]:
            known = dict(zip(map(id, self._operands), [*self._program.consts, *arrays], strict=True))
            for step in self.steps:
                known.update(zip(map(id, step.made), apply(step, known), strict=False))
            return [known[id(atom)] if isinstance(atom, Value) else atom for atom in self._results]

        return jax.make_jaxpr(run)(*[v.aval for v in self._program.jaxpr.invars])

    def looped(self, loop_at: Callable[[int], Loop | None]) -> core.ClosedJaxpr:
        """The program with the loops that `loop_at` makes for the numbers of last steps; itself if there are none."""
        found = [loop for i, _ in enumerate(self.steps) if (loop := loop_at(i)) is not None]
        if not found:
            return self._program
        latest = {id(step): loop for loop in found for step in loop.steps}
        loops = [loop for loop in found if latest[id(loop.steps[-1])] is loop]  # others are part of a later one
        inner = {id(step): loop for loop in loops for step in loop.steps}
        self.steps = _moved_for(self.steps, inner)
        last = {id(loop.steps[-1]): loop for loop in loops}

        def apply(step: Instruction, known: dict[int, Any]) -> Sequence[Any]:
            if id(step) in last:
                known.update(zip(map(id, last[id(step)].made), last[id(step)].run(known), strict=True))
            return () if id(step) in inner else step.apply(known)

        return self.applied(apply)


def _moved_for(steps: Sequence[Instruction], loops: dict[int, Loop]) -> list[Instruction]:
    """Steps in an order in which those of a loop follow each other, behind all that they take."""
    units = {id(step): [step] for step in steps if id(step) not in loops}
    units |= {number: list(loop.steps) for number, loop in loops.items()}
    placed: dict[int, Instruction] = {}
    for step in steps:
        left = [step] if step is units[id(step)][-1] else []  # a loop stands where its last step did, or before
        while left:
            unit = units[id(left[-1])]
            own = set(map(id, unit))
            before = [v.maker for s in unit for v in s.values() if v.maker is not None and id(v.maker) not in own]
            missing = [] if id(left[-1]) in placed else [maker for maker in before if id(maker) not in placed]
            left += missing
            if not missing:
                placed |= {id(s): s for s in unit}
                left.pop()
    return list(placed.values())
