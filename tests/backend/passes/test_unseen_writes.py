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
    "by an index": _under_no_grad(lambda x: x.index_fill_(0, torch.tensor([1], device=x.device), 3.0)),
    "detached": lambda x: x.detach().mul_(2),
    "its data": lambda x: x.data.mul_(2),
}
OF_LEAVES = ("detached", "its data")  # torch lets autograd see these writes to other inputs, so that zeros come back
USES = {
    "not used": lambda x, y: y * 2,
    "used before": lambda x, y: x * 3 + y,  # the program computes it before the write
    "read without a gradient": lambda x, y: y * x.detach().sum(),
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("write", "is_leaf"), [(w, f) for w in WRITES for f in (True, False) if f or w not in OF_LEAVES]
)
def test_gradients(write: str, use: str, is_leaf: bool, device: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = USES[use](x, y)
        WRITES[write](x)
        return result

    def observed(fn: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        leaf = torch.arange(6.0).reshape(3, 2).to(device).requires_grad_()
        x, y = leaf if is_leaf else leaf * 1, torch.ones(3, 2, device=device, requires_grad=True)
        fn(x, y).sum().backward()
        return [leaf.grad, y.grad, x.detach()]

    assert_alike(observed(torch.compile(program, backend=jaten)), observed(program))


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_is_called_with_leaves_and_with_others(device: str, dynamic: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.detach().mul_(2)
        return y * 2

    def observed(fn: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for is_leaf in (True, False, True):
            leaf, y = torch.ones(3, device=device, requires_grad=True), torch.ones(3, device=device, requires_grad=True)
            x = leaf if is_leaf else leaf * 1
            result = fn(x, y).sum()
            (result if is_leaf else result + x.sum()).backward()
            found += [leaf.grad, y.grad]
        return found

    compiled = torch.compile(program, backend=jaten, dynamic=dynamic, fullgraph=True)
    assert_alike(observed(compiled), observed(program))


def assert_alike(found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other)
