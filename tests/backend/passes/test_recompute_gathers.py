"""Rows that are gathered again in the backward graph: what is kept for it, and that gradients are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch.utils.checkpoint import checkpoint

from ...harness.passes import without

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
INDEX = torch.arange(12) % 5

# the program, and how many elements less are kept than without the pass
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "more": (lambda x: x.index_select(0, INDEX).sin(), 12 * 3),
    "of what is computed": (lambda x: x.exp().index_select(0, INDEX).sin(), 12 * 3),
    "columns": (lambda x: x.index_select(1, INDEX % 3).sin(), 5 * 12),
    "as many": (lambda x: x.index_select(0, INDEX[:5]).sin(), 0),
    "index": (lambda x: x[INDEX].sin(), 0),
    "checkpoint": (lambda x: checkpoint(lambda y: y.index_select(0, INDEX).sin(), x, use_reentrant=False), 0),
}


def _kept(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dynamic: bool) -> int:
    """Elements that the result keeps for its gradient."""
    kept: dict[int, int] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        kept[value.data_ptr()] = value.numel() if value.is_floating_point() else 0
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        torch.compile(fn, backend="jaten", dynamic=dynamic)(x)
    torch._dynamo.reset()
    return sum(kept.values()) - kept.get(x.data_ptr(), 0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_less_is_kept(program: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    fn, less = PROGRAMS[program]
    x = torch.randn(5, 3, requires_grad=True)
    kept = _kept(fn, x, dynamic)
    with without("recompute_gathers"):
        assert _kept(fn, x, dynamic) - kept == less


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program: str, device: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, _ = PROGRAMS[program]
    x = torch.randn(5, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(fn(x).sum(), x)
    monkeypatch.setattr(f"{__name__}.INDEX", INDEX.to(device))
    y = x.detach().to(device).requires_grad_()
    (got,) = torch.autograd.grad(torch.compile(fn, backend="jaten", dynamic=dynamic)(y).sum(), y)
    torch.testing.assert_close(got.cpu(), expected)


def test_an_index_out_of_range_raises() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    with pytest.raises((IndexError, RuntimeError), match=r"out of range|out of bounds"):
        torch.compile(lambda x, i: x.index_select(0, i).sin(), backend="jaten")(x, torch.arange(12) - 1)
