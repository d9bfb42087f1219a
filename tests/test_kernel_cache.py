"""How many executables are in memory at once."""

from __future__ import annotations

import jax
import pytest
import torch

from jaten_ops import kernel_cache


def _live() -> int:
    return len(jax.devices()[0].client.live_executables())


def test_executables_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where shapes change all the time, JAX would keep an executable for each operator and shape."""
    monkeypatch.setattr(kernel_cache, "_MOST", 8)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="jaten")
    kept = torch.ones(3)
    expected = compiled(kept)
    before, most = _live(), 0
    for size in range(1000, 1012):
        x = torch.arange(float(size), device="jax", requires_grad=True)
        (x * 2).cos().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), -2 * (torch.arange(float(size)) * 2).sin())
        assert torch.equal(compiled(kept), expected)  # a graph holds what it has compiled
        most = max(most, _live())
    assert most <= before + 2 * kernel_cache._MOST
