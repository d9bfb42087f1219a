"""Convolutions in programs for a CPU: a primitive, which `cpu.layouts` finds again in a traced program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import ad, batching, mlir

from ..arrays.strides import Shape
from ..interpreter.primitive_rules import EXPANSIONS
from ..kernel_base import conv_parts
from ..kernel_base.conv_parts import ConvCall
from ..kernel_base.promotion import cast
from ..xla import onednn
from . import conv_choice, conv_fold_full_dims

convolution_p = Primitive("cpu_convolution")
"""Takes two operands with channels first; its one parameter is a `ConvCall`."""


def compute(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    """The result of a call, of operands with channels first and of one real dtype."""
    return conv_fold_full_dims.folded(_bind, call, a, b)


def _bind(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    found: jax.Array = convolution_p.bind(a, b, call=call)
    return found


_jitted = jax.jit(conv_choice.compute, static_argnums=0)


@convolution_p.def_impl
def _impl(a: jax.Array, b: jax.Array, *, call: ConvCall) -> jax.Array:
    return _jitted(call, a, b)


@convolution_p.def_abstract_eval
def _abstract_eval(a: Any, b: Any, *, call: ConvCall) -> Any:
    # JAX's own rules say how the result is sharded, and over which axes of a mesh it varies
    return jax.make_jaxpr(lambda a, b: conv_parts.compute(call, a, b))(a, b).out_avals[0]


def _lowered(a: jax.Array, b: jax.Array, *, call: ConvCall) -> jax.Array:
    return conv_choice.compute(call, a, b)


def _expanded(equation: Any) -> ClosedJaxpr:
    call, types = equation.params["call"], [v.aval for v in equation.invars]
    return jax.make_jaxpr(lambda a, b: conv_choice.compute(call, a, b))(*types)


EXPANSIONS["cpu_convolution"] = _expanded
mlir.register_lowering(convolution_p, mlir.lower_fun(_lowered, multiple_results=False))


def _shape(operand: Any) -> Shape:
    return tuple(operand.aval.shape)


def _bind_in_one(call: ConvCall, a: jax.Array, b: jax.Array, wanted: Any) -> jax.Array:
    """The result of a call of operands of two dtypes, in the wider one, with the dtype of what is wanted.

    The cotangent of a wide result is of float32, and the other operand may be of half precision.
    """
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return cast(_bind(call, cast(a, dtype), cast(b, dtype)), wanted.aval.dtype)


def _transpose_first(cotangent: jax.Array, a: Any, b: jax.Array, *, call: ConvCall) -> jax.Array:
    """Each part is linear in both operands, and its transposes are the other parts."""
    part, windows = call.part, call.windows
    if part == "input_gradient":
        return _bind_in_one(ConvCall("forward", windows, ()), cotangent, b, a)
    of = cotangent if part == "forward" else b
    other = b if part == "forward" else cotangent
    return _bind_in_one(ConvCall("input_gradient", windows, _shape(a)), of, other, a)


def _transpose_second(cotangent: jax.Array, a: jax.Array, b: Any, *, call: ConvCall) -> jax.Array:
    part, windows = call.part, call.windows
    if part == "weight_gradient":
        return _bind_in_one(ConvCall("forward", windows, ()), a, cotangent, b)
    pair = (a, cotangent) if part == "forward" else (cotangent, a)
    return _bind_in_one(ConvCall("weight_gradient", windows, _shape(b)), *pair, b)


ad.defbilinear(convolution_p, _transpose_first, _transpose_second)


def _batch(operands: Sequence[Any], dims: Sequence[int | None], *, call: ConvCall) -> tuple[jax.Array, int]:
    with onednn.calling(is_allowed=False):  # which takes no batch of images
        return jax.vmap(lambda a, b: conv_choice.compute(call, a, b), tuple(dims))(*operands), 0


batching.primitive_batchers[convolution_p] = _batch
