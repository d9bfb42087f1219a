"""Diagonals, written and read."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

_OFFSETS = (0, 2, -3)


@pytest.mark.parametrize("offset", _OFFSETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_diag_embed(dtype: torch.dtype, offset: int) -> None:
    x = torch.tensor([[1.0, -0.0, float("nan"), 2.0], [float("inf"), 0.0, -1.0, float("-inf")]])
    x = (x.nan_to_num(3.0, 4.0, 5.0) if dtype in (torch.int64, torch.bool) else x).to(dtype)
    expected = torch.diag_embed(x, offset, 0, 1)
    for found in (
        torch.diag_embed(x.to("jax"), offset, 0, 1).cpu(),
        torch.compile(lambda x: torch.diag_embed(x, offset, 0, 1), backend="jaten")(x),
    ):
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
        if dtype == torch.float32:
            assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())


@pytest.mark.parametrize("offset", _OFFSETS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_of_diagonals(compiled: bool, offset: int) -> None:
    plain = torch.randn(3, 6, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        read = x.diagonal(offset, 1, 2)
        return torch.diag_embed(read * 2.0, -offset).sum(0) + x.diagonal_scatter(read, offset, 1, 2).sum()

    grads = []
    for device in ("cpu", "cpu" if compiled else "jax"):
        x = plain.clone().to(device).requires_grad_()
        (torch.compile(fn, backend="jaten") if compiled and grads else fn)(x).sin().sum().backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)
