"""The program of a step with microbatches: a loop over the parts up to the end of backward, then the rest, once.

It is cut out of the step's own program by dependence. What depends on a part of the batch, on a value that is carried
from part to part, or on a part's random numbers, is computed for each part. What depends on the mean of the gradients
is computed once, and takes of a part's numbers the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from ..arrays.seeds import seeds_of
from ..errors import UnsupportedInputError
from .microbatches import Parts, marked, part
from .replay import needed_for, replay
from .state_capture import operand


class Roles(NamedTuple):
    """The results of a traced step, by their places in its program.

    Attributes:
        once: what it stores in tensors that there are: one value for the whole batch.
        made: arrays of new tensors: one value, or pieces of a batch.
        holds: conditions that must hold in each part.
    """

    once: Sequence[int]
    made: Sequence[int]
    holds: Sequence[int]


class Accumulation:
    """A traced step as a loop over the parts of its batch, and what follows.

    Args:
        closed: the program of the step on one part.
        roles: its results.
        parts: the parts, and what is marked.

    Raises:
        UnsupportedInputError: a result, or what follows the backward pass, needs a part's values as they are.
    """

    def __init__(self, closed: core.ClosedJaxpr, roles: Roles, parts: Parts) -> None:
        self._closed, self._parts = closed, parts
        self._outs = [*closed.jaxpr.outvars]
        marks = [e for e in closed.jaxpr.eqns if e.primitive is marked]
        if all(e.params["written"] is not None for e in marks):
            raise UnsupportedInputError(
                "microbatches of a step", "a backward() that gives no parameter a gradient", "one that gives some"
            )
        self._of_part: set[Any] = set()
        self._late: set[Any] = set()
        self._early: set[Any] = set()
        self._find_dependence({e.params["written"] for e in marks} - {None})
        self._pieces, self._conditions, numbers = self._sorted(roles)
        self._averaged = dict.fromkeys(numbers)
        apart = {*self._pieces, *self._conditions, *numbers}
        self._rest, used = self._of_rest([v for v in map(_variable, self._outs) if v is not None and v not in apart])
        self._states = [e for e in marks if e.params["written"] is not None]
        self._gradients = [e for e in marks if e.params["written"] is None and e.outvars[0] in used]
        ends = [e.invars[0] for e in (*self._states, *self._gradients)]
        self._loop = self._of_loop([*ends, *self._averaged, *self._pieces, *self._conditions])

    # what is computed where

    def _find_dependence(self, carried: set[int]) -> None:
        """Finds what depends on parts, what on the marks, and what was made before the end of backward."""
        has_ended = False
        for e in self._closed.jaxpr.eqns:
            inputs = set(map(_variable, e.invars))
            if e.primitive is marked:
                has_ended = True
                self._late.update(e.outvars)
                continue
            is_changing = e.primitive is operand and e.params["index"] in carried | self._parts.seeds
            if e.primitive is part or is_changing or inputs & self._of_part:
                self._of_part.update(e.outvars)
            if inputs & self._late:
                self._late.update(e.outvars)
            if not has_ended:
                self._early.update(e.outvars)

    def _sorted(self, roles: Roles) -> tuple[list[Any], list[Any], list[Any]]:
        """The results that parts compute: pieces of a batch, conditions, and numbers."""
        found = {i: _variable(self._outs[i]) for i in (*roles.made, *roles.holds)}
        of_part = {i: v for i, v in found.items() if v in self._of_part and v not in self._late}
        made = dict.fromkeys(of_part[i] for i in roles.made if i in of_part)
        for v in made:
            if not _is_number(v.aval) and v.aval.shape[:1] != (self._parts.size,):
                raise UnsupportedInputError(
                    "microbatches of a step", f"a result of each part of shape {v.aval.shape}, {v.aval.dtype}",
                    "a float without dimensions, of which the mean is taken, or, in the first dimension, the size of a"
                    f" part, {self._parts.size}",
                )  # fmt: skip
        conditions = dict.fromkeys(of_part[i] for i in roles.holds if i in of_part)
        return [v for v in made if not _is_number(v.aval)], [*conditions], [v for v in made if _is_number(v.aval)]

    def _of_rest(self, wanted: Sequence[Any]) -> tuple[list[Any], set[Any]]:
        """The equations that are computed once, and what they use. Adds the numbers of which they take the mean."""
        can = self._computable_once()
        needed, found = set(wanted), []
        for e in reversed(self._closed.jaxpr.eqns):
            mine = needed.intersection(e.outvars)
            if e.primitive is marked or not (mine or self._acts(e, early=False)):
                continue
            is_once = all(can.get(v, True) for v in map(_variable, e.invars)) and not mine & self._early
            if mine & self._of_part and not is_once and all(map(self._is_mean, mine)):
                self._averaged.update(dict.fromkeys(mine))
                continue
            if wrong := mine & self._of_part & self._early:
                raise _used_after(wrong.pop().aval)
            found.append(e)
            needed.update(v for v in map(_variable, e.invars) if v is not None)
        return found[::-1], needed

    def _computable_once(self) -> dict[Any, bool]:
        """For what depends on parts, whether it is a mean of numbers, or can be computed from such."""
        can: dict[Any, bool] = {}
        for e in self._closed.jaxpr.eqns:
            inputs = all(can.get(v, True) for v in map(_variable, e.invars))
            for v in e.outvars:
                if v in self._of_part:
                    can[v] = self._is_mean(v) or (inputs and v not in self._early)
        return can

    def _is_mean(self, value: Any) -> bool:
        """True if the mean over the parts may stand for a value."""
        return _is_number(value.aval) and value not in self._late

    def _of_loop(self, wanted: Iterable[Any]) -> list[Any]:
        """The equations that are computed for each part."""
        equations = [e for e in self._closed.jaxpr.eqns if e.primitive is not marked]
        return needed_for(wanted, equations, lambda e: self._acts(e, early=True))

    def _acts(self, equation: Any, *, early: bool) -> bool:
        """True if an equation has effects beside its results, at the time that is asked for."""
        return bool(equation.effects) and bool(self._early.intersection(equation.outvars)) is early

    # the program

    def program(self, operands: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
        """Computes the results of the step on the whole batch.

        Args:
            operands: by their numbers.
            wrap: what is done to the function that computes one part.
        """
        known = self._looped(operands, wrap)
        read = replay(self._closed, self._rest, known, {operand: lambda e: operands[e.params["index"]]})
        return [read(v) for v in self._outs]

    def _looped(self, operands: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[Any, Any]:
        """The values that the loop computes, by the variables of the step's program."""
        one, count = wrap(self._one), self._parts.how.count
        carried = [e.params["written"] for e in self._states]
        taken = {i: operands[i] for i in sorted(_operands_of(self._loop)) if i not in carried}
        summed = [*(e.invars[0].aval for e in self._gradients), *(v.aval for v in self._averaged)]

        def advance(carry: Any, at: Any) -> Any:
            states, sums = carry
            new, terms, pieces, conditions = one(taken, states, at)
            new = [lax.convert_element_type(a.reshape(s.shape), s.dtype) for a, s in zip(new, states, strict=True)]
            return (new, [s + t for s, t in zip(sums, terms, strict=True)]), (pieces, conditions)

        start = [operands[i] for i in carried], [jnp.zeros(a.shape, _wide(a.dtype)) for a in summed]
        (states, sums), (pieces, conditions) = lax.scan(advance, start, jnp.arange(count))
        means = [(s / count).astype(a.dtype) for s, a in zip(sums, summed, strict=True)]
        known = {e.outvars[0]: s.reshape(e.invars[0].aval.shape) for e, s in zip(self._states, states, strict=True)}
        known |= zip([e.outvars[0] for e in self._gradients] + [*self._averaged], means, strict=True)
        known |= zip(self._pieces, map(self._joined, pieces), strict=True)
        known |= {v: c.all(0) for v, c in zip(self._conditions, conditions, strict=True)}
        return known

    def _one(self, taken: dict[int, Any], states: list[Any], at: Any) -> Any:
        """One part: what it carries on, the terms of sums, pieces of results, and conditions."""
        carried = {e.params["written"]: s for e, s in zip(self._states, states, strict=True)}

        def operand_of(equation: Any) -> Any:
            i = equation.params["index"]
            if i in self._parts.seeds:
                return _seed_of_part(taken[i], at)
            return carried[i] if i in carried else taken[i]

        read = replay(self._closed, self._loop, {}, {operand: operand_of, part: lambda e, a: self._part_of(a, at)})
        terms = [read(v) for v in (*(e.invars[0] for e in self._gradients), *self._averaged)]
        return (
            [read(e.invars[0]) for e in self._states],
            [t.astype(_wide(t.dtype)) for t in terms],
            [read(v) for v in self._pieces],
            [read(v) for v in self._conditions],
        )

    def _part_of(self, batch: Any, at: Any) -> Any:
        """A part of a batch. Of the pieces that lie on several devices it has a part of each, so that nothing moves."""
        count, blocks, size = self._parts.how.count, self._parts.blocks, self._parts.size
        pieces = batch.reshape(blocks, count, size // blocks, *batch.shape[1:])
        return lax.dynamic_index_in_dim(pieces, at, 1, keepdims=False).reshape(size, *batch.shape[1:])

    def _joined(self, pieces: Any) -> Any:
        """The whole of what parts have computed, in the order of the batch."""
        count, blocks, size = self._parts.how.count, self._parts.blocks, self._parts.size
        rest = pieces.shape[2:]
        return pieces.reshape(count, blocks, size // blocks, *rest).swapaxes(0, 1).reshape(count * size, *rest)


def _variable(atom: Any) -> Any:
    return None if isinstance(atom, core.Literal) else atom


def _operands_of(equations: Iterable[Any]) -> set[int]:
    return {e.params["index"] for e in equations if e.primitive is operand}


def _is_number(aval: Any) -> bool:
    return aval.ndim == 0 and bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _wide(dtype: Any) -> Any:
    """The dtype in which a sum is kept: single precision for shorter floats."""
    return jnp.promote_types(dtype, jnp.float32)


def _seed_of_part(seed: Any, at: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(seed), at)
    return next(seeds_of(key)).astype(seed.dtype)


def _used_after(aval: Any) -> UnsupportedInputError:
    return UnsupportedInputError(
        "microbatches of a step",
        f"a value of one part, of shape {aval.shape}, {aval.dtype}, that it stores, or uses after backward()",
        "a float without dimensions, of which the mean is taken; or return it, or write to tensors before backward()",
    )  # fmt: skip
