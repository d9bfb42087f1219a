"""Rows that are gathered and scattered: in stretches, with the same results to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import jaten_ops
from jaten_ops.cpu.layouts import tile_gather_scatter
from jaten_ops.cpu.layouts.tile_gather_scatter import in_stretches
from jaten_ops.xla.x64 import Enabled

NODES, EDGES, WIDTH = 40, 5003, 64  # no multiple of a stretch
_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((NODES, WIDTH)).astype("float32")
SOURCE, TARGET = _RNG.integers(0, NODES, (2, EDGES))
SCALE = _RNG.standard_normal(EDGES).astype("float32")
BIAS = _RNG.standard_normal(WIDTH).astype("float32")
IN_BOUNDS = "promise_in_bounds"


def _add(updates: Any, target: Any, size: int = NODES) -> Any:
    return jnp.zeros((size, *updates.shape[1:]), updates.dtype).at[target].add(updates, mode=IN_BOUNDS)


def _take(x: Any, index: Any) -> Any:
    return x.at[index].get(mode=IN_BOUNDS)


def _sum(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(_take(x, s), t)


def _weighted(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(jax.nn.relu(_take(x, s) + b) * w[:, None], t)


def _of_both_ends(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(jnp.tanh(_take(x, s) - _take(x, t)), t)


def _checked(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """An index out of range takes NaN, or writes nothing."""
    return jnp.zeros_like(x).at[t - 3].add(x.at[s + 2].get(mode="fill"), mode="drop")


def _largest(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return jnp.full_like(x, -jnp.inf).at[t].max(_take(x, s) * w[:, None], mode=IN_BOUNDS)


def _last(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return jnp.zeros_like(x).at[t].set(_take(x, s), mode=IN_BOUNDS)


def _heads(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(_take(x.reshape(NODES, 4, -1), s) * w[:, None, None], t)


def _halves(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(_take(x, s).astype(jnp.bfloat16).reshape(EDGES, 1, WIDTH)[:, 0].astype(jnp.float32), t)


def _two_layers(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _weighted(jnp.sin(_sum(x, s, t, w, b)), t, s, w, b)


def _kept(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """The messages are a result: what is made of them is computed of their parts, but nothing is gathered there."""
    messages = _take(x, s)
    return messages, _add(messages * w[:, None], t)


def _used_as_a_whole(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    messages = _take(x, s)
    return _add(_take(messages, s) - messages, t)


def _across(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """Each row needs others."""
    return _add(jnp.cumsum(_take(x, s), 0), t)


def _attention(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """The gradients of `_weighted` without an activation: of the rows, and of their weights."""
    grads = _take(jnp.sin(x), t)
    return (grads * _take(x, s)).sum(1), _add(grads * w[:, None], s)


def _needed_early(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """Something is made of the sums before the operands of the scatter are there."""
    messages = _take(x, s)
    largest = jnp.cumsum(messages.max(1))
    return largest, _add(messages, jnp.flip(jnp.flip(t)) % NODES)


def _aggregations(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    messages = _take(x, s) * w[:, None]
    least = jnp.full_like(x, jnp.inf).at[t].min(messages, mode=IN_BOUNDS)
    return _add(messages, t), least, _add(jnp.square(messages), t), messages.max(1)


def _normalized(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """The weights of rows are sums over them, divided by those of their neighbours: one loop cannot do that."""
    messages = _take(x, s)
    scores = jnp.square(messages).sum(1)
    return _add(messages * (scores / _take(_add(scores, t), t))[:, None], t)


def _of_a_result(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """The second scatter takes rows of the first one's result."""
    messages = _take(x, s)
    return _add(messages * _take(_add(messages, t), t), t)


