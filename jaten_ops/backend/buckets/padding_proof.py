"""A proof over a program's jaxpr that it may be run with more rows than it has.

The rows are those of one dimension, as the batch, and the added ones are copies of the first. The program is traced
with the real number of rows and with the larger one, and the two traces are walked together. The proof holds that each
value of the larger trace has, in the places of the real rows, what the smaller one has, and says where these places
are. A step that mixes rows, or that the number of rows changes otherwise, has no such places, and ends the proof.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.extend import core

_OTHERWISE = "is computed in another way with more rows"
_COUNTS = "computes with the number of rows"


class NotProved(Exception):
    """The proof fails, with a reason; `scopes` are JAX's names of the steps of the program at which it does."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.scopes = ""


class Fact(enum.Enum):
    """A fact about a value besides the place of its rows."""

    OWN = "each element is the number of its row"
    TRUE = "all true"
    FALSE = "all false"
    COUNT = "how many rows there are: a number that is another in the two traces"
    MINUS_COUNT = "as COUNT, negative"
    OTHER = "another value in the two traces"


@dataclass(frozen=True)
class Columns:
    """Facts about indices along the last dimension: which are OWN, and whether others depend on the row's number."""

    own: tuple[bool, ...]
    indexed: bool


_DIFFER = (Fact.COUNT, Fact.MINUS_COUNT, Fact.OTHER)


@dataclass(frozen=True)
class Rows:
    """The place of the rows in a value.

    Attributes:
        axis: the dimension, which has outer * rows * inner elements, as if it were three.
        outer, inner: those sizes; None if the value does not change along the dimension, so that all are right.
        indexed: whether the value of a row depends on which row it is. If not, the added rows are copies of the first.
    """

    axis: int
    outer: int | None = 1
    inner: int | None = 1
    indexed: bool = False
    fact: Fact | Columns | None = None

    def differs(self) -> bool:
        """True if the two traces have different values here, on which nothing may depend."""
        return self.fact in _DIFFER


State = Rows | None
"""None for a value without rows, which does not depend on their number."""


def join(states: Sequence[State]) -> State:
    """The rows of an elementwise result of values with these rows."""
    joined: State = None
    for state in map(without_fact, states):
        if joined is None or state is None:
            joined = joined or state
            continue
        split, other = (joined, state) if joined.outer is not None else (state, joined)
        if split.axis != other.axis or (
            other.outer is not None and (split.outer, split.inner) != (other.outer, other.inner)
        ):
            raise NotProved("meets rows that are in other places")
        joined = replace(split, indexed=joined.indexed or state.indexed)
    return joined


def without_fact(state: State) -> State:
    """The rows without the fact.

    Raises:
        NotProved: the values differ.
    """
    if state is None or state.fact is None:
        return state
    if state.differs():
        raise NotProved(_COUNTS)
    return replace(state, fact=None)


@dataclass(frozen=True)
class EquationPair:
    """One equation of both traces, with the rows of its operands.

    Attributes:
        varying: for each result the dimension that has more elements in the larger trace; None if there is none.
    """

    small: Any
    large: Any
    operands: Sequence[State]
    varying: Sequence[int | None]
    walk: Walk

    @property
    def params(self) -> dict[str, Any]:
        return self.large.params

    def shape(self, operand: int) -> tuple[int, ...]:
        return self.large.invars[operand].aval.shape

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.large.outvars[0].aval.shape

    def is_whole(self, axis: int, size: Callable[[Any], int]) -> bool:
        """True if a size of the equation covers a whole dimension of the first operand, in both traces."""
        return all(size(e) == e.invars[0].aval.shape[axis] for e in (self.small, self.large))


_Rule = Callable[[EquationPair], Sequence[State]]
RULES: dict[str, _Rule] = {}
"""Rules by primitive: from the rows of operands to those of results. They raise `NotProved`."""

KNOWING: set[str] = set()
"""The primitives whose rules use facts."""

WALKING: set[_Rule] = set()
"""The rules of primitives that run programs, which are always called."""

# Parameters that may differ between the two traces: shapes and convolutions, compared separately, and programs.
_SHAPES = frozenset({"call", "shape", "new_sizes", "limit_indices", "slice_sizes", "sharding", "out_sharding"})
_PROGRAMS = frozenset({"jaxpr", "call_jaxpr", "cond_jaxpr", "body_jaxpr", "branches", "update_jaxpr"})
_HOW = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "policy", "ctx_mesh", "name"})


def rule(*primitives: str) -> Callable[[_Rule], _Rule]:
    """Registers a rule for primitives."""

    def register(fn: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(primitives, fn))
        return fn

    return register


