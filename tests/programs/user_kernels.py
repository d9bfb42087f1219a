"""Operators of users with all that schemas and kernels have, as functions of two matrices, beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

import jaten_ops

Function = Callable[[Tensor, Tensor], Tensor]
KINDS: dict[str, tuple[Function, Function]] = {}
"""By name: a function with an operator of a user, and the same function of torch's operators."""

own = torch.ops.jaten_kinds


def _op(schema: str, differentiable: str = "x", **options: Any) -> Callable[[Any], Any]:
    return jaten_ops.op(f"jaten_kinds::{schema}", differentiable=differentiable.split(), **options)


def _kind(name: str, function: Function, plain: Function) -> None:
    KINDS[name] = function, plain


_op("swish(Tensor x, float beta=1.0) -> Tensor")(lambda x, beta: x * jax.nn.sigmoid(beta * x))
_kind("number", lambda x, y: own.swish(x * y, 2.0), lambda x, y: x * y * torch.sigmoid(2 * x * y))
_kind("default", lambda x, y: own.swish(x) + y, lambda x, y: x * torch.sigmoid(x) + y)

_op("top(Tensor x, int k) -> (Tensor, Tensor)")(lambda x, k: lax.top_k(x, k))
_kind("result without gradient", lambda x, y: own.top(x * y, 2)[0], lambda x, y: (x * y).topk(2)[0])

_op("parts(Tensor x, int n) -> Tensor[]")(lambda x, n: [jnp.sin(part) for part in jnp.split(x, n, -1)])
_kind("list of results", lambda x, y: sum(own.parts(x * y, 2)), lambda x, y: sum(p.sin() for p in (x * y).chunk(2, 1)))
_kind("one of a list", lambda x, y: own.parts(x * y, 2)[1], lambda x, y: (x * y).chunk(2, 1)[1].sin())

_op("total(Tensor[] xs, float[] weights) -> Tensor", "xs")(
    lambda xs, weights: sum(x * w for x, w in zip(xs, weights, strict=True))
)
_kind("list of operands", lambda x, y: own.total([x, y, x * y], [1.0, 2.0, 0.5]), lambda x, y: x + 2 * y + x * y / 2)
_kind("operand given twice", lambda x, y: own.total([x, x, y], [1.0, 2.0, 0.5]), lambda x, y: 3 * x + y / 2)

_op("maybe(Tensor x, Tensor? y=None, float? c=None) -> Tensor", "x y")(
    lambda x, y, c: x * (2 if c is None else c) + (0 if y is None else y * y)
)
_kind("absent operand", lambda x, y: own.maybe(x) * y, lambda x, y: 2 * x * y)
_kind("optional operand", lambda x, y: own.maybe(x, y, c=3.0), lambda x, y: 3 * x + y * y)

_op("some(Tensor?[] xs, Tensor y) -> Tensor", "xs y")(lambda xs, y: y * 2 + sum(x for x in xs if x is not None))
_kind("absent in a list", lambda x, y: own.some([None, x, None, y], x * y), lambda x, y: 2 * x * y + x + y)


def _written(write: Callable[..., Any]) -> Function:
    def call(x: Tensor, y: Tensor) -> Tensor:
        a, b = y.clone(), y * 2
        write(a, b, x)
        return a * b + x

    return call


_op("accumulate_(Tensor(a!) total, Tensor x) -> Tensor(a!)", "total x")(lambda total, x: total + x * x)
_kind("returned operand", lambda x, y: own.accumulate_(y * 1, x), lambda x, y: y + x * x)
_op("scale_by(Tensor(a!) out, Tensor x) -> ()", "out x")(lambda out, x: jnp.cos(x) * out)
_kind(
    "written operand",
    _written(lambda a, b, x: own.scale_by(a, x)),
    _written(lambda a, b, x: a.mul_(x.cos())),
)
_kind(
    "written view",
    _written(lambda a, b, x: own.scale_by(a[1:], x[1:])),
    _written(lambda a, b, x: a[1:].mul_(x[1:].cos())),
)
_op("write_two(Tensor(a!) a, Tensor(b!) b, Tensor x) -> Tensor", "a b x")(lambda a, b, x: (x * a, a + x, b * x))
_kind(
    "two written operands",
    _written(lambda a, b, x: a.add_(own.write_two(a, b, x))),
    _written(lambda a, b, x: (a.add_(x).add_(x * (a - x)), b.mul_(x))),
)
_op("write_list(Tensor(a!)[] xs, Tensor y) -> ()", "xs y")(lambda xs, y: [x * y for x in xs])
_kind(
    "written list",
    _written(lambda a, b, x: own.write_list([a, b], x)),
    _written(lambda a, b, x: (a.mul_(x), b.mul_(x))),
)


