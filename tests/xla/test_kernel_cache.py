"""The number of executables in memory at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

from jaten_ops.xla import jitted, kernel_cache


def _live() -> int:
    return len(jax.devices()[0].client.live_executables())


def test_executables_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that change all the time do not keep an executable for each operator and shape."""
    monkeypatch.setattr(kernel_cache, "_MOST", 4)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="jaten")
    kept = torch.ones(3)
    expected = compiled(kept)
    before, most = _live(), 0
    for size in range(1000, 1003):
        x = torch.arange(float(size), device="jax", requires_grad=True)
        (x * 2).cos().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), -2 * (torch.arange(float(size)) * 2).sin())
        assert torch.equal(compiled(kept), expected)  # a graph holds what it has compiled
        most = max(most, _live())
    assert most <= before + 2 * kernel_cache._MOST


@pytest.mark.exhaustive
def test_a_users_function_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of jaten's programs drop none of the user's, and many of the user's none of jaten's."""
    monkeypatch.setattr(kernel_cache, "_MOST", 2)
    traces, forgotten = [], []

    @jax.jit
    def own(x: jax.Array) -> jax.Array:
        traces.append(x.shape)
        return jnp.sin(x) + x

    monkeypatch.setattr(jitted, "clear_traces", lambda forget=jitted.clear_traces: forgotten.append(1) or forget())
    own(jnp.ones(3))
    for size in range(2000, 2006):
        own(jnp.ones(size))
    assert not forgotten
    for size in range(2000, 2006):
        x = torch.arange(float(size), device="jax")
        x[1:].cos()
    assert forgotten
    before = len(traces)
    own(jnp.ones(3)), own(jnp.ones(2000))
    assert len(traces) == before


def test_programs_have_names_of_ours() -> None:
    function = jitted.jitted(lambda x, n: x + n, static_argnums=1)
    assert "jit_jaten_lambda" in function.lower(jnp.ones(2), 3).as_text()
    assert function(jnp.ones(2), 3).tolist() == [4, 4]
