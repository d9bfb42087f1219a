"""Calls that run by themselves between executables: their results, and sizes that the parts around them take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ..harness.paths import compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

POSITIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "of one dimension": lambda x: x[0].nonzero(),
    "of nothing": lambda x: (x > 2).nonzero(),
    "with what is computed of them": lambda x: (p := x.nonzero(), p + 1, x[p[:, 0]]),
    "as a tuple": lambda x: torch.nonzero(x, as_tuple=True),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_lie_as_in_aten(name: str) -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = tree_leaves(compile_whole(POSITIONS[name])(x))
    expected = tree_leaves(POSITIONS[name](x))
    torch.testing.assert_close(found, expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert not found[0]._is_view() or name == "as a tuple"


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "within limits": lambda n: torch.sym_max(1, torch.sym_min(8, n)),
    "half": lambda n: n // 2 + 1,
    "a part of a size": lambda n: torch.sym_min(n, 3) * 2,
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", NUMBERS)
def test_parts_take_numbers_made_of_others(name: str, device: str) -> None:
    """The part that slices by a number has no input of the size of the number that it is made of."""

    def program(x: torch.Tensor, mask: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (x[: NUMBERS[name](n)] * 2).sin(), x[mask] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="jaten", dynamic=True)
        for n in (2, 3, 20):
            x = torch.linspace(0, 1, 30).reshape(10, 3).to(device).requires_grad_()
            mask = x.detach()[:, 0] > n / 10
            found, expected = (
                [r, torch.autograd.grad(r[0].sum() + r[1].sum(), x)]
                for r in (compiled(x, mask, n), program(x, mask, n))
            )
            torch.testing.assert_close(found, expected)