_op("through(Tensor x) -> Tensor")(jnp.round)
jaten_ops.gradient("jaten_kinds::through")(lambda grads, args, results: {"x": grads[0]})
_kind(
    "own gradient", lambda x, y: own.through(x * 3) * y, lambda x, y: (x * 3 + ((x * 3).round() - x * 3).detach()) * y
)
_op("product(Tensor x, Tensor y) -> Tensor", "x y")(lambda x, y: x * y * 3)


@jaten_ops.gradient("jaten_kinds::product")
def _(grads: Any, args: Any, results: Any, wanted: Any) -> Any:
    found = {"x": lambda: grads[0] * args[1] * 3, "y": lambda: grads[0] * args[0] * 3}
    return {name: found[name]() for name in wanted}


_kind("own gradients as wanted", own.product, lambda x, y: x * y * 3)
_kind("own gradients of one operand", lambda x, y: own.product(x, x) + y, lambda x, y: x * x * 3 + y)


@jax.custom_vjp
def _sine(x: Any) -> Any:
    return jnp.sin(x)


_sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_jvp
def _sine_by_tangents(x: Any) -> Any:
    return jnp.sin(x)


_sine_by_tangents.defjvp(lambda at, tangents: (jnp.sin(at[0]), jnp.cos(at[0]) * tangents[0]))
_op("by_vjp(Tensor x) -> Tensor")(lambda x: _sine(x))
_op("by_jvp(Tensor x) -> Tensor")(lambda x: _sine_by_tangents(x))
_kind("custom_vjp", lambda x, y: own.by_vjp(x * y), lambda x, y: (x * y).sin())
_kind("custom_jvp", lambda x, y: own.by_jvp(x * y), lambda x, y: (x * y).sin())
_op("again(Tensor x) -> Tensor")(lambda x: jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)))(x))
_kind("jax.checkpoint", lambda x, y: own.again(x * y), lambda x, y: (x * y).sin().sin())
_op("recurrence(Tensor x, Tensor y) -> Tensor", "x y")(
    lambda x, y: lax.scan(lambda c, row: (c * jnp.cos(row) + row, None), y[0], x)[0]
)


def _recurrence(x: Tensor, y: Tensor) -> Tensor:
    c = y[0]
    for row in x:
        c = c * row.cos() + row
    return c


_kind("scan", own.recurrence, _recurrence)


def _inverse(x: Tensor) -> Tensor:
    products = (x.unsqueeze(-2) * x.unsqueeze(-3)).sum(-1)  # not `x @ x.mT`, which autocast would round
    return torch.linalg.inv(products + torch.eye(x.shape[-2], dtype=x.dtype, device=x.device))


_op("inverse(Tensor x) -> Tensor")(lambda x: jnp.linalg.inv(x @ x.T + jnp.eye(x.shape[0], dtype=x.dtype)))
_kind("linear algebra", lambda x, y: own.inverse(x * y), lambda x, y: _inverse(x * y))

_op("complex_of(Tensor x) -> Tensor")(lambda x: x * (1 + 2j))
_kind("complex result", lambda x, y: own.complex_of(x * y).abs(), lambda x, y: (x * y * (1 + 2j)).abs())
_op("order(Tensor x) -> Tensor", "")(lambda x: jnp.argsort(x, -1))
_kind("integer result", lambda x, y: (x * y).gather(-1, own.order(x)), lambda x, y: (x * y).gather(-1, x.argsort(-1)))
_op("is_positive(Tensor x) -> Tensor", "")(lambda x: x > 0)
_kind(
    "boolean result",
    lambda x, y: torch.where(own.is_positive(x), x, y),
    lambda x, y: torch.where(x > 0, x, y),
)
_op("mixed(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor)")(lambda x, y: (jnp.sin(x) * y, jnp.sum(x), x > y))
_kind(
    "three results",
    lambda x, y: (lambda a, b, c: a * b + c * y)(*own.mixed(x, y.detach())),
    lambda x, y: x.sin() * y.detach() * x.sum() + (x > y) * y,
)

