"""The transpose of a backward pass, which carries tangents forward.

ATen masks gradients where a factor is infinite or NaN, as in the gradient of a norm at zero. The transpose masks the
tangent first and then multiplies; so a zero tangent stays zero here, whatever its factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaten_ops.kernel_base.division import quotient

_NEAR_ZERO = 2.0**-10
_GOLDEN = (math.sqrt(5) - 1) / 2
_INLINED = ("jit", "pjit", "closed_call")


def transposed_backward(backward: ClosedJaxpr, kept: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The transpose of a backward pass, linear in its last operands, applied to tangents of its results.

    Its operations need not be linear: some clip gradients, and some take logarithms of them and mask those of zeros. So
    it is linearized first, near zero, and the products with the derivatives of its operations are transposed.
    """
    near_zero = [_near_zero(a, i) for i, a in enumerate(backward.in_avals[len(kept) :])]
    linear = jax.linearize(lambda *cotangents: jaxpr_as_fun(backward)(*kept, *cotangents), *near_zero)[1]
    program = jax.make_jaxpr(linear)(*near_zero)

    def pull(*cotangents: Any) -> list[Any]:
        return _Evaluation(program.jaxpr, program.consts, cotangents, [True] * len(cotangents)).run()[0]

    return list(jax.vjp(pull, *near_zero)[1](list(tangents)))


def _near_zero(aval: Any, index: int) -> jax.Array:
    """Small distinct numbers, so that differences of them are not zero."""
    numbers = jax.lax.iota(jnp.float32, aval.size) + 1 + index * math.pi
    return (_NEAR_ZERO * (1 + numbers * _GOLDEN % 1)).astype(aval.dtype).reshape(aval.shape)


class _Evaluation:
    """Evaluates a program with `scaled_p` in place of products with carried values."""

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any], carried: Sequence[bool]) -> None:
        self._jaxpr = jaxpr
        self._values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))
        self._carried = {v for v, is_carried in zip(jaxpr.invars, carried, strict=True) if is_carried}

    def _value(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._values[atom]

    def _is_carried(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self._carried

    def run(self) -> tuple[list[Any], list[bool]]:
        for eqn in self._jaxpr.eqns:
            flags = [self._is_carried(a) for a in eqn.invars]
            results, carried = self._apply(eqn, [self._value(a) for a in eqn.invars], flags)
            for var, result, is_carried in zip(eqn.outvars, results, carried, strict=True):
                self._values[var] = result
                if is_carried:
                    self._carried.add(var)
        outs = self._jaxpr.outvars
        return [self._value(v) for v in outs], [self._is_carried(v) for v in outs]

    def _apply(self, eqn: Any, operands: list[Any], flags: list[bool]) -> tuple[Sequence[Any], Sequence[bool]]:
        name = eqn.primitive.name
        if not any(flags):
            return _bound(eqn, operands), [False] * len(eqn.outvars)
        if name == "mul" and sum(flags) == 1:
            return [_product(eqn, *(operands if flags[1] else operands[::-1]))], [True]
        if (name == "div" or _is_quotient(eqn)) and flags == [True, False]:
            return [_product(eqn, 1 / operands[1], operands[0])], [True]
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if name in _INLINED and isinstance(inner, ClosedJaxpr):
            return _Evaluation(inner.jaxpr, inner.consts, operands, flags).run()
        return _bound(eqn, operands), [True] * len(eqn.outvars)


def _is_quotient(eqn: Any) -> bool:
    """True for the division of kernels, which has a derivative of its own."""
    debug_info = getattr(getattr(eqn.params.get("call_jaxpr"), "jaxpr", None), "debug_info", None)
    return eqn.primitive.name == "custom_jvp_call" and getattr(debug_info, "func_name", "") == quotient.__name__


def _product(eqn: Any, factor: Any, carried: Any) -> Any:
    shape = eqn.outvars[0].aval.shape
    return scaled_p.bind(jnp.broadcast_to(factor, shape), jnp.broadcast_to(carried, shape))


def _bound(eqn: Any, operands: list[Any]) -> list[Any]:
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


# A product, linear in its second operand, and zero where that is zero

scaled_p = Primitive("torch_scaled")


def _scaled(factor: Any, carried: Any) -> Any:
    return jnp.where(carried == 0, jnp.zeros((), carried.dtype), jnp.asarray(factor) * carried)


scaled_p.def_impl(_scaled)


@scaled_p.def_abstract_eval
def _abstract(factor: Any, carried: Any) -> Any:
    return carried.update(weak_type=False)


mlir.register_lowering(scaled_p, mlir.lower_fun(_scaled, multiple_results=False))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The transpose with respect to the second operand: the first is constant wherever this is used."""
    result = scaled_p.bind(*primals)
    if type(tangents[1]) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, scaled_p.bind(primals[0], ad.instantiate_zeros(tangents[1]))


def _transpose(cotangent: Any, factor: Any, carried: Any) -> list[Any]:
    return [None, cotangent if type(cotangent) is ad.Zero else scaled_p.bind(factor, cotangent)]


ad.primitive_jvps[scaled_p] = _jvp
ad.primitive_transposes[scaled_p] = _transpose


def _batch(operands: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, int]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    first = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, dims, strict=True)
    ]
    return scaled_p.bind(*first), 0


batching.primitive_batchers[scaled_p] = _batch
