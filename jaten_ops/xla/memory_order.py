"""Arrays in row-major order inside a program: XLA gives what a program computes any order in memory.

XLA folds transpositions into the operations that read them. That is free, or makes a product of another kind: of
factors in bfloat16 that are not in row-major order it computes the product in float32.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.experimental import layout
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

in_order_p = Primitive("in_order")
"""Takes an array and gives it."""


def in_order(x: jax.Array) -> jax.Array:
    """The same array; a program transposes it where it does not lie in the order of its dimensions already."""
    found: jax.Array = in_order_p.bind(x)
    return found


in_order_p.def_impl(lambda x: x)  # all arrays outside of programs are
in_order_p.def_abstract_eval(lambda x: x)


def _lowered(ctx: Any, x: Any) -> Any:
    # of an exported program XLA's name for it is no part
    is_exported = ctx.module_context.lowering_parameters.for_export
    return mlir.lower_fun(lax.optimization_barrier if is_exported else _constrained, multiple_results=False)(ctx, x)


def _constrained(x: jax.Array) -> jax.Array:
    # dimensions of one element are anywhere in memory: in order with them XLA would copy what it need not
    several = lax.squeeze(x, [d for d, n in enumerate(x.shape) if n == 1])
    if several.ndim < 2:
        return lax.optimization_barrier(x)
    found = layout.with_layout_constraint(several, layout.Layout(tuple(range(several.ndim))))
    return lax.reshape(found, x.shape)


mlir.register_lowering(in_order_p, _lowered)
ad.deflinear2(in_order_p, lambda cotangent, _: (cotangent,))


def _batch(operands: Any, dims: Any) -> tuple[jax.Array, int]:
    return in_order(batching.bdim_at_front(operands[0], dims[0], operands[0].shape[dims[0]])), 0


batching.primitive_batchers[in_order_p] = _batch
