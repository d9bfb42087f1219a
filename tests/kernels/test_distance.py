"""Distances and their gradients with NaN and infinities, beside ATen's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax

nan, inf = float("nan"), float("inf")

ROWS = torch.tensor([
    [nan, 1.0, 2.0, 3.0, 0.25],
    [1.0, 5.0, nan, 3.0, 0.0],
    [1.0, 0.5, 2.0, 3.0, 0.0],
    [1.0, 0.5, 2.0, 3.0, 0.5],
    [nan, nan, nan, nan, nan],
])  # fmt: skip
INFINITE = torch.tensor([[inf, 1.0, 2.0], [1.0, -inf, 2.0], [1.0, 2.0, 3.0]])

DISTANCES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "cdist": lambda x, p: torch.cdist(x, x[1:].detach(), p=p),
    "cdist, the other": lambda x, p: torch.cdist(x[2:].detach(), x, p=p),
    "pdist": torch.nn.functional.pdist,
}


def _seen(name: str, values: Tensor, p: float, device: str) -> list[Tensor]:
    x = values.to(device).detach().requires_grad_()
    distances = DISTANCES[name](x, p)
    weights = torch.arange(1.0, distances.numel() + 1, device=device).reshape(distances.shape)
    return [t.detach().cpu() for t in (distances, *torch.autograd.grad(distances, x, weights))]


@pytest.mark.parametrize("values", [ROWS, INFINITE], ids=["NaN", "infinities"])
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, inf])
@pytest.mark.parametrize("name", DISTANCES)
def test_special_values(name: str, p: float, values: Tensor) -> None:
    found, expected = (_seen(name, values, p, device) for device in ("jax", "cpu"))
    torch.testing.assert_close(found, expected, equal_nan=True)
