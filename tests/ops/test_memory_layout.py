"""`as_strided` reads the memory that its operand shares with other tensors, as ATen's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from jaten_ops import UnsupportedInputError

from ..harness.beside import Call, assert_same_outcome

z = torch.arange(6) * torch.tensor(1 + 2j)

OPERANDS: dict[str, torch.Tensor] = {
    "plain": z[2:],
    "conjugated": z[2:].conj(),
    "conjugated in steps": z[1::2].conj(),
    "negated": z.conj().imag[2:],
    "negated and conjugated": z[2:].conj()._neg_view(),
    "whole": z.conj(),
}
GEOMETRIES: dict[str, tuple[Any, ...]] = {
    "from the start": ((2,), (1,), 0),
    "from its own": ((2,), (1,)),
    "around": ((2, 2), (1, 1), 1),
    "none": ((0,), (1,), 0),
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("operand", OPERANDS)
def test_values(operand: str, geometry: str) -> None:
    call: Call = lambda ops: ops.as_strided(OPERANDS[operand], *GEOMETRIES[geometry])  # noqa: E731
    assert_same_outcome("as_strided", call)


def test_gradient() -> None:
    """By what lies in the tensor itself; the memory around it is a constant."""
    grads = []
    for ops in (torch.ops.aten, torch.ops.jaten):
        leaf = z[2:].clone().requires_grad_()
        part = (leaf * 1).conj()
        ops.as_strided(part, (2, 2), (0, 1), 0).abs().pow(2).sum().backward()
        grads.append(leaf.grad)
    assert_close(grads[1], grads[0])


def test_fake() -> None:
    part = z[2:]
    with FakeTensorMode() as mode:
        part = mode.from_tensor(part).conj()
        got = torch.ops.jaten.as_strided(part, (2, 3), (1, 1), 0)
    assert got.shape == (2, 3) and got.dtype == z.dtype and not got.is_conj()


_RESIZED: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "to channels last": lambda ops, x: ops.resize(x, [1, 2, 3, 4], memory_format=torch.channels_last),
    "longer": lambda ops, x: ops.resize(x, [2, 2, 3, 4], memory_format=torch.channels_last)[:1],
    "shorter": lambda ops, x: ops.resize(x, [1, 2, 2, 3], memory_format=torch.channels_last),
    "no format": lambda ops, x: ops.resize(x, [4, 6]),
    "one dimension": lambda ops, x: ops.resize(x, [20]),
    "as another": lambda ops, x: ops.resize_as(x, x.new_zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)),
    "as another's sizes": lambda ops, x: ops.resize_as(x, x.new_zeros(2, 12), memory_format=torch.contiguous_format),
}
_OPERANDS: dict[str, Callable[[], torch.Tensor]] = {
    "row-major": lambda: torch.arange(24.0),
    "transposed": lambda: torch.arange(24.0).reshape(4, 6).t(),
    "with gaps": lambda: torch.arange(48.0).reshape(4, 12)[:, ::2],
    "channels last": lambda: torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("operand", _OPERANDS)
@pytest.mark.parametrize("name", _RESIZED)
@pytest.mark.usefixtures("fresh_dynamo")
def test_what_is_resized_keeps_the_order_in_memory(name: str, operand: str) -> None:
    resized, x = _RESIZED[name], _OPERANDS[operand]()
    expected = resized(torch.ops.aten, x)
    on_device = torch.empty_strided(x.shape, x.stride(), device="jax").copy_(x)
    aten = torch.compile(lambda x: resized(torch.ops.aten, x), backend="jaten", fullgraph=True)
    direct = torch.compile(lambda x: resized(torch.ops.jaten, x), backend="jaten", fullgraph=True)
    for got in (
        resized(torch.ops.jaten, x), resized(torch.ops.aten, on_device), resized(torch.ops.jaten, on_device),
        aten(x), direct(x), aten(on_device),
    ):  # fmt: skip
        if name == "longer":  # what is behind the operand's elements is undefined
            assert got.shape == expected.shape and got.cpu().unique().numel() >= 12
        else:
            assert torch.equal(got.cpu(), expected), got


_DIRECT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...], bool]] = {
    "a whole": (lambda x: x, (3,), False),
    "a part": (lambda x: x[2:], (), False),
    "a part, with a place": (lambda x: x[2:], (3,), True),
    "a transposed one": (lambda x: x.view(3, 4).t(), (), True),
    "every second": (lambda x: x[::2], (), True),
}


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", _DIRECT)
def test_direct_calls(name: str, device: str) -> None:
    """They read memory; a write beyond the operand's elements, whose gradient would be another's, is refused."""
    view, place, is_refused = _DIRECT[name]
    one, other = view(torch.arange(12.0)), view(torch.arange(12.0).to(device))
    for op in ("as_strided", "as_strided_copy"):
        expected, got = (getattr(ops, op)(x, (2, 2), (2, 1), *place) for ops, x in _beside(one, other))
        assert torch.equal(got.cpu(), expected)
    call: Any = lambda ops, x: ops.as_strided_scatter(x, x.new_zeros(2, 2), (2, 2), (2, 1), *place)  # noqa: E731
    if is_refused:
        with pytest.raises(UnsupportedInputError, match="as_strided_scatter"):
            call(torch.ops.jaten, other)
    else:
        expected, got = (call(ops, x) for ops, x in _beside(one, other))
        assert torch.equal(got.cpu(), expected)


def _beside(one: torch.Tensor, other: torch.Tensor) -> Any:
    return (torch.ops.aten, one), (torch.ops.jaten, other)
