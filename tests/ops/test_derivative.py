"""Derivatives of operators: lists in which a tensor may be absent, and gradients of users that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import jaten_ops
from jaten_ops.errors import KernelResultError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

NAMESPACE = "jaten_test_derivative"
OPS = getattr(torch.ops, NAMESPACE)
F = torch.func


def _kernel(xs, ys, scale):
    return [x * scale if y is None else x * y * y for x, y in zip(xs, ys, strict=True)]


_SCHEMA = "(Tensor[] xs, Tensor?[] ys, float scale) -> Tensor[]"
jaten_ops.op(f"{NAMESPACE}::by_jax{_SCHEMA}", differentiable=["xs", "ys"])(_kernel)
jaten_ops.op(f"{NAMESPACE}::by_formula{_SCHEMA}", differentiable=["xs", "ys"])(_kernel)


@jaten_ops.gradient(f"{NAMESPACE}::by_formula")
def _by_formula(grads: list[Tensor], args: list[Any], results: list[Tensor]) -> dict[str, Any]:
    xs, ys, scale = args
    of_ys = [None if y is None else 2 * g * x * y for g, x, y in zip(grads, xs, ys, strict=True)]
    return {"xs": _kernel(grads, ys, scale), "ys": of_ys}


Program = Callable[[Callable[..., list[Tensor]], Tensor, Tensor], Any]


def _total(op: Callable[..., list[Tensor]], x: Tensor, y: Tensor) -> Tensor:
    first, second, third = op([x, y, x], [None, x, y], 3.0)
    return (first.sin() + second + third).sum()


def _twice(op: Callable[..., list[Tensor]], x: Tensor, y: Tensor) -> Any:
    first = torch.autograd.grad(_total(op, x, y), (x, y), create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), (x, y))


PROGRAMS: dict[str, Program] = {
    "gradient": lambda op, x, y: torch.autograd.grad(_total(op, x, y), (x, y)),
    "of a gradient": _twice,
    "forward": lambda op, x, y: F.jvp(lambda x, y: _total(op, x, y), (x.detach(), y.detach()), (y, x)),
    "hessian": lambda op, x, y: F.hessian(lambda y: _total(op, x.detach(), y))(y.detach()),
    "batch": lambda op, x, y: torch.vmap(F.grad(lambda x: _total(op, x, y[0])))(x.detach()),
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("op", ["by_jax", "by_formula"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_tensor_of_a_list_may_be_absent(program: str, op: str, device: str) -> None:
    x, y = (torch.linspace(-1, n, 6).reshape(2, 3).requires_grad_() for n in (1, 2))
    on_device = [t.detach().to(device).requires_grad_() for t in (x, y)]
    got = PROGRAMS[program](getattr(OPS, op), *on_device)
    assert_close(got, PROGRAMS[program](_kernel, x, y), check_device=False)


@pytest.mark.parametrize("op", ["by_jax", "by_formula"])
def test_compiled(op: str) -> None:
    x, y = (torch.linspace(-1, n, 6).reshape(2, 3).requires_grad_() for n in (1, 2))
    compiled = torch.compile(lambda x, y: _total(getattr(OPS, op), x, y), backend="jaten", fullgraph=True)
    got, expected = (torch.autograd.grad(total, (x, y)) for total in (compiled(x, y), _total(_kernel, x, y)))
    assert_close(got, expected)


@jaten_ops.op(f"{NAMESPACE}::wrong(Tensor[] xs, Tensor y, int n) -> Tensor", differentiable=["xs"])
def _wrong(xs, y, n):
    return sum(xs) * y * n


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "nothing": (lambda g: None, "NoneType"),
    "no dict": (lambda g: [g, g], "list"),
    "no argument": (lambda g: {"x": [g, g]}, "one of 'x'"),
    "not differentiable": (lambda g: {"xs": [g, g], "y": g}, "one of 'y'"),
    "one for a list": (lambda g: {"xs": g}, "Tensor of 'xs', a list of 2"),
    "a shorter list": (lambda g: {"xs": [g]}, "of 'xs', a list of 2"),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_an_error(name: str, compiled: bool) -> None:
    gradient, words = WRONG[name]
    jaten_ops.gradient(f"{NAMESPACE}::wrong")(lambda grads, args, results: gradient(grads[0]))
    call = torch.compile(OPS.wrong, backend="jaten") if compiled else OPS.wrong
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    with pytest.raises(Exception, match=words) as caught:
        call([x, y], torch.ones(3), 2).sum().backward()
    assert compiled or caught.type is KernelResultError
