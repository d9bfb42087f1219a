"""Python numbers that are operands of a program: an optimizer's learning rate, momentum, weight decay.

While a step is traced, a parameter group has a `torch.SymFloat` in place of each float. It supports arithmetic, and
operators take it as a number. Its value is known as well, so that `if weight_decay != 0` can be decided; the decision
is then a condition of the program.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from ..errors import UnsupportedInputError

Values = Sequence[float]
Known = Callable[[Values], Any]  # from the values of the numbers to the value of an expression


class Assumptions:
    """Assumptions of a program about the numbers that it is called with."""

    def __init__(self, values: Values) -> None:
        self.values = list(values)
        self.asked: list[tuple[Known, Any]] = []
        self._last = self.values  # the values at which the conditions held

    def ask(self, known: Known) -> Any:
        """The value of an expression, which is assumed from then on."""
        answer = known(self.values)
        self.asked.append((known, answer))
        return answer

    def hold(self, values: Values) -> bool:
        if values == self._last:
            return True
        try:
            found = all(known(values) == answer for known, answer in self.asked)
        except ArithmeticError:  # for example 1 / lr with a rate of 0: the step is traced then, and raises it
            return False
        if found:
            self._last = list(values)
        return found


def refusal(what: str, where: str = "") -> UnsupportedInputError:
    """The error of a step that reads a value which only the executable computes.

    Args:
        what: how it is read.
        where: the place in the program, as `place_of_call` has it.
    """
    return UnsupportedInputError(
        "a step", f"one that reads the value of a tensor ({what}){where}",
        "one that does not: return the tensor and read it after the step, select with torch.where, or pass the value"
        " as an argument; or keep that part out of the step",
    )  # fmt: skip


class Truth:
    """A comparison of numbers: the node of a torch `SymBool`."""

    def __init__(self, known: Known | None, conditions: Assumptions) -> None:
        self._known, self._conditions = known, conditions

    def guard_bool(self, file: str, line: int) -> bool:
        if self._known is None:
            raise refusal("a number made of it is compared")
        return bool(self._conditions.ask(self._known))

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def expect_true(self, file: str, line: int) -> bool:
        """True for conditions that torch takes for granted, as that the base of a power is not negative."""
        return True if self._known is None else self.guard_bool(file, line)

    guard_or_false = guard_or_true = guard_size_oblivious = guard_bool
    is_bool = is_symbolic = lambda self: True
    is_int = is_float = is_constant = is_nested_int = lambda self: False
    maybe_as_bool = maybe_as_int = maybe_as_float = lambda self: None

    def has_hint(self) -> bool:
        return self._known is not None

    def sym_not(self) -> Truth:
        known = self._known
        return Truth(None if known is None else lambda values: not known(values), self._conditions)

    def _graph_repr(self) -> str:
        return "a comparison in a traced step"

    str = _graph_repr


class Number:
    """An expression of numbers: the node of a torch `SymFloat`, with the private methods that torch calls.

    Args:
        known: its value; None if it depends on the value of a tensor.
        array: makes the traced array.
        conditions: what the program assumes.
    """

    def __init__(self, known: Known | None, array: Callable[[], Any], conditions: Assumptions) -> None:
        self._known, self._make, self._conditions = known, array, conditions
        self._array: Any = None

    @property
    def array(self) -> Any:
        """A weakly typed 0-d traced array, the form in which kernels take a number."""
        if self._array is None:
            self._array = self._make()
        return self._array

    def known(self) -> Known:
        """The value of the expression, as a function of the values of its numbers."""
        if self._known is None:
            raise refusal("a number made of it leaves the step")
        return self._known

    def guard_float(self, file: str, line: int) -> float:
        if self._known is None:
            raise refusal("as a Python float")
        return float(self._conditions.ask(self._known))

    is_float = is_symbolic = lambda self: True
    is_int = is_bool = is_constant = is_nested_int = lambda self: False
    maybe_as_bool = maybe_as_int = maybe_as_float = lambda self: None

    def has_hint(self) -> bool:
        return self._known is not None

    def sym_float(self) -> Number:
        return self

    def clone(self) -> Number:
        return self

    def wrap_float(self, value: float) -> Number:
        return Number(lambda _: value, lambda: value, self._conditions)

    def wrap_int(self, value: int) -> Number:
        return self.wrap_float(float(value))

    wrap_bool = wrap_int

    def _graph_repr(self) -> str:
        return "a number in a traced step" if self._known is None else str(self._known(self._conditions.values))

    str = _graph_repr

    def _with(self, other: Number, fn: Callable[..., Any]) -> Known | None:
        mine, its = self._known, other._known
        return None if mine is None or its is None else lambda values: fn(mine(values), its(values))


def _binary(fn: Callable[..., Any], of_arrays: Callable[..., Any]) -> Callable[..., Number]:
    def method(self: Number, other: Number) -> Number:
        return Number(self._with(other, fn), lambda: of_arrays(self.array, other.array), self._conditions)

    return method


def _unary(fn: Callable[..., Any], of_array: Callable[..., Any]) -> Callable[..., Number]:
    def method(self: Number) -> Number:
        known = self._known
        return Number(
            None if known is None else lambda values: fn(known(values)), lambda: of_array(self.array), self._conditions
        )

    return method


def _comparison(fn: Callable[..., bool]) -> Callable[..., Truth]:
    return lambda self, other: Truth(self._with(other, fn), self._conditions)


_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (operator.add, jnp.add),
    "sub": (operator.sub, jnp.subtract),
    "mul": (operator.mul, jnp.multiply),
    "mod": (operator.mod, jnp.mod),
    "float_truediv": (operator.truediv, jnp.divide),
    "float_pow": (operator.pow, jnp.power),
    "pow": (operator.pow, jnp.power),
    "sym_max": (max, jnp.maximum),
    "sym_min": (min, jnp.minimum),
}
_UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "neg": (operator.neg, jnp.negative),
    "pos": (operator.pos, jnp.positive),
    "abs": (abs, jnp.abs),
    **{f"sym_{name}": (getattr(math, name), getattr(jnp, name)) for name in ("sqrt", "exp", "log", "cos", "sin")},
}
for _name, (_fn, _of_arrays) in _BINARY.items():
    setattr(Number, _name, _binary(_fn, _of_arrays))
for _name, (_fn, _of_arrays) in _UNARY.items():
    setattr(Number, _name, _unary(_fn, _of_arrays))
for _name in ("eq", "ne", "gt", "lt", "le", "ge"):
    setattr(Number, _name, _comparison(getattr(operator, _name)))


def symbol(number: Number) -> torch.SymFloat:
    """A number for Python code."""
    return torch.SymFloat(number)


def node_of(value: Any) -> Number | None:
    """The node of one of jaten's `SymFloat`s."""
    node = getattr(value, "node", None)
    return node if isinstance(node, Number) else None