class Walk:
    """The walk through two traces of a program, with `real` rows and with `padded`."""

    def __init__(self, real: int, padded: int) -> None:
        self.real, self.padded = real, padded

    def __call__(self, small: Any, large: Any, states: Sequence[State]) -> list[State]:
        """The rows of the results of a closed jaxpr, of those of its operands.

        Raises:
            NotProved: some value has rows in no known places.
        """
        if small.jaxpr is large.jaxpr and not any(states):
            return [None] * len(large.jaxpr.outvars)
        env: dict[Any, State] = {}
        same: dict[Any, Any] = {}
        pairs = zip(small.jaxpr.constvars, large.jaxpr.constvars, small.consts, large.consts, strict=True)
        for a, b, of_a, of_b in pairs:
            same[a], env[b] = b, self._constant(of_a, of_b)
        for a, b, state in zip(small.jaxpr.invars, large.jaxpr.invars, states, strict=True):
            same[a], env[b] = b, state
        for a, b in zip(small.jaxpr.eqns, large.jaxpr.eqns, strict=False):
            try:
                self._step(a, b, env, same)
            except NotProved as error:
                error.scopes = f"{b.source_info.name_stack}/{error.scopes}"
                raise
        if len(small.jaxpr.eqns) != len(large.jaxpr.eqns):
            raise NotProved(_OTHERWISE)
        return [self._read(a, b, env, same) for a, b in zip(small.jaxpr.outvars, large.jaxpr.outvars, strict=True)]

    def _step(self, small: Any, large: Any, env: dict[Any, State], same: dict[Any, Any]) -> None:
        if small.primitive is not large.primitive:
            raise NotProved(_OTHERWISE)
        operands = [self._read(a, b, env, same) for a, b in zip(small.invars, large.invars, strict=True)]
        varying = [self._varying(a, b) for a, b in zip(small.outvars, large.outvars, strict=True)]
        self._compare(small.params, large.params)
        results: Sequence[State] = [None] * len(large.outvars)
        how = RULES.get(large.primitive.name)
        if how is not None and (any(operands) or any(v is not None for v in varying) or how in WALKING):
            told = operands if large.primitive.name in KNOWING else list(map(without_fact, operands))
            results = self._asked(how, EquationPair(small, large, told, varying, self))
        elif any(str(small.params[name]) != str(large.params[name]) for name in _PROGRAMS & large.params.keys()):
            raise NotProved(_OTHERWISE)
        elif any(operands) or any(v is not None for v in varying):
            raise NotProved(f"is not known to keep rows apart (XLA's {large.primitive.name})")
        for a, b, axis, state in zip(small.outvars, large.outvars, varying, results, strict=True):
            self._hold(state, axis, a, b)
            same[a], env[b] = b, state

    def _asked(self, how: _Rule, step: EquationPair) -> Sequence[State]:
        try:
            return how(step)
        except (KeyError, IndexError, ValueError, TypeError) as error:  # an unknown form of the operation
            name = step.large.primitive.name
            raise NotProved(f"is not known to keep rows apart (XLA's {name}: {error!r})") from error

    def _hold(self, state: State, axis: int | None, small: Any, large: Any) -> None:
        """Checks the result of a rule against the sizes."""
        if state is not None and state.axis < 0 and state.differs() and axis is None:  # a number
            return
        if (state.axis if state is not None else None) != axis:
            raise NotProved("mixes rows")
        if state is None or state.outer is None or state.inner is None:
            return
        block = state.outer * state.inner
        if (small.aval.shape[axis], large.aval.shape[axis]) != (block * self.real, block * self.padded):
            raise NotProved("has rows in places that are not known")

    def _read(self, small: Any, large: Any, env: dict[Any, State], same: dict[Any, Any]) -> State:
        if isinstance(large, core.Literal):
            return self._literal(small, large)
        if same.get(small) is not large:
            raise NotProved(_OTHERWISE)
        return env[large]

    def _literal(self, small: Any, large: Any) -> State:
        if isinstance(small, core.Literal) and _equal(small.val, large.val):
            return None
        for sign, fact in ((1, Fact.COUNT), (-1, Fact.MINUS_COUNT)):
            if isinstance(small, core.Literal) and (small.val, large.val) == (sign * self.real, sign * self.padded):
                return Rows(-1, fact=fact)
        raise NotProved(_COUNTS)

    def _varying(self, small: Any, large: Any) -> int | None:
        pairs = list(zip(small.aval.shape, large.aval.shape, strict=False))
        axes = [i for i, (a, b) in enumerate(pairs) if a != b]
        if len(small.aval.shape) != len(large.aval.shape) or small.aval.dtype != large.aval.dtype:
            raise NotProved(_OTHERWISE)
        if len(axes) > 1:
            raise NotProved("makes pairs of rows")
        if axes and pairs[axes[0]][0] * self.padded != pairs[axes[0]][1] * self.real:
            raise NotProved("has a size that is no multiple of the number of rows")
        return axes[0] if axes else None

    def _constant(self, small: Any, large: Any) -> State:
        """An array that a kernel created during tracing: the smaller one is the beginning of the larger one."""
        small, large = np.asarray(small), np.asarray(large)
        axes = [i for i, (a, b) in enumerate(zip(small.shape, large.shape, strict=False)) if a != b]
        begun = large[tuple(slice(n) for n in small.shape)] if small.ndim == large.ndim else large
        if len(axes) > 1 or not _equal(small, begun):
            raise NotProved(_COUNTS)
        if not axes:
            return None
        block, rest = divmod(small.shape[axes[0]], self.real)
        if rest or large.shape[axes[0]] != block * self.padded:
            raise NotProved("has a size that is no multiple of the number of rows")
        return Rows(axes[0], 1, block, indexed=True)

    def _compare(self, small: dict[str, Any], large: dict[str, Any]) -> None:
        for name, value in large.items():
            if name in _PROGRAMS or name in _SHAPES or name in _HOW:
                continue
            if name not in small or not _equal(small[name], value):
                raise NotProved(f"computes with the number of rows (XLA's {name})")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic) or hasattr(a, "__array__"):
        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(type(a) is type(b) and (a == b or (a != a and b != b)))
