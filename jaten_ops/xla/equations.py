"""Equations of programs that JAX has traced: those that compute element by element, and all for other operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp
clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
igamma igammac imag integer_pow is_finite le lgamma log log1p log2 logistic lt max min mul ne neg nextafter not
one_minus_square or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt
select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
xor zeta
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""The names of the primitives that compute each element of a result from those at the same place."""


def rebind(equation: Any, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    """The results of an equation's primitive for other operands, with some of its parameters changed."""
    params = equation.primitive.get_bind_params(equation.params | changed)  # of some that hold functions it makes them
    with equation.ctx.manager:
        results = equation.primitive.bind(*arrays, **params)
    return results if equation.primitive.multiple_results else [results]


def programs_of(equation: Any) -> list[Any]:
    """The programs among the parameters of an equation."""
    found = [getattr(v, "jaxpr", v) for v in jax.tree.leaves(equation.params, is_leaf=_is_program)]
    return [p for p in found if hasattr(p, "eqns")]


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
