"""Rules of convolutions and products of matrices, which XLA's CPU has a library compute.

A program with such a call alone is compiled in a fraction of the time that the transpositions around it take, which are
moves of elements. So only the call is compiled. Its operands must not be transposed right before it, unless a barrier
is between: XLA takes a transposition into the call, and the result differs in its last bits.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from ..xla.jitted import jitted
from .primitive_rules import NumpyStep, computed_by, interpreted_if

LIBRARY_CALLS = frozenset({"conv_general_dilated", "dot_general"})
SUMS = frozenset({"reduce_sum"})
"""Sums of floats, whose order is XLA's: compiled as a call is, where there is one in the same program."""


@functools.lru_cache(1024)
def _compiled(primitive: Primitive, params: tuple[tuple[str, Any], ...]) -> Any:
    """A program of one operation; `jax.jit` keeps one executable for each shape."""
    given = dict(params)

    def jaten_library_call(*operands: jax.Array) -> Any:
        return primitive.bind(*operands, **given)

    return jitted(jaten_library_call)


def _call(equation: Any) -> Any:
    interpreted_if(not equation.primitive.multiple_results)
    interpreted_if(all(v.aval.dtype in (np.float32, np.float64) for v in (*equation.invars, *equation.outvars)))
    return _compiled(equation.primitive, tuple(sorted(equation.params.items())))


@computed_by("dot_general")
def _product(equation: Any) -> NumpyStep:
    (terms, _), _ = equation.params["dimension_numbers"]
    interpreted_if(all(equation.invars[0].aval.shape[d] > 1 for d in terms))  # XLA multiplies elements instead
    return compiled_step(equation)


def compiled_step(equation: Any) -> NumpyStep:
    """The step of an equation that is compiled alone."""
    call = _call(equation)
    return lambda *operands: np.asarray(call(*operands))


@computed_by("conv_general_dilated")
def _convolved(equation: Any) -> NumpyStep:
    """With channels last, as XLA's libraries take it: others it would transpose; of groups it has a loop of its own."""
    params, last = equation.params, equation.invars[0].aval.ndim - 1
    image, kernel = (0, last, *range(1, last)), (last, last - 1, *range(last - 1))
    interpreted_if(params["dimension_numbers"] == lax.ConvDimensionNumbers(image, kernel, image))
    interpreted_if(params["feature_group_count"] == params["batch_group_count"] == 1)
    return compiled_step(equation)
