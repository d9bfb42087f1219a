"""Operators to override, kernels that compute the same, and the ways to run a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops

# The targets: a kernel that computes the same, a call of the operator, and the argument that has a gradient


def attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa):
    scores = jnp.einsum("...qd,...kd->...qk", query, key) * query.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if is_causal else True
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ value


def layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable):
    mean, var = input.mean(-1, keepdims=True), input.var(-1, keepdims=True)
    return (input - mean) * jax.lax.rsqrt(var + eps)


def rms_norm(input, normalized_shape, weight, eps):
    return input * jax.lax.rsqrt((input**2).mean(-1, keepdims=True) + jnp.finfo(input.dtype).eps)


def cross_entropy(self, target, weight, reduction, ignore_index, label_smoothing):
    return -jnp.take_along_axis(jax.nn.log_softmax(self, -1), target[:, None], -1).mean()


def classes(x: Tensor) -> Tensor:
    return torch.arange(4, device=x.device)


Call = Callable[[Any, Tensor], Tensor]

TARGETS: dict[str, tuple[Callable[..., Any], Call, str]] = {
    "gelu": (lambda self, *, approximate: jax.nn.gelu(self, approximate=False), lambda ops, x: ops.gelu(x), "self"),
    "relu": (lambda self: jnp.where(self > 0, self, 0), lambda ops, x: ops.relu_(x * 1), "self"),
    "add.Tensor": (
        lambda self, other, *, alpha: self + alpha * other,
        lambda ops, x: ops.add(x, torch.full_like(x, 2)),
        "self",
    ),
    "softmax.int": (lambda self, dim, dtype: jax.nn.softmax(self, dim), lambda ops, x: ops.softmax(x, -1), "self"),
    "linear": (lambda input, weight, bias: input @ weight.T, lambda ops, x: ops.linear(x, x.detach()), "input"),
    "layer_norm": (layer_norm, lambda ops, x: ops.layer_norm(x, [8]), "input"),
    "rms_norm": (rms_norm, lambda ops, x: ops.rms_norm(x, [8]), "input"),
    "scaled_dot_product_attention": (
        attention,
        lambda ops, x: ops.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        "query",
    ),
    "cross_entropy_loss": (cross_entropy, lambda ops, x: ops.cross_entropy_loss(x, classes(x)), "self"),
}


# The ways to run a call: each gives the result, and the gradient of its sum weighted by cosines


def differentiated(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    y = run(leaf)
    (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
    assert leaf.grad is not None
    return y.detach().cpu(), leaf.grad.cpu()


def compiled_way(call: Call, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return differentiated(
        torch.compile(lambda x: call(torch.ops.aten, x), backend="jaten", fullgraph=True, **options), x
    )


def in_a_step(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        y = call(torch.ops.aten, leaf)
        (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
        return y.detach(), leaf.grad

    compiled = jaten_ops.compile_step(step)
    compiled(x.to("jax"))  # the first call is eager
    y, grad = compiled(x.to("jax"))
    return y.cpu(), grad.cpu()


def by_as_jax(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    function = jaten_ops.as_jax(lambda x: call(torch.ops.aten, x))
    y, pull = jax.vjp(jax.jit(function), jnp.asarray(x.numpy()))
    (grad,) = pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))
    return jaten_ops.from_jax(y).cpu(), jaten_ops.from_jax(grad).cpu()


def mapped(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return differentiated(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], x)


def by_func_grad(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        y = call(torch.ops.aten, x)
        return (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum(), y

    grad, y = torch.func.grad(loss, has_aux=True)(x)
    return y.detach().cpu(), grad.cpu()


WAYS: dict[str, Callable[[Call, Tensor], tuple[Tensor, Tensor]]] = {
    "direct": lambda call, x: differentiated(lambda x: call(torch.ops.jaten, x), x),
    "direct on jax": lambda call, x: differentiated(lambda x: call(torch.ops.jaten, x), x.to("jax")),
    "eager": lambda call, x: differentiated(lambda x: call(torch.ops.aten, x), x.to("jax")),
    "compiled": compiled_way,
    "compiled on jax": lambda call, x: compiled_way(call, x.to("jax")),
    "dynamic": lambda call, x: compiled_way(call, x, dynamic=True),
    "a step": in_a_step,
    "as_jax": by_as_jax,
    "vmap": lambda call, x: mapped(call, x.to("jax")),
    "func.grad": lambda call, x: by_func_grad(call, x.to("jax")),
    "compiled vmap": lambda call, x: differentiated(
        torch.compile(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], backend="jaten"), x
    ),
}


class Counted:
    """A function that counts its calls: an override is new in each test, so it is traced there."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.count, self._fn = 0, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._fn(*args, **kwargs)


def override_of(name: str, parts: str, when: Callable[..., Any] | None = None) -> tuple[Any, Counted, Counted]:
    kernel, _, argument = TARGETS[name]
    run, pull = Counted(kernel), Counted(lambda grads, args, results: {argument: 7 * jnp.ones_like(args[0])})
    options: dict[str, Any] = {}
    if parts != "gradient":
        options["kernel"] = run
    if parts != "kernel":
        options["gradient"] = pull
    return jaten_ops.override(name, when=when, **options), run, pull


def scaled(factor: float, **options: Any) -> Any:
    return jaten_ops.override("relu", kernel=lambda self: factor * jnp.maximum(self, 0), **options)


def factor(x: Tensor | None = None) -> float:
    return F.relu(torch.ones(2, device="jax") if x is None else x)[0].item()
