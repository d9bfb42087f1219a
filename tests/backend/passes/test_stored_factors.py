"""Gradients of determinants: of matrices in any order in memory, compiled and on the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import grad, jacfwd

from tests.harness.crossings import crossed

Matrix = Callable[[torch.Tensor], torch.Tensor]

DETERMINANTS: dict[str, Matrix] = {
    "det": torch.linalg.det,
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "logdet": lambda a: torch.logdet(a @ a.mT),
    "logdet of a transpose": lambda a: torch.logdet((a @ a.mT).mT + a.square().sum()),
}
ORDERS: dict[str, Matrix] = {
    "rows": lambda a: a[0],
    "columns": lambda a: a[0].mT.contiguous().mT,
    "transposed": lambda a: a[0].mT,
    "batch": lambda a: a,
    "batch of columns": lambda a: a.mT,
    "a part": lambda a: torch.nn.functional.pad(a, (1, 1))[..., 1:-1],
}
WAYS = ["device", "compiled", "compiled on the device", "forward mode", "compiled forward mode", "compiled grad"]


def _gradient(way: str, function: Matrix, order: Matrix, matrix: torch.Tensor) -> torch.Tensor:
    device = "jax" if "device" in way or way == "forward mode" else "cpu"
    leaf = matrix.detach().clone().to(device).requires_grad_()
    torch._dynamo.reset()

    def total(a: torch.Tensor) -> torch.Tensor:
        return function(order(a)).abs().sum()

    if way.endswith(("mode", "grad")):
        derivative = jacfwd(total) if way.endswith("mode") else grad(total)
        if way.startswith("compiled"):
            derivative = torch.compile(derivative, backend="jaten")
        return derivative(leaf.detach())
    if "compiled" in way:
        function = torch.compile(function, backend="jaten")
    total(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.sampled(24)
@pytest.mark.parametrize(
    ("name", "order", "way", "dtype"), crossed(DETERMINANTS, ORDERS, WAYS, [torch.float64, torch.complex128])
)
def test_gradients(name: str, order: str, way: str, dtype: torch.dtype) -> None:
    if dtype.is_complex and (name.startswith("logdet") or way.endswith("mode")):
        dtype = torch.float64
    torch.manual_seed(0)
    matrix = torch.randn(2, 3, 3, dtype=dtype)
    expected = _gradient("plain", DETERMINANTS[name], ORDERS[order], matrix)
    torch.testing.assert_close(_gradient(way, DETERMINANTS[name], ORDERS[order], matrix).cpu(), expected)
