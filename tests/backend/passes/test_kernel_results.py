"""Layers in half precision with parameters in float32, as under autocast: compiled, they train as eager ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ...harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")  # the tests compile the same code

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(8), (4, 8)),
    "layer norm of several dimensions": (lambda: nn.LayerNorm((8, 3)), (4, 8, 3)),
    "layer norm of nothing": (lambda: nn.LayerNorm(8), (0, 8)),
    "batch norm": (lambda: nn.BatchNorm1d(8), (4, 8)),
    "batch norm of images": (lambda: nn.BatchNorm2d(8), (2, 8, 4, 4)),
    "batch norm without parameters": (lambda: nn.BatchNorm2d(8, affine=False), (2, 8, 4, 4)),
    "batch norm without anything": (
        lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False), (2, 8, 4, 4),
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (2, 8, 4, 4)),
    "RMS norm": (lambda: nn.RMSNorm(8), (4, 8)),
    "embedding of a linear layer": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()), (4, 8)),
}  # fmt: skip
DTYPES = (torch.bfloat16, torch.float16)
DYNAMIC = (False, True)


def _trained(call: Callable[[torch.Tensor], torch.Tensor], layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.clone().requires_grad_()
    with torch.autocast(x.device.type, dtype=x.dtype):
        y = call(leaf)
    y.float().square().sum().backward()
    gradients = [leaf.grad, *(p.grad for p in layer.parameters())]
    return [y.detach(), *(g for g in gradients if g is not None), *layer.buffers()]


@pytest.mark.parametrize(("name", "dtype", "dynamic"), crossed(LAYERS, DTYPES, DYNAMIC))
def test_layers_train_as_eager_ones(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    other = copy.deepcopy(layer)
    x = torch.randn(shape).to(dtype)
    wanted = _trained(layer, layer, x)
    got = _trained(torch.compile(other, backend="jaten", dynamic=dynamic), other, x)
    # both round to half precision, in another order
    torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2, equal_nan=True)
    assert [g.dtype for g in got] == [w.dtype for w in wanted]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bags_of_rows_train_as_eager_ones(dtype: torch.dtype, mode: str) -> None:
    rows = torch.tensor([[1, 2, 4, 3], [0, 0, 1, 2]])

    def gradient(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        weight = torch.arange(20.0).reshape(5, 4).to(dtype).requires_grad_()
        call(rows, weight).sum().backward()
        assert weight.grad is not None
        return weight.grad

    def bags(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding_bag(rows, weight, mode=mode)

    torch.testing.assert_close(gradient(torch.compile(bags, backend="jaten")), gradient(bags))


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_that_are_returned(dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 8).to(dtype), torch.ones(8)

    def statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, mean, factor = torch.native_layer_norm(x, (8,), weight, weight, 1e-5)
        return mean.view(2, 2), factor * 2

    torch.testing.assert_close(torch.compile(statistics, backend="jaten")(x), statistics(x))
