"""Programs over direct operators, operators of users and JAX functions, beside the same in torch's functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

import jaten_ops

from .programs import SMOOTH, add, one, rand, two

J = torch.ops.jaten


@jaten_ops.op("jaten_combinations::swish(Tensor x, float beta=1.0) -> Tensor", differentiable=["x"])
def _swish_kernel(x: Any, beta: Any) -> Any:
    return x * jax.nn.sigmoid(beta * x)


@jaten_ops.op("jaten_combinations::halves(Tensor x) -> (Tensor, Tensor)", differentiable=["x"])
def _halves_kernel(x: Any) -> Any:
    return jnp.sin(x), jnp.cos(x) * x


@jaten_ops.gradient("jaten_combinations::halves")
def _halves_gradient(grads: list[Tensor], args: list[Any], results: list[Tensor]) -> dict[str, Tensor]:
    (x,) = args
    sine, cosine = J.sin(x), J.cos(x)
    first = J.mul.Tensor(grads[0], cosine)
    second = J.mul.Tensor(grads[1], J.sub.Tensor(cosine, J.mul.Tensor(x, sine)))
    return {"x": J.add.Tensor(first, second)}


@jaten_ops.op(
    "jaten_combinations::product(Tensor[] factors, Tensor? scale=None) -> Tensor", differentiable=["factors", "scale"]
)
def _product_kernel(factors: Any, scale: Any) -> Any:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result if scale is None else result * scale


@jaten_ops.op(
    "jaten_combinations::accumulate_(Tensor(a!) total, Tensor x) -> Tensor(a!)", differentiable=["total", "x"]
)
def _accumulate_kernel(total: Any, x: Any) -> Any:
    return total + jnp.sin(x)


def _cube_and_sum(x: Any, y: Any) -> Any:
    return x**3 * y, jnp.sum(x, -1)


OPERATORS = (*SMOOTH, "operators")


@add(*OPERATORS, inputs=two, plain=lambda x, y: x * x * y + y.sin())
def direct(x: Tensor, y: Tensor) -> Tensor:
    return J.add.Tensor(J.mul.Tensor(J.mul.Tensor(x, x), y), J.sin(y))


@add(*OPERATORS, inputs=lambda g, n: (rand(g, n, 4), rand(g, 4, 3)), plain=lambda x, w: (x @ w).softmax(-1) @ w.mT)
def direct_composites(x: Tensor, w: Tensor) -> Tensor:
    return J.matmul(J.softmax.int(J.matmul(x, w), -1), J.transpose.int(w, 0, 1))


@add(*OPERATORS, inputs=one, plain=lambda x: x * torch.sigmoid(1.5 * x) * x)
def users(x: Tensor) -> Tensor:
    return torch.ops.jaten_combinations.swish(x, 1.5) * x


@add(*OPERATORS, inputs=two, plain=lambda x, y: (x * 2 + y.sin()) * x.exp())
def users_writing(x: Tensor, y: Tensor) -> Tensor:
    total = x * 2
    return torch.ops.jaten_combinations.accumulate_(total, y) * x.exp()


def _plain_halves(x: Tensor) -> Tensor:
    return x.sin() * (x.cos() * x)


@add(*OPERATORS, inputs=one, plain=_plain_halves)
def users_gradient(x: Tensor) -> Tensor:
    a, b = torch.ops.jaten_combinations.halves(x)
    return a * b


@add(*OPERATORS, inputs=two, plain=lambda x, y: x * y * x.sin() * 2 * y)
def users_lists(x: Tensor, y: Tensor) -> Tensor:
    return torch.ops.jaten_combinations.product([x, y, x.sin()], 2 * y)


@add(*OPERATORS, inputs=two, plain=lambda x, y: x**3 * y + x.sum(-1, keepdim=True))
def jax_function(x: Tensor, y: Tensor) -> Tensor:
    cube, total = jaten_ops.call_jax(_cube_and_sum, x, y)
    return cube + total.unsqueeze(-1)
