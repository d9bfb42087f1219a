"""Functions of small images, and optimizers' computation with the weights of convolutions, in longer rows."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from torch import nn

import jaten_ops
from jaten_ops.cpu.layouts import flattened
from jaten_ops.xla.x64 import Enabled

_RNG = np.random.default_rng(0)
_SHAPE = (128, 64, 3, 3)


def _array(*shape: int) -> np.ndarray:
    return (_RNG.standard_normal(shape) ** 2).astype("float32")


def _update(p: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * p
    v = 0.9 * v + 0.1 * p * p
    return p - 0.1 * m / (jnp.sqrt(v) + 1e-8), m, v


def _average(mean: Any, new: Any) -> Any:
    """No slow function, but a rounding."""
    return (mean.astype("float32") * 0.9 + new.astype("float32") * 0.1).astype(mean.dtype)


def _around_a_branch(p: Any, g: Any) -> Any:
    """Rows after a branch take what is stored as a result."""
    m = 0.9 * p + 0.1 * g
    root = lax.cond(g[0, 0, 0, 0] > 0, jnp.sqrt, jnp.exp, g)
    return m, p - m / root


def _clipped(p: Any, g: Any) -> Any:
    """Clipping by a norm, which depends on all elements, between two elementwise regions."""
    norm = jnp.sqrt(jnp.sum(g * g))
    g = g / (norm + 1e-6)
    return p - g / (jnp.sqrt(p) + 1), norm


def _used_again(p: Any, g: Any) -> Any:
    """A result is taken by what is taken by another of its shape."""
    q = p - g / 3
    total = jnp.tensordot(q, g, 4)
    return q, q * total / jnp.sqrt(p), total


def _two(p: Any, g: Any, q: Any) -> Any:
    """Regions of two shapes, and two chains of one that meet."""
    a, b = jnp.sqrt(p), g / 7
    return a / b, q / 3, jnp.where(p > 1, a, 2.0)


@jax.custom_jvp
def _third(x: Any) -> Any:
    return x / 3


_third.defjvps(lambda dx, r, x: dx / 3)


def _nested(p: Any, g: Any) -> Any:
    return jax.jit(lambda a, b: _third(a) + jax.jit(jnp.sqrt)(b))(p, g), g


_IMAGES = (2, 64, 14, 14)


def _normalized(x: Any, scale: Any) -> Any:
    """Vectors for each channel stay outside of the rows."""
    y = jax.nn.silu(x * scale[:, None, None] - scale[:, None, None])
    return jax.nn.gelu(y, approximate=False) + x, y.mean((2, 3))


def _with_gradient(x: Any, g: Any) -> Any:
    y, pull = jax.vjp(jax.nn.silu, x)
    return y, pull(g)[0] * 2


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "update": (_update, (_array(*_SHAPE), _array(*_SHAPE), _array(*_SHAPE))),
    "update of bfloat16": (_update, (*[_array(*_SHAPE).astype(jnp.bfloat16)] * 3,)),
    "average of bfloat16": (_average, (*[_array(*_SHAPE).astype(jnp.bfloat16)] * 2,)),
    "a result between two branches": (_around_a_branch, (_array(*_SHAPE), _array(*_SHAPE))),
    "clipped": (_clipped, (_array(*_SHAPE), _array(*_SHAPE))),
    "used again": (_used_again, (_array(*_SHAPE), _array(*_SHAPE))),
    "two shapes": (_two, (_array(*_SHAPE), _array(*_SHAPE), _array(500, 50, 5))),
    "nested": (_nested, (_array(*_SHAPE), _array(*_SHAPE))),
    "functions of images": (_normalized, (_array(*_IMAGES), _array(64))),
    "functions of bfloat16": (_normalized, (_array(*_IMAGES).astype(jnp.bfloat16), _array(64).astype(jnp.bfloat16))),
    "a function and its gradient": (_with_gradient, (_array(*_IMAGES), _array(*_IMAGES))),
    "of channels last": (lambda x: jnp.tanh(x), (_array(64, 14, 14, 3),)),
    "prime": (lambda p: p / 3, (_array(65537, 7),)),
    "wide integers": (lambda p, n: (p / 3, jnp.where(n > 1, n, n // 2)), (_array(*_SHAPE), np.ones(_SHAPE, "int64"))),
}
LEFT = {
    "long rows": (lambda p: p / 3, (_array(300, 300),)),
    "ones": (lambda p: p / 3, (_array(300, 300, 1, 1),)),
    "few": (lambda p: p / 3, (_array(20, 20, 3, 3),)),
    "one dimension": (lambda p: p / 3, (_array(90000),)),
    "simple": (lambda p: p * 3 + 1, (_array(*_SHAPE),)),
    "no result": (lambda p: jnp.sum(p / 3), (_array(*_SHAPE),)),
    "no operand": (lambda p, b: lax.dot(p, b) / 3, (_array(40000, 2), _array(2, 3))),
    "function of few": (jnp.tanh, (_array(2, 8, 14, 14),)),
    "function of long rows": (jnp.tanh, (_array(2, 8, 14, 64),)),
    "function of vectors": (
        lambda p, b: p - jnp.exp(lax.broadcast_in_dim(b, p.shape, (1,))),
        (_array(*_IMAGES), _array(64)),
    ),
    "repeated": (lambda p, b: p / b[:, None, None, None], (_array(*_SHAPE), _array(128))),
}


def _branches(fn: Callable[..., Any], operands: tuple[Any, ...]) -> int:
    return str(jax.make_jaxpr(fn)(*operands)).count("cond[")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_computes_the_same_in_rows(name: str) -> None:
    fn, operands = PROGRAMS[name]
    with Enabled():
        assert _branches(flattened(fn), operands) > 0
        expected, found = jax.jit(fn)(*operands), jax.jit(flattened(fn))(*operands)
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            assert a.dtype == b.dtype
            # means of numbers of order 1, whose last bits differ, are near zero
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", LEFT)
def test_it_leaves_what_gains_nothing(name: str) -> None:
    assert _branches(flattened(LEFT[name][0]), LEFT[name][1]) == 0


def test_it_leaves_other_platforms_alone() -> None:
    assert _branches(flattened(_update, platform="cuda"), PROGRAMS["update"][1]) == 0


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": functools.partial(torch.optim.Adam, capturable=True, eps=1e-3),
    "AdamW": functools.partial(torch.optim.AdamW, capturable=True, amsgrad=True, eps=1e-3),
    "RMSprop": functools.partial(torch.optim.RMSprop, capturable=True, momentum=0.9, eps=1e-3),
    "SGD": functools.partial(torch.optim.SGD, momentum=0.9, foreach=True),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_convolutions_are_as_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 4, 3))
    moved = copy.deepcopy(model).to("jax")
    x = torch.randn(2, 64, 5, 5)

    def trained(model: nn.Module, x: torch.Tensor, **how: bool) -> list[torch.Tensor]:
        optimizer = OPTIMIZERS[name](model.parameters(), lr=1e-3, **how)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = jaten_ops.compile_step(step, model, optimizer) if x.device.type == "jax" else step
        return [run(x) for _ in range(4)]

    how = {} if name == "SGD" else {"capturable": False}
    for a, b in zip(trained(model, x, **how), trained(moved, x.to("jax")), strict=True):
        torch.testing.assert_close(b.cpu(), a)
    for a, b in zip(model.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_optimizers_are_as_those_of_torch(name: str) -> None:
    def stepped(compiled: bool) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in (_SHAPE, (5, 4, 3, 3))]
        optimizer = OPTIMIZERS[name](parameters, lr=1e-3, **({} if name == "SGD" else {"capturable": False}))
        step = torch.compile(optimizer.step, backend="jaten") if compiled else optimizer.step
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            step()
        return [p.detach() for p in parameters]

    for a, b in zip(stepped(False), stepped(True), strict=True):
        torch.testing.assert_close(b, a)