def _crossed(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """Each of two loops would take what the other one makes."""
    one, two = _take(x, s), _take(jnp.sin(x), t)
    return _add(one * two.sum(1)[:, None], t), _add(two * one.sum(1)[:, None], s)


def _as_many_nodes(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """A result has as many rows as are scattered, but they are not these."""
    x = x[jnp.arange(EDGES) % NODES]
    y = jnp.sin(_add(_take(x, s), t, EDGES))
    return _add(_take(x, t) * y, s, EDGES)


def _as_many_nodes_share(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    messages = _take(x[jnp.arange(EDGES) % NODES], s)
    return _add(messages * _add(messages, t, EDGES), t, EDGES)


def _columns(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return jnp.zeros((WIDTH, NODES), x.dtype).at[:, t].add(_take(x, s).T, mode=IN_BOUNDS)


def _of_rows_that_are_stored(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    """The gradient of a maximum: twice as much is read again as is not stored."""
    messages, largest = _take(x, s), _take(jnp.sin(x), t)
    return messages, largest, _add(jnp.where(messages > largest, _take(x, t), 0), s)


def _few(x: Any, s: Any, t: Any, w: Any, b: Any) -> Any:
    return _add(_take(x, s[:200]), t[:200])


PROGRAMS: dict[Callable[..., Any], int] = {
    _sum: 1, _weighted: 1, _of_both_ends: 1, _checked: 1, _largest: 1, _last: 1, _heads: 1, _halves: 1, _two_layers: 2,
    _kept: 0, _used_as_a_whole: 1, _across: 0, _columns: 0, _few: 0, _attention: 1, _needed_early: 1, _aggregations: 1,
    _normalized: 0, _of_a_result: 1, _as_many_nodes: 2, _as_many_nodes_share: 0, _crossed: 1,
    _of_rows_that_are_stored: 0,
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_results_are_the_same(program: Callable[..., Any]) -> None:
    operands = X, SOURCE, TARGET, SCALE, BIAS
    with Enabled():
        plain = jax.make_jaxpr(program)(*operands)
        looped = in_stretches(plain)
        got, expected = (jax.jit(jax.extend.core.jaxpr_as_fun(p))(*operands) for p in (looped, plain))
    assert sum(e.primitive is lax.scan_p for e in looped.jaxpr.eqns) == PROGRAMS[program]
    assert (looped is plain) is (PROGRAMS[program] == 0)
    for a, b in zip(got, expected, strict=True):
        if a.ndim == 1 or program is _crossed:  # sums of rows, whose terms are added in another order
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())
        else:
            np.testing.assert_array_equal(a, b)


def _assert_near(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Sums of hundreds of float32, whose order torch's threads change, beside those in float64."""
    scale = exact.detach().abs().max()
    torch.testing.assert_close(got.double() / scale, exact.detach() / scale, rtol=0, atol=2e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_attention_over_edges(dtype: torch.dtype, device: str) -> None:
    """The gradients of scores, and of what they weigh, in one loop."""
    source, target = (torch.from_numpy(i).to(device) for i in (SOURCE, TARGET))

    def attend(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        messages = scores.unsqueeze(-1) * x.index_select(0, source)
        return x.new_zeros(x.shape).scatter_add(0, target.unsqueeze(-1).expand(EDGES, WIDTH), messages)

    given = [torch.from_numpy(a).to(device, dtype).requires_grad_() for a in (X, SCALE)]
    exact = [a.detach().to("cpu", torch.float64).requires_grad_() for a in given]
    weights = torch.from_numpy(np.sin(X))
    torch.compile(attend, backend="jaten")(*given).backward(weights.to(device, dtype))
    source, target = source.cpu(), target.cpu()
    attend(*exact).backward(weights.double())
    for a, b in zip(given, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        _assert_near(a.grad.cpu(), b.grad)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edges", [EDGES, EDGES - EDGES % 256, 4096 + 1])
def test_a_compiled_graph_network(edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[int] = []
    run = tile_gather_scatter._Loop.run
    monkeypatch.setattr(tile_gather_scatter._Loop, "run", lambda *args: (loops.append(1), run(*args))[1])
    source, target = (torch.from_numpy(i[:edges]) for i in (SOURCE, TARGET))

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, target, x[source] * 2).relu()

    x, y = torch.from_numpy(X).clone().requires_grad_(), torch.from_numpy(X).double().requires_grad_()
    torch.compile(layer, backend="jaten")(x).square().sum().backward()
    layer(y).square().sum().backward()
    _assert_near(x.grad, y.grad)
    assert len(loops) == 2


def test_a_step() -> None:
    with Enabled():
        x = torch.from_numpy(X).to("jax").requires_grad_()
    source, target = (torch.from_numpy(i).to("jax") for i in (SOURCE, TARGET))

    def update() -> torch.Tensor:
        loss = torch.zeros_like(x).index_add(0, target, x[source]).square().sum()
        loss.backward()
        return loss

    loss = jaten_ops.compile_step(update, x)()
    y = torch.from_numpy(X).double().requires_grad_()
    expected = torch.zeros_like(y).index_add(0, torch.from_numpy(TARGET), y[torch.from_numpy(SOURCE)]).square().sum()
    expected.backward()
    _assert_near(loss.detach().cpu(), expected)
    _assert_near(x.grad.cpu(), y.grad)
