"""torch's symbolic sizes as JAX's symbolic dimensions, and back, so that one trace of a kernel serves all sizes.

Each symbol of torch becomes one of JAX's dimension variables, and expressions of symbols become the same expressions
of variables. Results' sizes come back by their text, whose grammar `jax.export.symbolic_shape` documents.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax._src.core
import torch
from jax import export

try:
    Undecided: type[Exception] = jax.errors.InconclusiveDimensionOperation
except AttributeError:  # private before JAX 0.10.1
    Undecided = jax._src.core.InconclusiveDimensionOperation
"""The class of JAX's error for a question about symbolic sizes that has no answer."""

_VARIABLES = 64
_FUNCTIONS = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": torch.sym_max,
    "min": torch.sym_min,
    "__builtins__": {},
}


# by the names of their classes: sympy, which has them, takes long to import
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}


def dimension_of(expr: Any, variable: Callable[[Any], Any]) -> Any:
    """An expression of torch's sizes in the form for JAX: an int, or an expression of dimension variables.

    Args:
        expr: the expression, of sympy.
        variable: what stands for a symbol, or for an expression that JAX has no words for.
    """
    if expr.is_Integer:
        return int(expr)
    name = type(expr).__name__
    if name == "Pow" and expr.exp.is_Integer and expr.exp > 0:
        return dimension_of(expr.base, variable) ** int(expr.exp)
    if name not in _OPERATIONS:
        return variable(expr)
    return _OPERATIONS[name](*(dimension_of(part, variable) for part in expr.args))


@functools.cache
def _variables() -> tuple[Any, ...]:
    """The dimension variables of all traces, so that these are cached; torch's symbolic sizes are at least 2."""
    names = [f"d{i}" for i in range(_VARIABLES)]
    scope = export.SymbolicScope([f"{name} >= 2" for name in names])
    return tuple(export.symbolic_shape(", ".join(names), scope=scope))


EqualSizes = tuple[torch.SymInt, torch.SymInt]
"""Two symbols, or expressions that JAX has no words for, with the same value in the call that torch traces."""


class SymbolicSizes:
    """The symbols of one call of a fake, numbered in the order in which they are met.

    Args:
        equal: pairs of which both have one variable, that of the first.
    """

    def __init__(self, equal: Sequence[EqualSizes] = ()) -> None:
        self._taken: dict[Any, tuple[Any, torch.SymInt]] = {}
        self._first = {second.node.expr: first.node.expr for first, second in equal}

    def to_jax(self, size: int | torch.SymInt) -> Any:
        """A size in the form for JAX: an int, or an expression of dimension variables."""
        if not isinstance(size, torch.SymInt):
            return size
        return dimension_of(size.node.expr, lambda expr: self._variable(expr, size))

    def _variable(self, expr: Any, size: torch.SymInt) -> Any:
        """The variable of a symbol, or of an expression that JAX has no words for."""
        expr = self._first.get(expr, expr)
        if expr not in self._taken:
            env = size.node.shape_env
            hint = env.guarding_hint_or_throw(expr) if env.has_guarding_hint(expr) else None
            own = size if expr == size.node.expr else env.create_symintnode(expr, hint=hint)
            self._taken[expr] = _variables()[len(self._taken)], own
        return self._taken[expr][0]

    def of_equal_hints(self) -> list[EqualSizes]:
        """Each symbol of the call with the first one before it that has the same value now."""
        firsts: dict[int, torch.SymInt] = {}
        pairs = []
        for _, own in self._taken.values():
            if own.node.has_hint() and (first := firsts.setdefault(own.node.hint, own)) is not own:
                pairs.append((first, own))
        return pairs

    def to_torch(self, size: Any) -> int | torch.SymInt:
        """A result's size, computed from the sizes of the call."""
        if isinstance(size, int):
            return size
        values = {str(variable): own for variable, own in self._taken.values()}
        return eval(str(size).replace("^", "**"), _FUNCTIONS, values)  # JAX's own text of an expression


def require_equal(pairs: Sequence[EqualSizes]) -> None:
    """Makes symbols equal for all calls of the graph that torch traces: a guard, or an error of `torch.export`."""
    for first, second in pairs:
        bool(first == second)
