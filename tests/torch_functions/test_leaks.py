"""Tensors of a JAX trace that a torch function keeps, or writes elsewhere."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaten_ops
from jaten_ops.errors import UnsupportedInputError


class _Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = x * 2
        return self.cache


def test_tensors_that_are_kept_are_refused_by_name() -> None:
    module = _Keeps().to("jax")
    state = jaten_ops.to_jax(dict(module.state_dict()))
    with pytest.raises(UnsupportedInputError, match=r"shape \(2,\) after the call, as 'cache' of a _Keeps"):
        jax.jit(jaten_ops.as_jax(module))(state, jnp.ones(2))
    kept: list[Any] = []

    def keeps(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.sin())
        return x.sum()

    jax.grad(jaten_ops.as_jax(keeps))(jnp.ones(2))  # which runs it with values
    np.testing.assert_allclose(kept[0].cpu().detach(), np.sin(np.ones(2)), rtol=1e-6)
    with pytest.raises(UnsupportedInputError, match="in a list in a variable of an outer function"):
        jax.jit(jaten_ops.as_jax(keeps))(jnp.ones(2))


def test_writes_to_what_is_no_argument_are_refused_and_undone() -> None:
    module, total = nn.BatchNorm1d(4).to("jax"), torch.zeros(3, device="jax")
    for write in (module, lambda x: total.add_(x[0, :3]), lambda x: total[:1].copy_(x[0, :1])):
        with pytest.raises(UnsupportedInputError, match="writes to a tensor that is not an argument"):
            jax.jit(jaten_ops.as_jax(lambda x, write=write: write(x)))(jnp.ones((2, 4)))
    assert not total.any() and not module.running_mean.any()
    x = jnp.ones(3)
    jaten_ops.as_jax(lambda x: x.add_(1))(x)
    assert (x == 1).all()

    def constant(x: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([1.0, 2.0], device=x.device)
        made[0] = x.sum()
        return made

    np.testing.assert_array_equal(jax.jit(jaten_ops.as_jax(constant))(x), [3, 2])


def test_what_garbage_keeps_is_not_read() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        cycle: list[Any] = [x.sin().t()]  # a view whose elements nobody has asked for yet
        cycle.append(cycle)
        return x.sum()

    lowered = jax.jit(jax.vmap(jax.grad(jaten_ops.as_jax(function)))).lower(jnp.ones((5, 2, 3)))
    assert len(lowered.compile().input_shardings[0]) == 1
    np.testing.assert_array_equal(lowered.compile()(jnp.ones((5, 2, 3))), np.ones((5, 2, 3)))


TRANSFORMS: dict[str, Callable[[Callable[..., Any], jax.Array], Any]] = {
    "grad": lambda fn, x: jax.grad(lambda x: fn(x).sum())(x),
    "grad of grad": lambda fn, x: jax.grad(lambda x: jax.grad(lambda x: fn(x).sum())(x).sum())(x),
    "vmap": lambda fn, x: jax.vmap(fn)(x[None]),
    "jvp": lambda fn, x: jax.jvp(fn, (x,), (x,)),
    "vjp": lambda fn, x: jax.vjp(fn, x)[1](x),
    "linearize": lambda fn, x: jax.linearize(fn, x)[1](x),
    "jit": lambda fn, x: jax.jit(lambda x: fn(x))(x),
    "scan": lambda fn, x: jax.lax.scan(lambda c, x: (c, fn(x)), 0, x[None]),
    "checkpoint": lambda fn, x: jax.grad(jax.checkpoint(lambda x: fn(x).sum()))(x),
    "a closure": lambda fn, x: jax.grad(lambda y: fn(y * x).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_keep_no_operands(name: str) -> None:
    fn = jaten_ops.as_jax(torch.sin)
    for k in range(4):
        x = jnp.full(1237, k, jnp.float32)  # of a size that nothing else has
        TRANSFORMS[name](fn, x)
        del x
    gc.collect()
    assert not [a for a in jax.live_arrays() if a.size == 1237]


@pytest.mark.parametrize(
    "name", [t for t in TRANSFORMS if t != "scan"]
)  # JAX keeps the body of a scan outside of jax.jit
def test_jax_keeps_no_modules(name: str) -> None:
    kept = []
    for _ in range(3):
        module = nn.Linear(5, 5).to("jax")
        state = jaten_ops.to_jax(dict(module.state_dict()))
        fn = jaten_ops.as_jax(module)
        TRANSFORMS[name](lambda x, fn=fn, state=state: fn(state, x), jnp.ones(5))
        kept.append(weakref.ref(module))
        del module, state, fn
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


def test_jax_finds_no_leaks() -> None:
    fn, x = jaten_ops.as_jax(torch.sin), jnp.ones(3)
    model = nn.Linear(3, 1).to("jax")
    step = jaten_ops.compile_step(lambda x: model(x).sum().backward(), model)
    with jax.checking_leaks():
        for through in (jax.jit, jax.vmap, lambda fn: jax.jit(jax.grad(lambda x: fn(x).sum()))):
            through(fn)(x)
        for _ in range(3):
            step(torch.ones(2, 3, device="jax"))
    assert model.bias.grad.tolist() == [6]
