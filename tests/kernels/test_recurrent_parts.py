"""Compiled LSTM layers, whose gradients are made of the gates of the forward pass, beside ATen's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jaten_ops  # noqa: F401  # the backend
from jaten_ops.ops.namespace import operator_of

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {}, "both directions": {"bidirectional": True}, "no bias": {"bias": False},
    "two, batch first": {"batch_first": True, "num_layers": 2},
}  # fmt: skip
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 0.02}  # bfloat16 has eight bits


def _results(module: nn.Module, call: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    out, (hy, cy) = call(leaf)
    total = out.sin().sum() + 2 * hy.cos().sum() + 3 * cy.sin().sum()
    return [out, hy, cy, *torch.autograd.grad(total, [leaf, *module.parameters()])]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("layer", "dtype", "dynamic"), crossed(LAYERS, _CLOSE, [False, True]), ids=lambda x: str(x).replace("torch.", "")
)
def test_a_compiled_lstm(layer: str, dtype: torch.dtype, dynamic: bool) -> None:
    torch.manual_seed(0)
    module, x = nn.LSTM(8, 8, **LAYERS[layer]).to(dtype), torch.randn(5, 3, 8, dtype=dtype)
    own = copy.deepcopy(module)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(own, backend="jaten", dynamic=dynamic, fullgraph=True)
        found = _results(own, compiled, x)
        with torch.no_grad():
            without_gradients = compiled(x)[0]
    expected = _results(module, module, x)
    close = {"rtol": _CLOSE[dtype], "atol": _CLOSE[dtype] * max(1, expected[-1].abs().max().item())}
    torch.testing.assert_close(found, expected, **close)
    torch.testing.assert_close(without_gradients, expected[0].detach(), **close)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_without_a_workspace(reverse: bool) -> None:
    """They are the same as with that of the forward pass."""
    x, hx, cx = torch.randn(4, 2, 3), torch.randn(2, 5), torch.randn(2, 5)
    weights = torch.randn(20, 3), torch.randn(20, 5), torch.randn(20), torch.randn(20)
    settings = [], 2, 5, 1, True
    forward, backward = operator_of("mkldnn_rnn_layer"), operator_of("mkldnn_rnn_layer_backward")
    out, hy, cy, workspace = forward(x, *weights, hx, cx, reverse, *settings, False, False, True)
    found = []
    for saved in (workspace, torch.empty(0, dtype=torch.uint8)):
        grads = out.sin(), hy.cos(), cy.sin()
        operands = x, *weights, hx, cx, out, hy, cy, *grads
        found.append(backward(*operands, reverse, 2, 5, 1, True, True, False, [], False, saved))
    for with_workspace, without in zip(*found, strict=True):
        torch.testing.assert_close(without, with_workspace)
