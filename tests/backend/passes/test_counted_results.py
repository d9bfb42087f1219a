"""Results in the number that AOTAutograd has counted: gradients on the device while sizes are open."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

FIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod of columns": lambda x: x.cumprod(0) * x,
    "two in turn": lambda x: x.cumprod(0).cumprod(1),
    "householder_product": lambda x: torch.linalg.householder_product(x, x[0].cos()),
    "none": lambda x: x.sin() * x,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", FIXING)
def test_gradients_that_fix_sizes(name: str, dynamic: bool | None) -> None:
    """ATen's backward formulas ask for some sizes as numbers."""
    compiled = torch.compile(FIXING[name], backend="jaten", dynamic=dynamic)
    for shape in ((4, 3), (6, 3), (6, 5)):
        x = torch.rand(shape, dtype=torch.float64, requires_grad=True)
        y = x.detach().to("jax").requires_grad_()
        FIXING[name](x).square().sum().backward()
        compiled(y).square().sum().backward()
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(y.grad.cpu(), x.grad)


INFERRED: dict[str, Callable[[Tensor], Tensor]] = {
    "histogram": lambda x: torch.histogram(x.flatten(), x[0].sort().values)[0],
    "cumprod": FIXING["cumprod"],
    "written view": lambda x: x.t().mul_(2)[1:],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", INFERRED)
def test_inference_that_fixes_sizes(name: str, dynamic: bool | None) -> None:
    compiled = torch.compile(INFERRED[name], backend="jaten", dynamic=dynamic)
    for shape in ((4, 3), (6, 3), (6, 5)):
        x = torch.rand(shape, dtype=torch.float64)
        y = x.to("jax")
        torch.testing.assert_close(compiled(y).cpu(), INFERRED[name](x))
        torch.testing.assert_close(y.cpu(), x)


def _rows(n: int) -> tuple[int, int]:
    return n, 4


def _columns(n: int) -> tuple[int, int]:
    return 4, n


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x * 3,
    "transposed": lambda x: (x * 3).t(),
    "a part": lambda x: (x * 3)[1:, 1:],
    "a part, transposed": lambda x: (x * 3).t()[1:, 2:],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("shape", [_rows, _columns])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_that_are_written_to(
    layout: str, shape: Callable[[int], tuple[int, int]], dynamic: bool | None, device: str
) -> None:
    """Their new values lie in rows, and they do not."""

    def double(view: Tensor) -> Tensor:
        view.mul_(2)
        return view.sin()

    compiled = torch.compile(double, backend="jaten", dynamic=dynamic)
    for n in (3, 5, 6):
        found = []
        for run in (double, compiled):
            x = torch.linspace(0, 1, 4 * n, dtype=torch.float64).reshape(shape(n)).to(device).requires_grad_()
            view = LAYOUTS[layout](x)
            strides = view.stride()
            result = run(view)
            (result.sum() + view.square().sum()).backward()
            assert view.stride() == strides and x.grad is not None
            found.append((view.detach(), result.detach(), x.grad))
        torch.testing.assert_close(found[1], found[0])
