"""Equal layers as one loop, beside the same layers called one after the other by plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

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


@pytest.mark.sampled(6)
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


@pytest.mark.parametrize("remat", [False, True])
def test_eager_calls_compile_nothing(remat: bool) -> None:
    counters.clear()
    layers = _blocks(2)
    jaten_ops.scan_layers(layers, torch.ones(2, 4, 8), remat=remat).sum().backward()
    assert not counters["stats"]


def test_dropout_differs_from_layer_to_layer() -> None:
    layers = nn.ModuleList(nn.Dropout(0.5) for _ in range(2))
    kept = torch.compile(lambda x: jaten_ops.scan_layers(layers, x), backend="jaten")(torch.ones(4000))
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert 0.2 < (kept > 0).float().mean() < 0.3  # both masks alike would keep a half


def test_a_program_does_not_grow_with_its_layers() -> None:
    def products(n: int) -> int:
        layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(n)).to("jax")
        step = jaten_ops.compile_step(lambda x: jaten_ops.scan_layers(layers, x).square().mean().backward())
        return step.executable_for(torch.ones(4, 8, device="jax")).as_text().count(" dot(")  # type: ignore[attr-defined]  # a Step

    assert products(2) == products(4) > 0


class Own(nn.Module):
    """A layer with settings that its text does not show, and a number."""

    def __init__(self, number: int, eps: float = 1.0, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.number, self.eps, self.activation = number, eps, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x) + self.eps


DIFFERENT: dict[str, tuple[list[nn.Module], str]] = {
    "none": ([], "no layers"),
    "shapes": ([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], "layer 1 with"),
    "settings": ([nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.2)], "layer 2 with .*p=0.2"),
    "training": ([nn.Dropout(0.1), nn.Dropout(0.1).eval()], "training = False"),
    "dtypes": ([nn.Linear(4, 4), nn.Linear(4, 4).double()], "float64"),
    "a float": ([Own(0), Own(1, 2.0)], "Own.eps = 2.0"),
    "a function": ([Own(0), Own(1, activation=torch.sigmoid)], "sigmoid"),
    "parts": ([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU())], "layer 1 with"),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_layers_that_differ_are_refused(name: str, compiled: bool) -> None:
    layers, text = DIFFERENT[name]

    def scanned(x: Tensor) -> Any:
        return jaten_ops.scan_layers(layers, x)

    call = torch.compile(scanned, backend="jaten", fullgraph=True) if compiled else scanned
    error = TorchDynamoException if compiled else UnsupportedInputError
    with pytest.raises(error, match=text):
        call(torch.ones(2, 4))


def test_numbers_of_layers_may_differ() -> None:
    assert jaten_ops.scan_layers([Own(0), Own(1)], torch.zeros(1)).item() == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_remat_keeps_what_is_between_layers(device: str) -> None:
    """And what is random: the gradient is that of the dropout of the forward pass."""

    def kept(n: int, remat: bool) -> int:
        blocks = (nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(n))
        layers = nn.ModuleList(blocks).to("jax")
        step = jaten_ops.compile_step(lambda x: jaten_ops.scan_layers(layers, x, remat=remat).sum().backward())
        x = torch.ones(2, 512, 8, device="jax")
        executable: Any = step.executable_for(x)  # type: ignore[attr-defined]  # a Step
        return int(executable.memory_analysis().temp_size_in_bytes)

    if device == "jax":
        assert kept(4, True) < kept(4, False) / 2
    layers = nn.ModuleList(nn.Dropout(0.5) for _ in range(2))
    x = torch.ones(64, device=device, requires_grad=True)
    call = torch.compile(lambda x: jaten_ops.scan_layers(layers, x, remat=True), backend="jaten", fullgraph=True)
    result = call(x)
    result.sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), result.detach().cpu())


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_layers_that_return_what_they_are_given(device: str) -> None:
    layers, x = [nn.Identity(), nn.Identity()], torch.arange(4.0, device=device)
    assert torch.equal(jaten_ops.scan_layers(layers, x), x)


class _DropsByName(nn.Module):
    """A layer that passes all arguments of its dropout by name."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(input=x, p=0.5, training=self.training)


def test_a_dropout_by_name_is_seen() -> None:
    function = jaten_ops.as_jax(lambda x, layer: jaten_ops.scan_layers([layer], x))
    x = jnp.ones(4)
    assert jax.jit(lambda x: function(x, _DropsByName().eval()))(x).tolist() == [1.0] * 4
    with pytest.raises(RuntimeError, match="key"):
        jax.jit(lambda x: function(x, _DropsByName()))(x)


@pytest.mark.exhaustive
def test_as_jax_asks_for_no_key_where_nothing_is_drawn() -> None:
    layers = _blocks(2, dropout=0.0).to("jax")
    function = jaten_ops.as_jax(lambda x: jaten_ops.scan_layers(layers, x))
    x = torch.ones(2, 4, 8, device="jax")
    found = jaten_ops.from_jax(jax.jit(function)(jaten_ops.to_jax(x)))
    torch.testing.assert_close(found.cpu(), layers[1](layers[0](x)).detach().cpu())
    drawn = jaten_ops.as_jax(lambda x: jaten_ops.scan_layers([nn.Dropout(0.5)], x))
    with pytest.raises(RuntimeError, match="key"):
        jax.jit(drawn)(jaten_ops.to_jax(x))
