"""Gradients of views that a program makes before it turns their base in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import jaten_ops  # noqa: F401  # the device jax

from ...harness.passes import golden

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _row(x: Tensor) -> Tensor:
    y = x * 2
    row = y[1]
    y.t_()
    return row


def _row_and_base(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    row = y[1]
    y.transpose_(0, 1)
    return row * 1, y


def _of_the_result(x: Tensor) -> Tensor:
    """The in-place operation's result, and another name of the tensor, are turned with it."""
    y = x * 2
    same = y.mul_(3)
    column = y[:, 0]
    turned = y.swapaxes_(0, 1)
    return same[0] * turned[1] + y[2] * column


def _of_a_view(x: Tensor) -> Tensor:
    y = x * 2
    part = y[:2, :2]
    part.t_()
    return part[0] * y[:2, 3] + part[1]


def _written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[1]
    y.t_()
    y[0].mul_(5)
    row.add_(1)
    return row.sin(), y


def _twice(x: Tensor) -> Tensor:
    y = x.sin()
    row = y[1]
    y.t_()
    y.unsqueeze_(0)
    y.squeeze_(0)
    y.t_()
    return row * y[2]


def _without_gradients(x: Tensor) -> Tensor:
    y = x * 2
    row = y[1]
    with torch.no_grad():
        other = x.detach() * 3
        column = other[:, 1]
        other.t_()
    return row * column * other[0]


def _in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(_row, x, use_reentrant=False) * x[0]


def _of_an_input(x: Tensor) -> Tensor:
    y = x.detach()
    row = y[1] * 1
    y.t_()
    return x.sin()[0] * row + y[0]


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a row": _row,
    "a row, and the base": _row_and_base,
    "the result": _of_the_result,
    "of a view": _of_a_view,
    "written": _written,
    "twice": _twice,
    "without gradients": _without_gradients,
    "in a checkpoint": _in_a_checkpoint,
    "of an input": _of_an_input,
}


def _run(fn: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    """The results, and the gradient of a sum in which each element counts differently."""
    x = x.clone().requires_grad_()
    results = fn(x)
    results = results if isinstance(results, tuple) else (results,)
    weights = [torch.arange(1.0, r.numel() + 1, device=x.device).view(r.shape) for r in results]
    torch.stack([(r * w).sum() for r, w in zip(results, weights, strict=True)]).sum().backward()
    assert x.grad is not None
    return [t.detach().cpu() for t in (*results, x.grad)]


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager_calls(name: str, device: str) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = _run(PROGRAMS[name], x)
    torch.testing.assert_close(_run(PROGRAMS[name], x.to(device)), expected)
    compiled = torch.compile(PROGRAMS[name], backend="jaten", fullgraph=True)
    torch.testing.assert_close(_run(compiled, x.to(device)), expected)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_a_row(self) -> None:
        self.assertExpectedInline(
            golden("out_of_place_views", _row, torch.ones(2, 2)),
            """\
--- captured
l_x_: float32[2, 2]
y: float32[2, 2] = mul(l_x_, 2)
row: float32[2] = getitem(y, 1)
t_: float32[2, 2] = t_(y)
return (row,)

=>

l_x_: float32[2, 2]
y: float32[2, 2] = mul(l_x_, 2)
row: float32[2] = getitem(y, 1)
t: float32[2, 2] = t(y)
return (row,)""",
        )
