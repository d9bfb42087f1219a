"""Operators that torch would take apart while it traces stay whole in jaten's graphs, and in no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd

from jaten_ops.backend import keep_whole

from ..harness.passes import watched

CALLS: dict[str, Any] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest-exact": lambda x: F.interpolate(x, size=(5, 7), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False),
    "bicubic": lambda x: F.interpolate(x, size=(3, 9), mode="bicubic", align_corners=True),
    "antialiased": lambda x: F.interpolate(x, size=(2, 2), mode="bilinear", antialias=True),
    "softshrink": F.softshrink,
    "multilabel": lambda x: F.multilabel_margin_loss(x.reshape(2, -1), torch.tensor([[1, 0, -1] + [3] * 69] * 2)),
}


def _tables() -> list[dict[Any, Any]]:
    return [dict(op.py_kernels) for op in keep_whole.kept_operators()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_values_gradients_and_graphs(name: str) -> None:
    seen: list[str] = []
    before, fn = _tables(), CALLS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    with watched("rename_operators", lambda gm: seen.extend(str(n.target) for n in gm.graph.nodes)):
        got, expected = torch.compile(fn, backend="jaten")(x), fn(x)
        grad = torch.randn_like(expected)
        torch.testing.assert_close(got, expected)
        found, wanted = (torch.autograd.grad(y, x, grad)[0] for y in (got, expected))
    torch.testing.assert_close(found, wanted)
    assert not any("index" in target for target in seen), seen
    assert _tables() == before and any(before)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["nearest", "nearest-exact", "bilinear"])
def test_no_images(name: str, device: str) -> None:
    """ATen's meta functions of the operators that are kept refuse them."""
    x = torch.randn(0, 3, 4, 6, device=device, requires_grad=True)
    got = torch.compile(CALLS[name], backend="jaten")(x)
    assert got.shape == CALLS[name](x).shape
    assert torch.autograd.grad(got.sum(), x)[0].shape == x.shape


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic"])
def test_sizes_that_change(name: str, device: str) -> None:
    """torch takes them apart then: in C++ they do not take such sizes."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(F.max_pool2d(x, 2), scale_factor=2, mode=name)

    run = torch.compile(fn, backend="jaten", dynamic=True)
    for size in ((17, 21), (12, 9)):
        x = torch.randn(2, 3, *size, requires_grad=True)
        on_device = x.detach().to(device).requires_grad_()
        got, expected = run(on_device), fn(x)
        torch.testing.assert_close(got.cpu(), expected)
        found, wanted = (torch.autograd.grad(y.sum(), z)[0] for y, z in ((got, on_device), (expected, x)))
        torch.testing.assert_close(found.cpu(), wanted)


def test_other_backends_trace_as_ever() -> None:
    seen: list[str] = []

    def compiler(gm: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.extend(str(n.target) for n in gm.graph.nodes)
        return gm.forward

    x = torch.randn(1, 1, 2, 2)
    torch.compile(CALLS["nearest"], backend="jaten")(x)
    torch.compile(lambda x: F.interpolate(x, scale_factor=2) + 1, backend=aot_autograd(fw_compiler=compiler))(x)
    assert "aten._unsafe_index.Tensor" in seen
