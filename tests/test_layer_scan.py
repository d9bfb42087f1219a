"""Equal layers as one loop, beside the same layers called one after the other by plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

from .harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Block(nn.Module):
    """Causal attention of one head under a mask, and a perceptron."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.rand(()))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.scale * nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return x + self.dropout(self.down(nn.functional.gelu(self.up(x))))


def _blocks(n: int, dropout: float = 0.0) -> nn.ModuleList:
    return nn.ModuleList(Block(dropout) for _ in range(n))


Run = Callable[[Tensor, Tensor], Tensor]


def _eager(step: Run) -> Run:
    return step


def _in_a_step(step: Run) -> Run:
    return jaten_ops.compile_step(step)


WAYS: dict[str, tuple[str, Callable[[Run], Run], bool]] = {
    "eager": ("cpu", _eager, False),
    "on jax": ("jax", _eager, False),
    "compiled": ("cpu", _eager, True),
    "compiled on jax": ("jax", _eager, True),
    "a step": ("jax", _in_a_step, False),
}


@pytest.mark.parametrize(("way", "remat"), crossed(WAYS, [False, True]))
def test_as_one_after_the_other(way: str, remat: bool) -> None:
    device, put_into, compiled = WAYS[way]
    plain = _blocks(3)
    layers = copy.deepcopy(plain).to(device)
    x, mask = torch.randn(2, 4, 8), torch.randn(4, 4).tril()
    expected = x
    for layer in plain:
        expected = layer(expected, mask)
    expected.square().mean().backward()

    def scanned(x: Tensor, mask: Tensor) -> Tensor:
        return jaten_ops.scan_layers(layers, x, mask=mask, remat=remat)  # type: ignore[no-any-return]  # any structure

    call = torch.compile(scanned, backend="jaten", fullgraph=True) if compiled else scanned

    def step(x: Tensor, mask: Tensor) -> Tensor:
        for parameter in layers.parameters():
            parameter.grad = None
        result = call(x, mask)
        result.square().mean().backward()
        return result.detach()

    run = put_into(step)
    for _ in range(2):
        got = run(x.to(device), mask.to(device))
    torch.testing.assert_close(got.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for one, other in zip(layers.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6)


def test_dropout_differs_from_layer_to_layer() -> None:
    layers = nn.ModuleList(nn.Dropout(0.5) for _ in range(2))
    kept = torch.compile(lambda x: jaten_ops.scan_layers(layers, x), backend="jaten")(torch.ones(4000))
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert 0.2 < (kept > 0).float().mean() < 0.3  # both masks alike would keep a half


def test_a_program_does_not_grow_with_its_layers() -> None:
    def products(n: int) -> int:
        layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(n)).to("jax")
        step = jaten_ops.compile_step(lambda x: jaten_ops.scan_layers(layers, x).square().mean().backward())
        step(torch.ones(4, 8, device="jax"))
        return step.executable_for(torch.ones(4, 8, device="jax")).as_text().count(" dot(")  # type: ignore[attr-defined]  # a Step

    assert products(3) == products(6) > 0


def _named(layers: Iterable[nn.Module]) -> Any:
    return lambda: jaten_ops.scan_layers(layers, torch.ones(2, 4))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (_named([]), "no layers"),
        (_named([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]), "layer 1 as"),
        (_named([nn.Dropout(0.1), nn.Dropout(0.2)]), "p=0.2"),
        (_named([nn.Dropout(0.1), nn.Dropout(0.1).eval()]), "layer 1 as"),
        (_named([nn.Linear(4, 4), nn.Linear(4, 4).double()]), "float64"),
    ],
    ids=["none", "shapes", "settings", "training", "dtypes"],
)
def test_layers_that_differ_are_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(UnsupportedInputError, match=text):
        call()
