"""Gradients of direct calls: one `autograd.Function` an op, on its companion `_vjp` op. Never imports JAX."""

if __name__ != "jaten_ops.autograd":
    raise ImportError("this is jaten_ops.autograd: import it by that name")

from . import attention, formulas
from .differentiability import keyed_spec, vjp_spec, vmap_spec
from .function import is_recorded, is_transformed, leaf_like, make_autograd_kernel

__all__ = [
    "attention",
    "formulas",
    "is_recorded",
    "is_transformed",
    "keyed_spec",
    "leaf_like",
    "make_autograd_kernel",
    "vjp_spec",
    "vmap_spec",
]
