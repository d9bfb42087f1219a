"""Overrides of operators on every path, beside plain torch: a kernel, a gradient, or both, and that they really ran."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import jaten_ops
from jaten_ops.errors import (
    InvalidSchemaError,
    KernelResultError,
    OverrideTargetError,
    UnknownOpError,
    UnsupportedInputError,
)
from jaten_ops.ops.override_targets import FUNCTIONS
from jaten_ops.registry import active_overrides

from .harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    assert active_overrides.active() == ()


# The targets: a kernel that computes the same, a call of the operator, and the argument that has a gradient


def _attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa):
    scores = jnp.einsum("...qd,...kd->...qk", query, key) * query.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if is_causal else True
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ value


def _layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable):
    mean, var = input.mean(-1, keepdims=True), input.var(-1, keepdims=True)
    return (input - mean) * jax.lax.rsqrt(var + eps)


def _rms_norm(input, normalized_shape, weight, eps):
    return input * jax.lax.rsqrt((input**2).mean(-1, keepdims=True) + jnp.finfo(input.dtype).eps)


def _cross_entropy(self, target, weight, reduction, ignore_index, label_smoothing):
    return -jnp.take_along_axis(jax.nn.log_softmax(self, -1), target[:, None], -1).mean()


def _classes(x: Tensor) -> Tensor:
    return torch.arange(4, device=x.device)


Call = Callable[[Any, Tensor], Tensor]

TARGETS: dict[str, tuple[Callable[..., Any], Call, str]] = {
    "gelu": (lambda self, *, approximate: jax.nn.gelu(self, approximate=False), lambda ops, x: ops.gelu(x), "self"),
    "relu": (lambda self: jnp.where(self > 0, self, 0), lambda ops, x: ops.relu_(x * 1), "self"),
    "add.Tensor": (lambda self, other, *, alpha: self + alpha * other, lambda ops, x: ops.add(x, 2), "self"),
    "softmax.int": (lambda self, dim, dtype: jax.nn.softmax(self, dim), lambda ops, x: ops.softmax(x, -1), "self"),
    "linear": (lambda input, weight, bias: input @ weight.T, lambda ops, x: ops.linear(x, x.detach()), "input"),
    "layer_norm": (_layer_norm, lambda ops, x: ops.layer_norm(x, [8]), "input"),
    "rms_norm": (_rms_norm, lambda ops, x: ops.rms_norm(x, [8]), "input"),
    "scaled_dot_product_attention": (
        _attention,
        lambda ops, x: ops.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        "query",
    ),
    "cross_entropy_loss": (_cross_entropy, lambda ops, x: ops.cross_entropy_loss(x, _classes(x)), "self"),
}


# The ways to run a call: each gives the result, and the gradient of its sum weighted by cosines


def _differentiated(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    y = run(leaf)
    (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
    assert leaf.grad is not None
    return y.detach().cpu(), leaf.grad.cpu()


def _compiled(call: Call, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return _differentiated(torch.compile(lambda x: call(torch.ops.aten, x), backend="jaten", fullgraph=True, **options), x)


def _in_a_step(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        y = call(torch.ops.aten, leaf)
        (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
        return y.detach(), leaf.grad

    compiled = jaten_ops.compile_step(step)
    compiled(x.to("jax"))  # the first call is eager
    y, grad = compiled(x.to("jax"))
    return y.cpu(), grad.cpu()


def _as_jax(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    function = jaten_ops.as_jax(lambda x: call(torch.ops.aten, x))
    y, pull = jax.vjp(jax.jit(function), jnp.asarray(x.numpy()))
    (grad,) = pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))
    return jaten_ops.from_jax(y).cpu(), jaten_ops.from_jax(grad).cpu()


def _mapped(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return _differentiated(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], x)


def _func_grad(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        y = call(torch.ops.aten, x)
        return (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum(), y

    grad, y = torch.func.grad(loss, has_aux=True)(x)
    return y.detach().cpu(), grad.cpu()


WAYS: dict[str, Callable[[Call, Tensor], tuple[Tensor, Tensor]]] = {
    "direct": lambda call, x: _differentiated(lambda x: call(torch.ops.jaten, x), x),
    "direct on jax": lambda call, x: _differentiated(lambda x: call(torch.ops.jaten, x), x.to("jax")),
    "eager": lambda call, x: _differentiated(lambda x: call(torch.ops.aten, x), x.to("jax")),
    "compiled": _compiled,
    "compiled on jax": lambda call, x: _compiled(call, x.to("jax")),
    "dynamic": lambda call, x: _compiled(call, x, dynamic=True),
    "a step": _in_a_step,
    "as_jax": _as_jax,
    "vmap": lambda call, x: _mapped(call, x.to("jax")),
    "func.grad": lambda call, x: _func_grad(call, x.to("jax")),
    "compiled vmap": lambda call, x: _differentiated(
        torch.compile(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], backend="jaten"), x
    ),
}

PARTS = ("kernel", "gradient", "both")


class _Counted:
    """A function that counts its calls: an override is new in each test, so it is traced there."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.count, self._fn = 0, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._fn(*args, **kwargs)


def _override(name: str, parts: str, when: Callable[..., Any] | None = None) -> tuple[Any, _Counted, _Counted]:
    kernel, _, argument = TARGETS[name]
    run, pull = _Counted(kernel), _Counted(lambda grads, args, results: {argument: 7 * jnp.ones_like(args[0])})
    options: dict[str, Any] = {}
    if parts != "gradient":
        options["kernel"] = run
    if parts != "kernel":
        options["gradient"] = pull
    return jaten_ops.override(name, when=when, **options), run, pull


@pytest.mark.parametrize(("name", "way", "parts"), crossed(TARGETS, WAYS, PARTS, strength=1))
def test_parity(name: str, way: str, parts: str) -> None:
    _, call, _ = TARGETS[name]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    y, grad = _differentiated(lambda x: call(torch.ops.aten, x), x)
    override, run, pull = _override(name, parts)
    with override:
        found, its_grad = WAYS[way](call, x)
    torch.testing.assert_close(found, y, atol=1e-5, rtol=1e-5)
    assert (run.count > 0) == (parts != "gradient")
    assert (pull.count > 0) == (parts != "kernel")
    if parts == "kernel":
        torch.testing.assert_close(its_grad, grad, atol=1e-5, rtol=1e-5)
    else:  # attention is called with x three times, of which the query gets 7
        assert torch.equal(its_grad, torch.full_like(x, 7))
