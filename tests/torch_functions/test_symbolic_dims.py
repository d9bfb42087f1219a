"""Torch functions of arrays with symbolic dimensions: exported once, they give for each size what torch gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaten_ops import as_jax, to_jax
from jaten_ops.errors import UnsupportedInputError

Program = Callable[..., Any]


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)).to("jax")


_NETWORK = _network()


def _reads_a_module(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _NETWORK(x)
    return found


def _writes(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    y[0] = 1
    y[:, 1:].mul_(x.shape[0])
    return y.flatten()[: x.shape[0]]


def _gradient(function: Program) -> Program:
    return jax.grad(lambda *arrays: (as_jax(function)(*arrays) ** 2).sum())


# name: the function of arrays, and their shapes
PROGRAMS: dict[str, tuple[Program, list[str]]] = {
    "elementwise": (as_jax(lambda x: x.sin() * 2), ["n, 3"]),
    "several results": (as_jax(lambda x: {"a": x.t(), "b": [x.sum(0), x.reshape(-1)]}), ["n, 3"]),
    "sizes as numbers": (as_jax(lambda x: torch.arange(x.shape[0], device="jax") * x.shape[0] + x[:, 0]), ["n, 3"]),
    "a module around it": (as_jax(_reads_a_module), ["n, 3"]),
    "writes": (as_jax(_writes), ["n, 3"]),
    "a write to its argument": (as_jax(lambda x: x.add_(1)), ["n, 3"]),
    "two dimensions": (as_jax(lambda x, y: torch.cat([x, y]).t() @ torch.cat([y, x])), ["n, 3", "m, 3"]),
    "a multiple": (as_jax(lambda x, y: x.repeat(2, 1) + y), ["n, 3", "2*n, 3"]),
    "a square": (as_jax(lambda x: x.tril() @ x), ["n, n"]),
    "its gradient": (_gradient(lambda x: x.softmax(0).cumsum(0)), ["n, 3"]),
    "torch's gradient": (_gradient(lambda x: x * x.detach()), ["n, 3"]),
    "a gradient in torch": (as_jax(torch.func.grad(lambda x: x.relu().square().sum())), ["n, 3"]),
    "gradient of a gradient": (jax.grad(lambda x: _gradient(lambda y: y**3)(x).sum()), ["n, 3"]),
    "mapped": (jax.vmap(as_jax(lambda x: x.cumsum(0) / x.norm())), ["n, 3"]),
    "mapped within": (jax.vmap(as_jax(lambda x: x.softmax(0))), ["2, n"]),
}  # fmt: skip


def _specs(shapes: list[str], constraints: tuple[str, ...] = ()) -> list[jax.ShapeDtypeStruct]:
    scope = jax.export.SymbolicScope(constraints)
    return [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), "float32") for s in shapes]


def _arrays(shapes: list[str], **sizes: int) -> list[jax.Array]:
    found = []
    for shape in shapes:
        dims = [math.prod(int(f) if f.isdigit() else sizes[f] for f in d.strip().split("*")) for d in shape.split(",")]
        found.append(jnp.asarray(np.random.default_rng(0).normal(size=dims), "float32"))
    return found


def _close(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_size_gives_what_torch_gives(name: str) -> None:
    function, shapes = PROGRAMS[name]
    exported = jax.export.export(jax.jit(function))(*_specs(shapes))
    for n, m in ((2, 7), (6, 2)):
        arrays = _arrays(shapes, n=n, m=m)
        _close(exported.call(*arrays), function(*arrays))


def test_gradients_of_a_module_over_an_open_batch() -> None:
    module = _network()
    parameters = to_jax({name: p.detach() for name, p in module.named_parameters()})
    gradient = jax.grad(lambda parameters, x: (as_jax(module)(parameters, x) ** 2).mean())
    specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), parameters)
    exported = jax.export.export(jax.jit(gradient))(specs, *_specs(["n, 3"]))
    for n in (2, 5):
        (x,) = _arrays(["n, 3"], n=n)
        _close(exported.call(parameters, x), gradient(parameters, x))


def test_random_numbers_are_those_of_the_key() -> None:
    def drawn(x: jax.Array, key: jax.Array) -> jax.Array:
        return as_jax(lambda x: torch.rand_like(x) + x)(x, key=key)

    key = jax.eval_shape(lambda: jax.random.key(0))
    exported = jax.export.export(jax.jit(drawn))(*_specs(["n, 3"]), key)
    first, again, other = (exported.call(jnp.zeros((4, 3)), jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all() and len(np.unique(first)) == 12


_TOTAL = torch.zeros((), device="jax")


def _by_size(x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[0] > 3 else x * 2


REFUSED: dict[str, tuple[Program, str]] = {
    "a branch on a size": (_by_size, r"one that holds only if n > 3.*constraints="),
    "a broadcast": (lambda x: x + torch.ones(5, 3, device="jax"), "one that holds only if|must match"),
    "a size of values": (lambda x: x[x > 0], "depend on values"),
    "a value": (lambda x: x * float(x.sum()), "depend on values"),
    "a write": (lambda x: _TOTAL.add_(x.sum()), "writes to a tensor that is not an argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_hold_for_all_sizes_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises((UnsupportedInputError, RuntimeError), match=message):
        jax.export.export(jax.jit(as_jax(function)))(*_specs(["n, 3"]))


def test_constraints_are_known() -> None:
    exported = jax.export.export(jax.jit(as_jax(_by_size)))(*_specs(["n, 3"], ("n >= 4",)))
    (x,) = _arrays(["n, 3"], n=4)
    np.testing.assert_array_equal(exported.call(x), x)


def test_a_random_operator_needs_a_key() -> None:
    with pytest.raises(RuntimeError, match=r"needs a key. Fix: f\(x, key=jax.random.key"):
        jax.export.export(jax.jit(as_jax(torch.rand_like)))(*_specs(["n, 3"]))
