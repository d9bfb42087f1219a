"""Long chains of cheap operations: what is stored of them, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu.layouts.break_chains import with_chains_stored
from jaten_ops.xla.x64 import Enabled

_RNG = np.random.default_rng(0)
STEPS = 40
K = _RNG.standard_normal((4, STEPS, 128)).astype("float32")
W = _RNG.random(128).astype("float32")


def _recurrence(k: Any, w: Any) -> Any:
    """Each step is used by the next one and by a result."""
    state, found = jnp.zeros_like(k[:, 0]), []
    for t in range(k.shape[1]):
        state = w * state + k[:, t]
        found.append(state / (1 + jnp.abs(state)))
    return jnp.stack(found, 1)


def _one_use(k: Any, w: Any) -> Any:
    """A chain that is computed once."""
    state = k[:, 0]
    for t in range(k.shape[1]):
        state = w * state + k[:, t]
    return state


def _short(k: Any, w: Any) -> Any:
    return _recurrence(k[:, :4], w)


def _costly(k: Any, w: Any) -> Any:
    """XLA computes a hyperbolic tangent once, however often it is used."""
    state, found = k[:, 0], []
    for t in range(k.shape[1]):
        state = jnp.tanh(state + k[:, t])
        found.append(state + 1)
    return jnp.stack(found, 1)


def _interrupted(k: Any, w: Any) -> Any:
    """A product is stored anyway."""
    state, found = k[:, 0], []
    for t in range(k.shape[1]):
        state = jnp.dot(w * state, jnp.ones((128, 128), "float32")) / 128 + k[:, t]
        found.append(state + 1)
    return jnp.stack(found, 1)


def _integers(k: Any, w: Any) -> Any:
    return _recurrence(k.astype(jnp.int32), w.astype(jnp.int32))


PROGRAMS: dict[Callable[..., Any], bool] = {
    _recurrence: True, _one_use: False, _short: False, _costly: False, _interrupted: False, _integers: False,
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_results_are_the_same(program: Callable[..., Any]) -> None:
    with Enabled():
        plain = jax.make_jaxpr(program)(K, W)
        short = with_chains_stored(plain)
        got, expected = (jax.jit(jax.extend.core.jaxpr_as_fun(p))(K, W) for p in (short, plain))
    assert (short is not plain) is PROGRAMS[program]
    assert any(e.primitive is lax.cond_p for e in short.jaxpr.eqns) is PROGRAMS[program]
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_code_grows_as_the_chain_does() -> None:
    """By its square without: of twice the steps four times as much."""

    def size(steps: int, change: Callable[..., Any]) -> int:
        with Enabled():
            program = change(jax.make_jaxpr(_recurrence)(K[:, :steps], W))
            compiled = jax.jit(jax.extend.core.jaxpr_as_fun(program)).lower(K[:, :steps], W).compile()
        return len(compiled.as_text().splitlines())

    assert size(STEPS, with_chains_stored) < 2.5 * size(STEPS // 2, with_chains_stored)
    assert size(STEPS, lambda p: p) > 2.5 * size(STEPS // 2, lambda p: p)


@pytest.mark.exhaustive
def test_a_compiled_recurrence() -> None:
    def fn(k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros_like(k[:, 0]), []
        for t in range(k.shape[1]):
            state = w * state + k[:, t]
            found.append(state / (1 + state.abs()))
        return torch.stack(found, 1)

    (k, w), (other_k, other_w) = ([torch.from_numpy(x).clone().requires_grad_() for x in (K, W)] for _ in range(2))
    got, expected = torch.compile(fn, backend="jaten")(k, w), fn(other_k, other_w)
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close([k.grad, w.grad], [other_k.grad, other_w.grad], rtol=1e-4, atol=1e-4)
