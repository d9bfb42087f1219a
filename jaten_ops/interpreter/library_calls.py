"""Rules of convolutions and products of matrices, which XLA's CPU has a library compute.

A program with such a call alone is compiled in a fraction of the time that all around it takes, most of which are moves
of elements. So only the call is compiled, with the transpositions right before and after it, unless a barrier is
between: XLA takes them into the call, which changes the last bits of its result.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from ..xla.jitted import jitted
from .primitive_rules import NumpyStep, computed_by, interpreted_if

LIBRARY_CALLS = frozenset({"conv_general_dilated", "dot_general"})
SUMS = frozenset({"reduce_sum"})
"""Sums of floats, whose order is XLA's: compiled as a call is, where there is one in the same program."""


class _Bound(NamedTuple):
    """A primitive with its parameters."""

    primitive: Primitive
    params: tuple[tuple[str, Any], ...]

    def __call__(self, *operands: Any) -> Any:
        return self.primitive.bind(*operands, **dict(self.params))


def _bound(equation: Any) -> _Bound:
    return _Bound(equation.primitive, tuple(sorted(equation.params.items())))


_Chain = tuple[_Bound, ...]


def _moved(value: Any, chain: _Chain) -> Any:
    for move in chain:
        value = move(value)
    return value


@functools.lru_cache(1024)
def _compiled(call: _Bound, before: tuple[_Chain, ...], after: _Chain) -> Any:
    """A program of one operation, and moves around it; `jax.jit` keeps one executable for each shape."""

    def jaten_library_call(*operands: jax.Array) -> Any:
        taken = [_moved(operand, chain) for operand, chain in zip(operands, before, strict=True)]
        return _moved(call(*taken), after)

    return jitted(jaten_library_call)


class LibraryCall:
    """A step that is compiled.

    Args:
        compiled: its program.

    Attributes:
        seconds: how long it has taken so far, its compile among them.
    """

    __slots__ = ("_compiled", "seconds")

    def __init__(self, compiled: Any) -> None:
        self._compiled, self.seconds = compiled, 0.0

    def __call__(self, *operands: Any) -> Any:
        start = time.perf_counter()
        found = np.asarray(self._compiled(*operands))
        self.seconds += time.perf_counter() - start
        return found


def _is_compiled_alone(equation: Any) -> bool:
    is_one = not equation.primitive.multiple_results
    return is_one and all(v.aval.dtype in (np.float32, np.float64) for v in (*equation.invars, *equation.outvars))


def compiled_step(equation: Any) -> NumpyStep:
    """The step of an equation that is compiled alone."""
    return step_between(equation, [[]] * len(equation.invars), [])


def step_between(equation: Any, before: Sequence[Sequence[Any]], after: Sequence[Any]) -> NumpyStep:
    """The step of an equation that is compiled with moves of elements around it.

    Args:
        equation: of a primitive with one result.
        before: for each operand the equations that move its elements.
        after: those that move the result's.
    """
    interpreted_if(_is_compiled_alone(equation))
    chains = tuple([tuple(map(_bound, chain)) for chain in before])
    return LibraryCall(_compiled(_bound(equation), chains, tuple(map(_bound, after))))


@computed_by("dot_general")
def _product(equation: Any) -> NumpyStep:
    (terms, _), _ = equation.params["dimension_numbers"]
    interpreted_if(all(equation.invars[0].aval.shape[d] > 1 for d in terms))  # XLA multiplies elements instead
    interpreted_if(equation.outvars[0].aval.size > 1)  # it adds such products up in the order before any reshape
    return compiled_step(equation)


@computed_by("conv_general_dilated")
def _convolved(equation: Any) -> NumpyStep:
    """With channels last, as XLA's libraries take it: others it would transpose; of groups it has a loop of its own."""
    params, last = equation.params, equation.invars[0].aval.ndim - 1
    image, kernel = (0, last, *range(1, last)), (last, last - 1, *range(last - 1))
    interpreted_if(params["dimension_numbers"] == lax.ConvDimensionNumbers(image, kernel, image))
    interpreted_if(params["feature_group_count"] == params["batch_group_count"] == 1)
    return compiled_step(equation)
