"""Searches for NaN in large arrays, as extrema need them: where all is finite, by one product with zeros.

XLA's CPU has no vectors for a search, which takes several times as long as the maximum itself.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jaten_ops.cpu.dot_reductions import all_finite

from .rules import within
from .steps import Instruction, Listed, Value

_AROUND = frozenset({"cond", "custom_jvp_call", "reduce_or"})
_LEAST = 2**13  # elements: in fewer, nothing takes long


def with_quick_nan_checks(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program with its searches for NaN made only where something is not finite; the same object if it has none."""
    # within what has derivatives of its own, or is a form for CPUs
    if _AROUND.isdisjoint(e.primitive.name for e in program.jaxpr.eqns):
        return program
    listed = Listed(program)
    searches = {id(s): x for s in listed.steps if (x := _searched(s)) is not None}

    def apply(step: Instruction, known: dict[int, Any]) -> Any:
        if id(step) not in searches:
            return step.apply(known)
        made, axes = step.made[0].aval, step.equation.params["axes"]
        x = known[id(searches[id(step)])]

        def none(_: jax.Array) -> jax.Array:
            return jnp.zeros(made.shape, made.dtype)

        with within(step.scope):
            return [lax.cond(all_finite(x), none, lambda x: lax.reduce_or(x != x, axes), x)]

    return listed.applied(apply) if searches else program


def _searched(step: Instruction) -> Value | None:
    """The array that a step searches for NaN; None for other steps."""
    compared = step.taken[0] if step.name == "reduce_or" and step.equation.params.get("out_sharding") is None else None
    maker = compared.maker if isinstance(compared, Value) else None
    if maker is None or maker.name != "ne" or not isinstance(maker.taken[0], Value):
        return None
    x, other = maker.taken
    shape = x.aval.shape
    is_search = x is other and x.aval.dtype == np.float32 and bool(step.equation.params["axes"])
    return x if is_search and all(isinstance(n, int) for n in shape) and math.prod(shape) >= _LEAST else None
