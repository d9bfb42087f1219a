"""Arrays in row-major order inside a program for a CPU: XLA gives what a program computes any order in memory.

XLA folds transpositions into the operations that read them. That is free, or makes a product of another kind: of
factors in bfloat16 that are not in row-major order it computes the product in float32, or finds no product at all.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.experimental import layout
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import cpu_features

in_order_p = Primitive("in_order")
"""Takes an array and gives it; its parameters are those of `in_order`."""


def in_order(x: jax.Array, *, is_partitioned: bool = False, is_moved: bool | None = None) -> jax.Array:
    """The same array; a program for a CPU folds nothing that made it into what reads it.

    Programs for other platforms have nothing of it. Sizes may be open.

    Args:
        x: the array.
        is_partitioned: whether it is over several devices.
        is_moved: whether it is transposed where it does not lie in the order of its dimensions already. By default it
            is on processors that multiply bfloat16.
    """
    moved = cpu_features.multiplies_bfloat16() if is_moved is None else is_moved
    found: jax.Array = in_order_p.bind(x, is_partitioned=is_partitioned, is_moved=moved)
    return found


in_order_p.def_impl(lambda x, **_: x)  # all arrays outside of programs are
in_order_p.def_abstract_eval(lambda x, **_: x)


def _lowered(ctx: Any, x: Any, *, is_partitioned: bool, is_moved: bool) -> Any:
    # XLA's name for the order is no part of exported programs, and nothing that XLA partitions
    is_plain = is_partitioned or ctx.module_context.lowering_parameters.for_export
    on_cpu = _constrained if not is_plain and is_moved else lax.optimization_barrier
    return mlir.lower_fun(on_cpu, multiple_results=False)(ctx, x)


def _constrained(x: jax.Array) -> jax.Array:
    # dimensions of one element are anywhere in memory: in order with them XLA would copy what it need not
    several = lax.squeeze(x, [d for d, n in enumerate(x.shape) if n == 1])
    if several.ndim < 2:
        return lax.optimization_barrier(x)
    found = layout.with_layout_constraint(several, layout.Layout(tuple(range(several.ndim))))
    return lax.reshape(found, x.shape)


mlir.register_lowering(in_order_p, lambda _, x, **__: [x])
mlir.register_lowering(in_order_p, _lowered, platform="cpu")
ad.deflinear2(in_order_p, lambda cotangent, _, **__: (cotangent,))


def _batch(operands: Any, dims: Any, **given: Any) -> tuple[jax.Array, int]:
    front = batching.bdim_at_front(operands[0], dims[0], operands[0].shape[dims[0]])
    return in_order(front, **given), 0


batching.primitive_batchers[in_order_p] = _batch
