"""Transpositions folded into the matrix products that take them, before XLA sees the program.

ATen's `linear` transposes its weight. XLA folds that into the product too, but for the product with one row: there it
copies the transposed weight at every call, which takes five times as long as the product itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core


def folded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that computes what `fn` does, for `jax.jit`."""

    @functools.wraps(fn)
    def call(*arrays: Any) -> Any:
        program, shape = jax.make_jaxpr(fn, return_shape=True)(*arrays)
        results = core.jaxpr_as_fun(_folded(program))(*jax.tree.leaves(arrays))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _folded(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    origins: dict[Any, tuple[core.Var, bool]] = {}  # what matrices are made of, and whether by one transposition
    equations = []
    for equation in program.jaxpr.eqns:
        name, operand = equation.primitive.name, equation.invars[0] if equation.invars else None
        if name == "transpose" and isinstance(operand, core.Var) and equation.params["permutation"] == (1, 0):
            source, is_transposed = origins.get(operand, (operand, False))
            origins[equation.outvars[0]] = source, not is_transposed
        equations.append(_of_origins(equation, origins) if name == "dot_general" else equation)
    return program.replace(jaxpr=program.jaxpr.replace(eqns=equations))


def _of_origins(product: Any, origins: dict[Any, tuple[core.Var, bool]]) -> Any:
    """A product of what its operands are transpositions of."""
    contracted, batch = product.params["dimension_numbers"]
    if any(map(len, batch)):
        return product
    found = [origins.get(x, (x, False)) if isinstance(x, core.Var) else (x, False) for x in product.invars]
    dims = tuple(tuple(1 - d for d in c) if flip else c for c, (_, flip) in zip(contracted, found, strict=True))
    numbers = dims, batch
    return product.replace(invars=[x for x, _ in found], params=product.params | {"dimension_numbers": numbers})
