"""JAX programs from torch ones: control flow, checkpoints, ensembles, meshes, and results of any class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

from ..harness.mesh_process import found
from ..programs.mesh_shard_map import PROGRAMS as MAPPED

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
as_jax = jaten_ops.as_jax


# Control flow


def _branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * x.detach(), (x,))


def _loops(x: torch.Tensor) -> torch.Tensor:
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5), (start, x))[1]


def _scans(x: torch.Tensor) -> torch.Tensor:
    last, rows = scan(lambda carry, row: ((carry * row).sin(), carry + row), x[0], x)
    return last + rows.sum(0)


# the program; its operation in a JAX program; whether JAX has its gradient
CONTROL_FLOW: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, bool]] = {
    "cond": (_branches, "cond[", True),
    "while_loop": (_loops, "while[", False),
    "scan": (_scans, "scan[", True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_is_jaxs(name: str) -> None:
    program, operation, has_gradient = CONTROL_FLOW[name]
    function = as_jax(program)
    for sign in (1, -1):
        x = sign * np.linspace(0.1, 1, 6, dtype="float32").reshape(3, 2)
        tensor = torch.from_numpy(x.copy()).requires_grad_(has_gradient)
        expected = program(tensor)
        np.testing.assert_allclose(jax.jit(function)(x), expected.detach(), rtol=1e-5)
        if has_gradient:
            expected.sum().backward()
            gradient = jax.jit(jax.grad(lambda x: function(x).sum()))
            np.testing.assert_allclose(gradient(x), tensor.grad, rtol=1e-5)
            assert operation in str(jax.make_jaxpr(gradient)(x))
    assert operation in str(jax.make_jaxpr(function)(x))
    mapped = jax.jit(jax.vmap(function))(np.stack([x, -x]))
    np.testing.assert_allclose(mapped, [function(x), function(-x)], rtol=1e-5)


def test_a_loop_of_unknown_length_has_no_gradient() -> None:
    with pytest.raises(UnsupportedInputError, match="torch's scan, or a Python loop"):
        jax.jit(jax.grad(lambda x: as_jax(_loops)(x).sum()))(jnp.ones(2))
    detached = as_jax(lambda x: (x * _loops(x.detach())).sum())
    np.testing.assert_allclose(jax.jit(jax.grad(detached))(jnp.ones(2)), 1.5**5 * np.ones(2), rtol=1e-6)


# Checkpoints


def _block(x: Any, weight: Any) -> Any:
    return ((x @ weight).tanh() @ weight).tanh()


def _jaxs_block(x: Any, weight: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ weight) @ weight)


def _stacked(block: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = block(x, weight)
        return x.sum()

    return run


def _checkpointed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return checkpoint(_block, x, weight, use_reentrant=False)


def test_a_checkpoint_is_jaxs() -> None:
    """Values that it computes again are behind as many barriers as in JAX, and nothing else is saved."""
    x, weights = jnp.ones((5, 4)), [jnp.eye(4), 2 * jnp.eye(4), 3 * jnp.eye(4)]
    gradient = jax.grad(as_jax(_stacked(_checkpointed)), 1)
    theirs = jax.grad(_stacked(jax.checkpoint(_jaxs_block)), 1)
    np.testing.assert_allclose(jax.jit(gradient)(x, weights), theirs(x, weights), rtol=1e-5)
    texts = [jax.jit(g).lower(x, weights).as_text() for g in (gradient, theirs)]
    assert texts[0].count("optimization_barrier") == texts[1].count("optimization_barrier") == len(weights)

    def saved(block: Callable[..., Any]) -> list[tuple[int, ...]]:
        forward, _ = jax.make_jaxpr(jax.grad(as_jax(_stacked(block)), 1))(x, weights).eqns
        return [v.aval.shape for v in forward.outvars[1:]]

    assert saved(_checkpointed) == [(5, 4), (5, 4)]  # the operand of each block but the first, which the caller has
    assert saved(_block) == [(5, 4)] * 6


def test_what_is_constant_is_not_saved() -> None:
    factor = torch.ones(3, 2, device="jax")
    forward, _ = jax.make_jaxpr(jax.grad(as_jax(lambda x: (x * factor).sum())))(jnp.ones((3, 2))).eqns
    assert [v.aval.shape for v in forward.outvars] == [()]


# Ensembles, training mode, meshes


def test_an_ensemble_is_mapped_over_its_parameters() -> None:
    torch.manual_seed(0)
    plain = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    x = torch.randn(2, 3)
    for module in plain:
        module(x).square().sum().backward()
    members = [copy.deepcopy(m).to("jax") for m in plain]
    parameters, _ = torch.func.stack_module_state(members)
    function = as_jax(members[0])

    def loss(parameters: Any) -> Any:
        return jnp.square(jax.vmap(function, (0, None))(parameters, x.numpy())).sum()

    gradients = jax.jit(jax.grad(loss))(jaten_ops.to_jax(parameters))
    for name, stacked in gradients.items():
        np.testing.assert_allclose(stacked, torch.stack([m.get_parameter(name).grad for m in plain]), rtol=1e-4)


def test_a_module_in_training_mode_with_a_key() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 40), nn.BatchNorm1d(40), nn.Dropout(0.5)).to("jax")
    function, state = as_jax(module, mutable=True), jaten_ops.to_jax(dict(module.state_dict()))

    @jax.jit
    def step(state: Any, x: Any, key: Any) -> Any:
        def loss(state: Any) -> Any:
            result, buffers = function(state, x, key=key)
            return jnp.square(result).mean(), (result, buffers)

        return jax.value_and_grad(loss, has_aux=True, allow_int=True)(state)

    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    (loss, (result, buffers)), gradients = step(state, x, jax.random.key(0))
    assert 0.3 < (np.asarray(result) == 0).mean() < 0.7 and buffers["1.num_batches_tracked"] == 1
    assert gradients["0.weight"].any() and not gradients["1.running_mean"].any()  # torch's buffers have no gradients
    assert step(state, x, jax.random.key(0))[0][0] == loss != step(state, x, jax.random.key(1))[0][0]


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MAPPED)
def test_in_shard_map(name: str) -> None:
    found("shard_map", name)


# Results of any class


class _Layer:
    def __init__(self) -> None:
        self.total: torch.Tensor | None = None
        self.width, self.dtype = 3, torch.float32


class _Cache:
    """An object as caches of transformers are: of a class that neither torch nor JAX knows."""

    def __init__(self) -> None:
        self.layers, self.name = [_Layer(), _Layer()], "cache"


def _added(x: torch.Tensor, cache: _Cache | None = None) -> _Cache:
    cache = _Cache() if cache is None else cache
    for layer in cache.layers:
        layer.total = x.clone() if layer.total is None else layer.total.add_(x)
    return cache


def test_objects_with_tensors_go_in_and_out() -> None:
    add, x = as_jax(_added), jnp.ones(3)

    def count(x: Any) -> Any:
        return jax.lax.while_loop(lambda cache: cache.layers[0].total[0] < 5, lambda cache: add(x, cache), add(x))

    for cache in (count(x), jax.jit(count)(x)):
        assert type(cache) is _Cache and cache.name == "cache" and cache.layers[1].dtype is torch.float32
        np.testing.assert_array_equal(cache.layers[1].total, [5, 5, 5])


def test_an_object_that_holds_itself_is_refused() -> None:
    def program(x: torch.Tensor) -> Any:
        cache = _Cache()
        cache.owner, cache.tensor = cache, x * 2  # type: ignore[attr-defined]  # attributes of any name
        return cache

    with pytest.raises(UnsupportedInputError, match="that holds itself"):
        jax.jit(as_jax(program))(jnp.ones(3))


def _matrix(size: int = 4) -> jax.Array:
    values = jax.random.normal(jax.random.key(0), (size, size))
    return values @ values.T + size * jnp.eye(size)


LINEAR: dict[str, Callable[[Any], Any]] = {
    "a multiple": lambda x: x * 2,
    "a product": lambda x: jaten_ops.from_jax(_MATRIX) @ x,
    "a sum": lambda x: x.sum(),
    "parts, and a constant": lambda x: (x[:2], x[2:] * 3, torch.ones(2, device=x.device)),
    "a transform": lambda x: torch.fft.fft(x).real,
    "rows by their numbers": lambda x: x[torch.tensor([2, 0, 2], device=x.device)],
}
_MATRIX = _matrix()


THROUGH: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "as it is": lambda fn: fn,
    "jit": jax.jit,
    "vmap": lambda fn: lambda x: jax.vmap(fn)(x[None]),
}


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("name", LINEAR)
def test_transposes_of_linear_functions(name: str, through: str) -> None:
    fn, x = THROUGH[through](as_jax(LINEAR[name])), jnp.arange(4.0)
    results, pull = jax.vjp(fn, x)
    cotangents = jax.tree.map(lambda r: jnp.cos(jnp.arange(r.size, dtype=r.dtype)).reshape(r.shape), results)
    for transposed in (jax.linear_transpose(fn, x), jax.jit(jax.linear_transpose(fn, x))):
        jax.tree.map(np.testing.assert_allclose, transposed(cotangents), pull(cotangents))


@pytest.mark.parametrize("fn", [torch.square, torch.relu, torch.exp], ids=lambda fn: fn.__name__)
def test_others_have_no_transpose(fn: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedInputError, match="linear"):
        jax.linear_transpose(as_jax(fn), jnp.ones(3))(jnp.ones(3))


def test_linear_solvers() -> None:
    product, b = as_jax(lambda matrix, x: matrix @ x), jnp.arange(4.0)

    def solved(b: jax.Array) -> jax.Array:
        return jax.scipy.sparse.linalg.cg(lambda x: product(_MATRIX, x), b)[0]

    for fn in (solved, jax.jacrev(solved)):
        wanted = (jax.jacrev if fn is not solved else lambda f: f)(lambda b: jnp.linalg.solve(_MATRIX, b))(b)
        np.testing.assert_allclose(fn(b), wanted, rtol=1e-3, atol=1e-4)  # the solver stops there


def test_traced_tensors_are_printed_without_values() -> None:
    found: list[str] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        found.extend([repr(x), f"{x}", repr(torch.arange(2, device=x.device))])
        return x

    jax.jit(as_jax(fn))(jnp.ones(3))
    traced = "tensor(..., size=(3,), dtype=torch.float32, device='jax:0')"
    assert found == [traced, traced, "tensor([0, 1], device='jax:0')"]


# ATen adds a number to a dual tensor by way of the device meta
WITH_TANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number is added": lambda x: x * x + 1,
    "to a number": lambda x: sum([x, x.sin()]),
    "a constant is added": lambda x: x.exp() + torch.ones(3, dtype=torch.float64, device=x.device),
    "a loss with a constant": lambda x: nn.functional.gaussian_nll_loss(x, x.sin(), x.square() + 0.1, full=True),
    "meta gives shapes": lambda x: x * sum(x.to("meta").shape),
}


@pytest.mark.parametrize("name", WITH_TANGENTS)
def test_dual_tensors_are_traced(name: str) -> None:
    def tangent(x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x.cos())
            return forward_ad.unpack_dual(WITH_TANGENTS[name](dual)).tangent

    x = torch.linspace(0.1, 1, 3, dtype=torch.float64)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(as_jax(tangent))(x.numpy()), tangent(x), rtol=1e-10)
