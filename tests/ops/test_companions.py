"""Companions of users' operators: gradients with the draws of their call, and batches with gradients of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import jaten_ops

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
own = torch.ops.jaten_companions
F = torch.func
called: list[tuple[int, ...]] = []
RANDOM = ["nondeterministic_seeded"]


@jaten_ops.op("jaten_companions::masked(Tensor x, float p=0.5) -> Tensor", differentiable=["x"], tags=RANDOM)
def _masked(x, p, *, key):
    """The square of x where a draw has 1: its gradient is 2 x there."""
    called.append(x.shape)
    return jnp.square(x) * jax.random.bernoulli(key, 1 - p, x.shape)


@jaten_ops.op("jaten_companions::noise(int n) -> Tensor", tags=RANDOM)
def _noise(n, *, key):
    return jax.random.normal(key, (n,))


def _double(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


@jaten_ops.op(
    "jaten_companions::pallas(Tensor x, Tensor[] ws, Tensor? b=None) -> Tensor", differentiable=["x", "ws", "b"]
)
def _pallas(x, ws, b):
    called.append(x.shape)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    doubled = pl.pallas_call(_double, out_shape=shape, interpret=True)(x)
    return doubled * ws[0] + ws[1].sum() + (0 if b is None else b)


@jaten_ops.gradient("jaten_companions::pallas")
def _(grads, args, results):
    (grad,), (x, ws, b) = grads, args
    of_ws = [grad * x * 2, grad.sum().expand(ws[1].shape)]
    return {"x": 3 * grad * ws[0], "ws": of_ws, "b": None if b is None else grad.sum_to_size(b.shape)}


@jaten_ops.op("jaten_companions::noisy(Tensor x) -> Tensor", differentiable=["x"], tags=RANDOM)
def _noisy(x, *, key):
    return x * jax.random.bernoulli(key, 0.5, x.shape)


@jaten_ops.gradient("jaten_companions::noisy")
def _(grads, args, results):
    return {"x": grads[0] * 7 * results[0]}


x = torch.linspace(1, 2, 64)


def _value_and_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    result = own.masked(leaf)
    return result.detach().cpu(), torch.autograd.grad(result.sum(), leaf)[0].cpu()


def _checkpointed(x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    result = torch.utils.checkpoint.checkpoint(own.masked, leaf, use_reentrant=False)
    return result.detach(), torch.autograd.grad(result.sum(), leaf)[0]


def _step(x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    result = own.masked(leaf)
    result.sum().backward()
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def _as_jax(x: Tensor) -> tuple[Tensor, Tensor]:
    fn, key = jaten_ops.as_jax(own.masked), jax.random.key(3)
    array = jnp.asarray(x.numpy())
    value, pull = jax.vjp(jax.jit(lambda a: fn(a, key=key)), array)
    return torch.tensor(value), torch.tensor(pull(jnp.ones_like(value))[0])


def _forward_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.jvp(own.masked, (x,), (torch.ones_like(x),))


WAYS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "direct": _value_and_grad,
    "device": lambda x: _value_and_grad(x.to("jax")),
    "compiled": torch.compile(_value_and_grad, backend="jaten"),
    "compiled on the device": lambda x: torch.compile(_value_and_grad, backend="jaten")(x.to("jax")),
    "another backend": torch.compile(_value_and_grad, backend="aot_eager"),
    "step": lambda x: tuple(t.cpu() for t in jaten_ops.compile_step(_step)(x)),
    "as_jax": _as_jax,
    "checkpoint": _checkpointed,
    "torch.func": lambda x: F.grad_and_value(lambda x: own.masked(x).sum(), has_aux=False)(x)[::-1],
    "forward mode": _forward_mode,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_has_the_draws_of_its_call(way: str) -> None:
    draws = []
    for _ in range(2):
        value, gradient = WAYS[way](x)
        drawn = gradient / (2 * x)
        assert set(drawn.tolist()) == {0.0, 1.0}
        assert_close(value, (x * x * drawn).sum() if way == "torch.func" else x * x * drawn)
        draws.append(drawn)
    assert way == "as_jax" or not torch.equal(*draws)


def test_seeds_give_the_same_draws_with_and_without_a_gradient() -> None:
    values = []
    for leaf in (x, x.clone().requires_grad_()):
        torch.manual_seed(5)
        values.append(own.masked(leaf).detach())
    assert torch.equal(*values)


def test_second_derivatives_have_the_draws_of_the_call() -> None:
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(own.masked(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert_close(second, (first != 0) * 2.0)


BATCHES: dict[str, Callable[[str], Callable[[Tensor], Tensor]]] = {
    "values": lambda r: torch.vmap(own.masked, randomness=r),
    "gradient of each": lambda r: torch.vmap(F.grad(lambda v: own.masked(v).sum()), randomness=r),
    "gradient of all": lambda r: F.grad(lambda v: torch.vmap(own.masked, randomness=r)(v).sum()),
    "own gradient": lambda r: torch.vmap(F.grad(lambda v: own.noisy(v).sum()), randomness=r),
    "no batch inside": lambda r: lambda a: torch.vmap(lambda v: v * 0 + own.noise(64).to(v.device), randomness=r)(a),
    "in a batch": lambda r: lambda a: torch.vmap(torch.vmap(own.masked, randomness=r), randomness="same")(a[None])[0],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "compiled", "device"), crossed(BATCHES, [False, True], ["cpu", "jax"]))
def test_batches_draw_as_randomness_says(name: str, compiled: bool, device: str) -> None:
    batch = torch.stack([x, x, x]).to(device)
    for randomness in ("same", "different"):
        called.clear()
        run = BATCHES[name](randomness)
        rows = (torch.compile(run, backend="jaten", fullgraph=True) if compiled else run)(batch)
        assert torch.equal(rows[0], rows[1]) == torch.equal(rows[1], rows[2]) == (randomness == "same")
        assert set(called) <= {(64,)}
    with pytest.raises(RuntimeError, match=r"jaten_companions::[a-z]* while in randomness error mode"):
        BATCHES[name]("error")(batch)


def _plain(x: Tensor, ws: list[Tensor], b: Tensor | None) -> Tensor:
    """As the operator `pallas`, with its gradient: 3 in place of 2 by x."""
    doubled = x.detach() * 2 + 3 * (x - x.detach())
    return doubled * ws[0] + ws[1].sum() + (0 if b is None else b)


OWN_GRADIENTS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Any]]] = {
    "values": lambda f: torch.vmap(f, in_dims=(0, None, 1)),
    "gradient of each": lambda f: torch.vmap(F.grad(lambda *a: f(*a).sum(), argnums=(0, 1, 2)), in_dims=(0, None, 1)),
    "gradient of all": lambda f: F.grad(lambda *a: torch.vmap(f, in_dims=(0, None, 1))(*a).sum(), argnums=(0, 1, 2)),
    "batch of batches": lambda f: torch.vmap(
        F.grad(lambda a, w, b: torch.vmap(f, in_dims=(0, 0, None))(a, w, b).sum(), argnums=(0, 1, 2)),
        in_dims=(1, None, None),
    ),
    "forward mode": lambda f: lambda a, w, b: F.jvp(lambda a: torch.vmap(f, in_dims=(0, None, 1))(a, w, b), (a,), (a,)),
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("error:.*batching rule.*")
@pytest.mark.parametrize("way", ["direct", "device", "compiled"])
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_batches_have_the_registered_gradient(name: str, way: str) -> None:
    a, w, b = torch.linspace(0, 1, 9).reshape(3, 3), torch.linspace(1, 3, 3), torch.linspace(2, 3, 9).reshape(3, 3)
    if name == "batch of batches":
        b = b[0, 0]

    def call(fn: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return fn(x, [w, w * 2], b)

    got, expected = (OWN_GRADIENTS[name](functools.partial(call, f)) for f in (own.pallas, _plain))
    given = [t.to("jax") if way == "device" else t for t in (a, w, b)]
    called.clear()
    results = (torch.compile(got, backend="jaten", fullgraph=True) if way == "compiled" else got)(*given)
    assert_close(torch.utils._pytree.tree_map(lambda t: t.cpu(), results), expected(a, w, b))
    assert len(called) <= 2  # `jax.vmap` of the kernel, not a call for each


@jaten_ops.op("jaten_companions::grow_(Tensor(a!) x) -> ()", differentiable=["x"], tags=RANDOM)
def _grow(x, key):
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)


def test_errors_name_the_operator_of_the_user() -> None:
    def grown(x: Tensor) -> Tensor:
        own.grow_(t := x * 1)
        return t

    with pytest.raises(jaten_ops.MissingGradientError, match=r"jaten_ops.gradient\('jaten_companions::grow_'\)"):
        F.grad(lambda v: torch.vmap(grown, randomness="same")(v).sum())(torch.ones(2, 2))


def test_a_gradient_registered_after_a_call_holds() -> None:
    @jaten_ops.op("jaten_companions::late(Tensor x) -> Tensor", differentiable=["x"])
    def late(x):
        return x * 2

    def gradients() -> list[float]:
        of_batch = F.grad(lambda v: torch.vmap(own.late)(v).sum())(torch.ones(1))
        return [F.grad(lambda v: own.late(v).sum())(torch.ones(1)).item(), of_batch.item()]

    assert gradients() == [2, 2]
    jaten_ops.gradient("jaten_companions::late")(lambda grads, args, results: {"x": grads[0] * 9})
    assert gradients() == [9, 9]


jaten_ops.op("jaten_companions::product(Tensor x, Tensor y) -> Tensor", differentiable=["x", "y"])(lambda x, y: x * y)

OF_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "batch": lambda x: torch.vmap(own.product, in_dims=(0, None))(x, x[0]),
    "random": lambda x: own.masked(x),
    "random batch": lambda x: torch.vmap(own.masked, randomness="different")(x),
    "random batch with a gradient": lambda x: torch.vmap(own.noisy, randomness="same")(x),
    "call_jax": lambda x: torch.vmap(lambda r: jaten_ops.call_jax(jnp.square, r))(x),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OF_SIZES)
def test_one_graph_serves_all_sizes_of_a_batch(name: str) -> None:
    counter, run = CompileCounterWithBackend("jaten"), OF_SIZES[name]
    compiled = torch.compile(run, backend=counter, dynamic=True, fullgraph=True)
    for n in (4, 6, 9):
        leaves = [torch.linspace(1, 2, n * 3).reshape(n, 3).requires_grad_() for _ in range(2)]
        got, expected = compiled(leaves[0]), run(leaves[1])
        gradients = [torch.autograd.grad(r.sum(), leaf)[0] for r, leaf in zip((got, expected), leaves, strict=True)]
        if "random" in name:  # each result is a draw times what has a gradient of its own
            factor = 7 if name.endswith("gradient") else 2 / leaves[0].detach()
            assert_close(gradients[0], got.detach() * factor)
        else:
            assert_close([got, gradients[0]], [expected, gradients[1]])
    assert counter.frame_count == 1
