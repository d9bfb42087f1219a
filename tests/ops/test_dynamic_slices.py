"""Direct calls that take a part of a tensor: another place is no other program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jaten_ops.xla import kernel_cache

from ..harness.recorded import op_of_aten
from ..harness.replay import op_named

# overload, and its arguments for the number of the call, on a tensor of 12 rows
CALLS: dict[str, tuple[str, Callable[[int], tuple[Any, ...]]]] = {
    "select": ("select.int", lambda i: (0, i)),
    "select from the end": ("select.int", lambda i: (-2, -1 - i)),
    "select_copy": ("select_copy.int", lambda i: (0, i)),
    "slice": ("slice.Tensor", lambda i: (0, i, i + 3)),
    "slice from the end": ("slice.Tensor", lambda i: (-2, -12 + i, -9 + i)),
    "slice_copy": ("slice_copy.Tensor", lambda i: (0, i, i + 3, 1)),
    "narrow": ("narrow_copy", lambda i: (0, i, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_another_place_compiles_nothing(name: str, dtype: torch.dtype) -> None:
    overload, args = CALLS[name]
    op, aten = op_named(overload), op_of_aten(overload)
    x = (torch.arange(60) % 7).reshape(12, 5).to(dtype)
    op(x, *args(0))
    made = kernel_cache._made
    for i in range(8):
        got, expected = op(x, *args(i)), aten(x, *args(i))
        assert got.dtype == dtype and torch.equal(got, expected)
    assert kernel_cache._made == made


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str) -> None:
    overload, args = CALLS[name]
    made = 0
    for i in range(6):
        grads = []
        for op in (op_named(overload), op_of_aten(overload)):
            x = torch.arange(60.0).reshape(12, 5).requires_grad_()
            result = op(x, *args(i))
            result.backward(torch.ones_like(result) + i)
            grads.append(x.grad)
        assert torch.equal(*grads)
        made = made or kernel_cache._made
    assert kernel_cache._made == made


# what ATen refuses, or reads in a way of its own
EDGES: list[tuple[str, tuple[Any, ...]]] = [
    ("select.int", (0, 3)), ("select.int", (0, -4)), ("select.int", (2, 0)), ("select.int", (-3, 0)),
    ("slice.Tensor", (2, 0, 1)), ("slice.Tensor", (0, 5, 9)), ("slice.Tensor", (0, -9, 9)), ("slice.Tensor", (0, 2, 1)),
    ("slice.Tensor", (0, 0, 3, 0)), ("slice.Tensor", (0, 0, 3, 2)), ("slice.Tensor", (0, None, None)),
    ("narrow_copy", (0, 2, 2)), ("narrow_copy", (0, -4, 1)), ("narrow_copy", (0, 3, 0)), ("narrow_copy", (0, 0, -1)),
]  # fmt: skip


def _outcome(op: Callable[..., torch.Tensor], *args: Any) -> Any:
    try:
        return op(*args).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(("overload", "args"), EDGES)
def test_edges(overload: str, args: tuple[Any, ...]) -> None:
    for x in (torch.arange(12.0).reshape(3, 4), torch.tensor(1.0)):
        assert _outcome(op_named(overload), x, *args) == _outcome(op_of_aten(overload), x, *args)
