"""Overrides of operators on every path, beside plain torch: a kernel, a gradient, or both, and that they really ran."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops
from jaten_ops.errors import (
    KernelResultError,
    UnsupportedInputError,
)

from .harness.crossings import crossed
from .harness.overridden import TARGETS, WAYS, classes, differentiated, override_of, scaled

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


PARTS = ("kernel", "gradient", "both")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "way", "parts"), crossed(TARGETS, WAYS, PARTS, strength=1))
def test_parity(name: str, way: str, parts: str) -> None:
    _, call, _ = TARGETS[name]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    y, grad = differentiated(lambda x: call(torch.ops.aten, x), x)
    override, run, pull = override_of(name, parts)
    with override:
        found, its_grad = WAYS[way](call, x)
    torch.testing.assert_close(found, y, atol=1e-5, rtol=1e-5)
    assert (run.count > 0) == (parts != "gradient")
    assert (pull.count > 0) == (parts != "kernel")
    if parts == "kernel":
        torch.testing.assert_close(its_grad, grad, atol=1e-5, rtol=1e-5)
    else:  # attention is called with x three times, of which the query gets 7
        assert torch.equal(its_grad, torch.full_like(x, 7))


def test_in_inference_mode() -> None:
    with scaled(3), torch.inference_mode():
        for run in (F.relu, torch.ops.jaten.relu, torch.compile(F.relu, backend="jaten")):
            assert run(torch.ones(2, device="jax"))[0].item() == 3
        assert torch.ops.jaten.relu(torch.ones(2))[0].item() == 3
        assert torch.compile(F.relu, backend="jaten")(torch.ones(2))[0].item() == 3
    kernel = jaten_ops.override("linear", kernel=lambda input, weight, bias: 3 * input @ weight.T)
    ones = torch.ones(2, 2)
    with kernel, torch.inference_mode():
        assert torch.ops.jaten.linear(ones, ones)[0, 0].item() == F.linear(ones.to("jax"), ones.to("jax"))[0, 0] == 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_under_autocast(device: str) -> None:
    seen: list[Any] = []

    def noted(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda first, *rest, **named: (seen.append(jnp.dtype(first.dtype).name), fn(first, *rest, **named))[1]

    kernels = {
        "linear": lambda input, weight, bias: input @ weight.T,
        "layer_norm": lambda input, *rest: input,
        "cross_entropy_loss": lambda self, target, *rest: self.sum(),
    }
    weight = torch.randn(8, 8, device=device)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = F.linear(x, weight)
            return y, F.layer_norm(y, (8,)), F.cross_entropy(y, classes(x))

    x = torch.randn(4, 8, device=device)
    expected = [t.dtype for t in run(x)]
    with contextlib.ExitStack() as stack:
        for name, kernel in kernels.items():
            stack.enter_context(jaten_ops.override(name, kernel=noted(kernel)))
        assert [t.dtype for t in torch.compile(run, backend="jaten")(x)] == expected
        if device == "jax":
            assert [t.dtype for t in run(x)] == expected
    assert seen[:3] == ["bfloat16", "bfloat16" if device == "cpu" else "float32", "float32"]


def test_derivatives_of_higher_order_and_forward_mode() -> None:
    square = jaten_ops.override("exp", gradient=lambda grads, args, results: {"self": grads[0] * args[0] ** 2})
    kernel = jaten_ops.override("exp", kernel=lambda self: self**3)
    x = torch.tensor([2.0, 3.0], device="jax")
    with square:
        assert torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1].tolist() == [4, 9]
        assert torch.func.hessian(lambda x: x.exp().sum())(x).diagonal().tolist() == [4, 6]
    with kernel:
        assert torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1].tolist() == [12, 27]
        assert torch.func.hessian(lambda x: x.exp().sum())(x).diagonal().tolist() == [12, 18]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["direct", "eager", "compiled", "vmap"])
def test_residuals(way: str) -> None:
    shapes: list[Any] = []

    def gradient(grads, args, results):
        shapes.append([r.shape for r in results])
        return {"self": grads[0] * results[1]}

    override = jaten_ops.override(
        "exp", kernel=lambda self: (jnp.exp(self), 2 * jnp.exp(self)), gradient=gradient, residuals=1
    )
    with override:
        y, grad = WAYS[way](lambda ops, x: ops.exp(x), torch.zeros(3))
    assert y.tolist() == [1, 1, 1]
    torch.testing.assert_close(grad, 2 * torch.arange(3).cos())
    assert shapes and all(len(s) == 2 for s in shapes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["direct", "eager", "compiled"])
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kernel": lambda self: self[:1]}, KernelResultError, "correct the kernel, whose results are like those"),
        ({"kernel": lambda self: self.astype(jnp.int32)}, KernelResultError, "int32"),
        ({"kernel": lambda self: (self, self)}, KernelResultError, "its schema says Tensor"),
        ({"gradient": lambda grads, args, results: {"x": args[0]}}, UnsupportedInputError, "a dict from self"),
        ({"gradient": lambda grads, args, results: {"self": args[0][:1]}}, UnsupportedInputError, "by 'self'"),
    ],
)
def test_results_that_are_refused(way: str, options: Any, error: type[Exception], text: str) -> None:
    with jaten_ops.override("relu", **options), pytest.raises(Exception, match=text) as found:
        WAYS[way](lambda ops, x: ops.relu(x), torch.ones(2))
    assert error.__name__ in str(found.value) or isinstance(found.value, error)
