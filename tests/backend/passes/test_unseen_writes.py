"""Gradients of inputs that a compiled function writes to where autograd does not see it, beside eager calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from jaten_ops.backend import jaten

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _under_no_grad(write: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], None]:
    def written(x: torch.Tensor) -> None:
        with torch.no_grad():
            write(x)

    return written


WRITES = {
    "scaled": _under_no_grad(lambda x: x.mul_(2)),
    "a part": _under_no_grad(lambda x: x[0].copy_(x[-1])),
    "by an index": _under_no_grad(lambda x: x.index_fill_(0, torch.tensor([1]), 3.0)),
}
USES = {
    "not used": lambda x, y: y * 2,
    "used before": lambda x, y: x * 3 + y,  # the program computes it before the write
    "read without a gradient": lambda x, y: y * x.detach().sum(),
}


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", WRITES)
def test_gradients(write: str, use: str, is_leaf: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = USES[use](x, y)
        WRITES[write](x)
        return result

    def observed(fn: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        leaf = torch.arange(6.0).reshape(3, 2).requires_grad_()
        x, y = leaf if is_leaf else leaf * 1, torch.ones(3, 2, requires_grad=True)
        fn(x, y).sum().backward()
        return [leaf.grad, y.grad, x.detach()]

    for found, expected in zip(observed(torch.compile(program, backend=jaten)), observed(program), strict=True):
        if expected is None:
            assert found is None
        else:
            torch.testing.assert_close(found, expected)
