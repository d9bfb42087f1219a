"""Gradients of products of segments with zeros, NaN and infinities, beside ATen's."""

from __future__ import annotations

import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed

nan, inf = float("nan"), float("inf")

VALUES = (
    [nan, 2.0, 3.0, 4.0],
    [0.0, 2.0, 0.0, 0.0],
    [0.0, nan, 3.0, nan],
    [inf, 0.0, nan, nan],
    [0.0, 0.0, nan, inf],
    [2.0, 3.0, -0.0, 5.0],
)
INITIAL = (None, 0.0, 2.0, nan, inf)


def _gradient(values: list[float], initial: float | None, device: str) -> torch.Tensor:
    x = torch.tensor(values, device=device, requires_grad=True)
    lengths = torch.tensor([2, 2], device=device)
    product = torch.segment_reduce(x, "prod", lengths=lengths, initial=initial)
    return torch.autograd.grad(product, x, torch.tensor([1.5, -2.0], device=device))[0].cpu()


@pytest.mark.parametrize(("values", "initial"), crossed(VALUES, INITIAL))
def test_gradients_of_products(values: list[float], initial: float | None) -> None:
    found, expected = (_gradient(values, initial, device) for device in ("jax", "cpu"))
    torch.testing.assert_close(found, expected, equal_nan=True)
