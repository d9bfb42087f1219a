"""Values that a step reads and that are known before it: what it computes from its inputs, to branch or to count.

`x[mask]` needs the number of true elements, `if lengths.max() > 8:` a truth value. Where these depend on operands that
the step leaves as they are, on its arguments above all, they are computed from the arrays that the operands have while
the step is traced. The program is then one for these values, and each call computes them first, by a small program of
their own (`early_program.py`), to find the program that is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..program_lines import place_of_call
from ..xla.equations import programs_of
from ..xla.traced_constants import computed, equations_of, is_operand
from .numbers import refusal

_MOST = 2**12  # elements that a program may be one for
_PRODUCTS = ("dot_general", "conv_general_dilated")


class EarlyRead(NamedTuple):
    """A value that is read.

    Attributes:
        traced: the array that has it, of integers or truth values.
        value: it.
        operands: the numbers of those on which it depends.
        where: the place in the program.
    """

    traced: Any
    value: np.ndarray
    operands: frozenset[int]
    where: str


class EarlyReads:
    """The values that a step has read early, while it is traced."""

    def __init__(self) -> None:
        self.are_allowed = True
        self._known: dict[int, EarlyRead] = {}

    def value(self, array: Any, array_of: Callable[[int], Any]) -> np.ndarray | None:
        """The value of an array that JAX traces, on which the program then depends; None if it is not known before.

        Products of matrices and convolutions are not computed twice: what is made of them is not known.

        Args:
            array: the array.
            array_of: the array of an operand, by its number; None if it has no values before the program runs.
        """
        known = self._known.get(id(array))
        if known is not None:
            return known.value
        if not self.are_allowed or array.dtype.kind not in "bi" or array.size > _MOST:
            return None
        equations = equations_of(array, takes_operands=True)
        if equations is None or any(map(_has_products, equations)):
            return None
        arrays = {n: array_of(n) for e in equations if is_operand(e) for n in [e.params["index"]]}
        if any(found is None for found in arrays.values()):
            return None
        value = np.asarray(computed(array, equations, arrays))
        self._known[id(array)] = EarlyRead(array, value, frozenset(arrays), place_of_call())
        return value

    @property
    def found(self) -> list[EarlyRead]:
        """The values, in the order in which they were read."""
        return [*self._known.values()]

    def check(self, written: Iterable[int]) -> None:
        """Raises if a value depends on one of these operands, which the step writes to.

        Raises:
            UnsupportedInputError: it does. Each call would be likely to need a program of its own.
        """
        changed = frozenset(written)
        for read in self.found:
            if read.operands & changed:
                raise refusal("one that is computed from what the step changes", read.where)


def _has_products(equation: Any) -> bool:
    """True if an equation, or one within it, is a product of matrices or a convolution."""
    if equation.primitive.name in _PRODUCTS:
        return True
    return any(_has_products(inner) for program in programs_of(equation) for inner in program.eqns)
