"""Sums of products of matrices: which become one product, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu.layouts.joined_products import with_joined_products
from jaten_ops.xla.x64 import Enabled

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((5, 4, 48)).astype("float32")  # steps, rows, columns
Y = _RNG.standard_normal((5, 4, 64)).astype("float32")


def _outer(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))


def _outers(x: Any, y: Any) -> list[Any]:
    return [_outer(a, b) for a, b in zip(x, y, strict=True)]


def _added(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _recurrence(w: Any, x: Any) -> Any:
    """A layer with one weight for all steps, as a program writes it out."""
    state = jnp.zeros((x.shape[1], w.shape[0]), x.dtype)
    for step in x:
        state = jnp.tanh(lax.pad(step, np.zeros((), x.dtype), [(0, 0, 0), (0, 16, 0)]) + state @ w.T)
    return jnp.sum(state**2)


def _kept(x: Any, y: Any) -> Any:
    """One of the products is a result, too."""
    parts = _outers(x, y)
    return _added(parts), parts[2]


def _partial(x: Any, y: Any) -> Any:
    """A part of the sum is used by something else, and so is computed by itself."""
    first = _added(_outers(x[:3], y[:3]))
    return first + _outer(x[3], y[3]) + _outer(x[4], y[4]), jnp.sin(first)


def _of_batches(x: Any, y: Any) -> Any:
    numbers = (((1,), (1,)), ((0,), (0,)))
    return _added([lax.dot_general(x[:, i : i + 1], y[:, i : i + 1], numbers) for i in range(4)])


def _widened(x: Any, y: Any) -> Any:
    """In float32, of factors in bfloat16."""
    short = [(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)) for a, b in zip(x, y, strict=True)]
    return _added(
        [lax.dot_general(a, b, (((0,), (0,)), ((), ())), preferred_element_type=np.float32) for a, b in short]
    )


def _beside_others(x: Any, y: Any) -> Any:
    return _added([jnp.full((48, 64), x[0, 0, 0]), *_outers(x, y), jnp.sin(x[0].T @ y[0])])


# name: the program of X and Y, and how many products it has then
PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "several": (lambda x, y: _added(_outers(x, y)), 1),
    "transposed": (lambda x, y: _added([p.T for p in _outers(y, x)]), 1),
    "both": (lambda x, y: _added([*[p.T for p in _outers(y, x)], *_outers(x, y)]), 1),
    "of transposed factors": (lambda x, y: _added([a.T @ b for a, b in zip(x, y, strict=True)]), 1),
    "of one transposed, and not": (lambda x, y: _outer(x[0], y[0]) + x[1].T @ y[1] + _outer(y[2], x[2]).T, 1),
    "used by others": (lambda x, y: _added(_outers(x, y)) * 2 + jnp.ones((48, 64)), 1),
    "beside others": (_beside_others, 2),
    "a tree": (lambda x, y: _added(_outers(x[:2], y[:2])) + _added(_outers(x[2:], y[2:])), 1),
    "a product is a result": (_kept, 2),
    "a part is used": (_partial, 3),
    "two": (lambda x, y: _added(_outers(x[:2], y[:2])), 2),
    "many terms": (lambda x, y: _added(_outers(*[jnp.tile(x, (1, 20, 1))] * 2)), 5),
    "batches": (_of_batches, 4),
    "one times a number": (lambda x, y: _added([*_outers(x[:4], y[:4]), 2 * _outer(x[4], y[4])]), 2),
    "short dtypes": (_widened, 5),
    "a gradient": (lambda x, y: jax.grad(_recurrence)(y[0, 0] * jnp.ones((64, 1), "float32"), x), 10),
}


def _products(jaxpr: Any) -> int:
    return sum(e.primitive is lax.dot_general_p for e in jaxpr.eqns)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_same(name: str) -> None:
    program, count = PROGRAMS[name]
    with Enabled():
        plain = jax.make_jaxpr(program)(X, Y)
        joined = with_joined_products(plain)
        found, expected = (jax.jit(jax.extend.core.jaxpr_as_fun(p))(X, Y) for p in (joined, plain))
    assert (joined is plain) == (_products(plain.jaxpr) == count) and _products(joined.jaxpr) == count
    for got, wanted in zip(found, expected, strict=True):
        # up to 80 terms of float32 are added up in another order
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_recurrence_is_trained(cell: Any, device: str) -> None:
    torch.manual_seed(0)
    net, x = cell(48, 64), torch.randn(6, 3, 48)

    def run(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x:
            state = net(step, state)
        return state[0] if isinstance(state, tuple) else state

    def trained(run: Callable[..., torch.Tensor], net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        result = run(net, x)
        result.square().sum().backward()
        found = [t.detach().cpu() for t in (result, *[p.grad for p in net.parameters() if p.grad is not None])]
        net.zero_grad()
        return found

    expected = trained(run, net, x)
    net, x = net.to(device), x.to(device)
    found = trained(torch.compile(run, backend="jaten"), net, x)
    assert len(found) == 5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # six steps, each with sums in another order