_op("itself(Tensor x) -> Tensor")(lambda x: x)
_kind("the operand itself", lambda x, y: own.itself(x * 1).mul_(y), lambda x, y: (x * 1).mul_(y))
_op("twice(Tensor x) -> (Tensor, Tensor)")(lambda x: (jnp.sin(x),) * 2)
_kind(
    "one array as two results",
    lambda x, y: (lambda a, b: a.mul_(y) + b)(*own.twice(x + y * 0)),
    lambda x, y: x.sin() * y + x.sin(),
)
_op("ones(Tensor x) -> Tensor")(jnp.ones_like)
_kind("a constant", lambda x, y: own.ones(x) * y * x, lambda x, y: y * x)
_op("sum_of_squares(Tensor x) -> Tensor")(lambda x: jnp.sum(x * x))
_kind("no dimensions", lambda x, y: own.sum_of_squares(x) * y, lambda x, y: (x * x).sum() * y)
_op("none_of(Tensor x) -> Tensor")(lambda x: x[:0])
_kind("no elements", lambda x, y: torch.cat([own.none_of(x), x * y]), lambda x, y: x * y)
_op("turned(Tensor x) -> Tensor")(jnp.transpose)
_kind("a transpose", lambda x, y: own.turned(x) @ y, lambda x, y: x.mT @ y)

_op("reduce(Tensor x, int[] dims, bool keep, str how, Scalar s, *, ScalarType? dtype=None) -> Tensor")(
    lambda x, dims, keep, how, s, dtype: getattr(jnp, how)(x * s, axis=dims, keepdims=keep, dtype=dtype)
)
_kind(
    "static arguments",
    lambda x, y: own.reduce(x * y, [0], True, "sum", 2.5, dtype=torch.float64),
    lambda x, y: (x * y * 2.5).sum(0, True, dtype=torch.float64),
)
_op("reshaped(Tensor x, SymInt[] size) -> Tensor")(lambda x, size: jnp.reshape(x, size))
_kind(
    "sizes",
    lambda x, y: own.reshaped(x, [x.shape[1], x.shape[0]]).sin() * y.mT,
    lambda x, y: x.reshape(x.shape[1], x.shape[0]).sin() * y.mT,
)
_op("rows(Tensor x, SymInt n) -> Tensor")(lambda x, n: x[:n] * 2)
_kind("a size", lambda x, y: own.rows(x * y, x.shape[0] - 1), lambda x, y: 2 * (x * y)[: x.shape[0] - 1])
_op("filled(SymInt[] size, float value, *, Device? device=None, ScalarType? dtype=None) -> Tensor", "")(
    lambda size, value, dtype: jnp.full(size, value, dtype)
)
_kind(
    "a factory", lambda x, y: own.filled(x.shape, 2.0, device=x.device, dtype=x.dtype) * x + y, lambda x, y: 2 * x + y
)
_op("placed(Tensor x, *, Device? device=None) -> (Tensor, Tensor)")(lambda x: (x * 2, jnp.sum(x)))
_kind(
    "a device",
    lambda x, y: own.placed(x, device="cpu")[0].to(x.device) * own.placed(y, device=y.device)[1],
    lambda x, y: 2 * x * y.sum(),
)
_op("kept(Tensor x, float p) -> Tensor", tags=["nondeterministic_seeded"])(
    lambda x, p, key: jnp.where(jax.random.bernoulli(key, p, x.shape), x, 0)
)
_kind("random numbers", lambda x, y: own.kept(x, 1.0) * y, lambda x, y: x * y)


def _mix(operands: Any, c: float, *, n: int) -> dict[str, Any]:
    return {"mixed": operands["x"] * c + operands["others"][0] ** n}


_kind(
    "call_jax",
    lambda x, y: jaten_ops.call_jax(_mix, {"x": x, "others": [y]}, 2.5, n=2)["mixed"],
    lambda x, y: x * 2.5 + y**2,
)
_kind(
    "several operators",
    lambda x, y: own.swish(own.total([own.by_vjp(x), y], [1.0, 2.0]), 0.5) + own.top(y, 4)[0],
    lambda x, y: (lambda t: t * torch.sigmoid(t / 2))(x.sin() + 2 * y) + y.topk(4)[0],
)
