"""Calls of LAPACK one after another, where a program has several that do not depend on each other.

JAX's calls share a batch out to the threads of XLA's pool and wait for them, in a thread of that pool if XLA computes
several things at once: as many calls as there are threads wait for ever (JAX 0.10). Here each takes something of what
the one before it made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jaten_ops.xla.equations import rebind

from .steps import bodies_of, body_of

_OF_LAPACK = frozenset({
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur",
    "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
})  # fmt: skip
_CALLS = frozenset({"closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit"})


def has_turns(text: str) -> bool:
    """True if a program, given as StableHLO, calls LAPACK; a function in it may be called several times."""
    return "@lapack_" in text


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that computes what `fn` does, for `jax.jit`, with the calls in the order of the program."""

    @functools.wraps(fn)
    def call(*arrays: Any) -> Any:
        program, shape = jax.make_jaxpr(fn, return_shape=True)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), _run(program, jax.tree.leaves(arrays), []))

    return call


def _run(program: core.ClosedJaxpr, values: Sequence[Any], before: list[Any]) -> list[Any]:
    """The results of a program. What the last call made is, or comes to be, in `before`."""
    jaxpr = program.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.invars, values, strict=True))
    known |= dict(zip(jaxpr.constvars, program.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = list(map(read, equation.invars))
        if not _calls_lapack(equation):
            results = rebind(equation, operands)
        elif equation.primitive.name in _CALLS:
            results = _run(body_of(equation), operands, before)
        else:
            results = rebind(equation, _after(before, operands))
            before[:] = [r for r in results if np.size(r)][:1] or before
        known.update(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def _calls_lapack(equation: Any) -> bool:
    if equation.primitive.name in _OF_LAPACK:
        return True
    return any(_calls_lapack(inner) for body in bodies_of(equation) for inner in body.eqns)


def _after(before: list[Any], operands: list[Any]) -> list[Any]:
    """Operands of which the first array is there when what a call made is."""
    at = next((i for i, x in enumerate(operands) if jnp.ndim(x) and jnp.issubdtype(x.dtype, jnp.inexact)), None)
    if not before or at is None:
        return operands
    element = lax.reshape(before[0], (before[0].size,))[0]
    # never: but XLA does not know how many bits a number has that is 0 or 1
    never = lax.gt(lax.population_count(lax.convert_element_type(lax.ne(element, element), np.int32)), np.int32(1))
    operand = operands[at]
    operand = lax.select(jnp.broadcast_to(never, operand.shape), jnp.zeros_like(operand), operand)
    return [*operands[:at], operand, *operands[at + 1 :]]
