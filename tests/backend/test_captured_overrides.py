"""Overrides and programs that are compiled: what is compiled anew, dynamic sizes, blocks inside."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import jaten_ops
from jaten_ops.backend import captured_overrides
from jaten_ops.registry import active_overrides

from ..harness.overridden import override_of, scaled

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


def test_a_condition_on_dynamic_sizes_is_a_guard() -> None:
    compiled = torch.compile(F.relu, backend="jaten", dynamic=True)
    counters.clear()
    with scaled(3, when=lambda self: self.shape[0] > 4):
        assert [compiled(torch.ones(n))[0].item() for n in (2, 3, 7, 9, 4)] == [1, 1, 3, 3, 1]
    assert counters["stats"]["unique_graphs"] == 2


def test_sizes_that_change_capture_once() -> None:
    override, _, _ = override_of("layer_norm", "both")
    compiled = torch.compile(lambda x: F.layer_norm(x, (8,)).sum(), backend="jaten", dynamic=True)
    counters.clear()
    with override:
        for n in (3, 5, 7):
            x = torch.randn(n, 8, requires_grad=True)
            compiled(x).backward()
            assert torch.equal(x.grad, torch.full_like(x, 7))
    assert counters["stats"]["unique_graphs"] == 1


def test_what_was_compiled_follows() -> None:
    compiled = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    on_jax = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    step = jaten_ops.compile_step(lambda x: F.relu(x) + 1)
    override = scaled(3)
    for is_installed in (False, True, False, True):
        if is_installed:
            override.install()
        x, y = torch.ones(2), torch.ones(2, device="jax")
        expected = 4 if is_installed else 2
        assert [f(a)[0].item() for f, a in ((compiled, x), (on_jax, y), (step, y), (step, y))] == [expected] * 4
        if is_installed:
            override.remove()
    counters.clear()
    with override:
        assert compiled(torch.ones(2))[0].item() == 4
    assert not counters["stats"]["unique_graphs"]  # what was compiled for it is still there


def test_what_was_compiled_before_the_first_override_follows(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(active_overrides, "_made", False)
    compiled = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    compiled(torch.ones(2))
    assert captured_overrides._COMPILED
    monkeypatch.setattr(active_overrides, "AT_FIRST", [captured_overrides._forget_all])
    with scaled(3):
        assert compiled(torch.ones(2))[0].item() == 4
    assert compiled(torch.ones(2))[0].item() == 2


def test_blocks_inside_of_a_compiled_function() -> None:
    inner, outer = scaled(3), scaled(5)

    @torch.compile(backend="jaten", fullgraph=True, options={"overrides": [outer]})
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = F.relu(x)
        with inner:
            inside = F.relu(x)
        return before, inside, F.relu(x)

    x = torch.ones(2, requires_grad=True)
    results = function(x)
    assert [r[0].item() for r in results] == [5, 3, 5]
    sum(r.sum() for r in results).backward()
    assert x.grad.tolist() == [13, 13]
