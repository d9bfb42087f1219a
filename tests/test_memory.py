"""`as_strided` reads the memory that its operand shares with other tensors, as ATen's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from .beside import Call, assert_same_outcome

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
