"""The gradients of the Gamma and Dirichlet distributions, against ATen's approximations in each of their regions."""

from __future__ import annotations

import pytest
import torch

from ..harness.beside import assert_same_outcome


def _arguments(largest: float, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, share = torch.rand(2, 1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x, share * largest, torch.full((1000,), 2 * largest, dtype=dtype)


@pytest.mark.parametrize("largest", [1.0, 4.0, 16.0, 100.0])
def test_regions(largest: float) -> None:
    arguments = _arguments(largest, torch.float64)
    assert_same_outcome("_dirichlet_grad", lambda ops: ops._dirichlet_grad(*arguments))


@pytest.mark.parametrize("largest", [1.0, 16.0])
def test_single_precision_is_the_double_rounded(largest: float) -> None:
    """ATen sums its series in single precision, which costs it up to two digits more."""
    arguments = _arguments(largest, torch.float32)
    exact = torch.ops.aten._dirichlet_grad(*(x.double() for x in arguments))
    torch.testing.assert_close(torch.ops.jaten._dirichlet_grad(*arguments), exact.float())


def test_edges() -> None:
    nan = float("nan")
    x, alpha = torch.tensor([0.0, 1.0, -1.0, nan, 0.5, 0.5]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, nan])
    assert_same_outcome("_dirichlet_grad", lambda ops: ops._dirichlet_grad(x, alpha, torch.full((6,), 2.0)))


@pytest.mark.parametrize("dtypes", [(torch.float16,) * 3, (torch.float32, torch.float64, torch.float32)], ids=str)
def test_dtypes(dtypes: tuple[torch.dtype, ...]) -> None:
    arguments = [torch.full((2,), 0.5, dtype=d) for d in dtypes]
    assert_same_outcome("_dirichlet_grad", lambda ops: ops._dirichlet_grad(*arguments))


@pytest.mark.parametrize("largest", [1.0, 8.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gamma(largest: float, dtype: torch.dtype) -> None:
    alpha, ratio = torch.rand(2, 1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    alpha = alpha * largest
    x = alpha * (0.1 + 2 * ratio)
    assert_same_outcome("_standard_gamma_grad", lambda ops: ops._standard_gamma_grad(alpha, x))


def test_gamma_edges() -> None:
    nan, inf = float("nan"), float("inf")
    alpha, x = torch.tensor([0.0, 1.0, nan, 1.0, 9.0, 9.0, -1.0]), torch.tensor([0.5, 0.0, 1.0, inf, 9.0, nan, 2.0])
    assert_same_outcome("_standard_gamma_grad", lambda ops: ops._standard_gamma_grad(alpha, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64], ids=str)
def test_gamma_dtypes(dtype: torch.dtype) -> None:
    ones = torch.ones(2, dtype=dtype)
    assert_same_outcome("_standard_gamma_grad", lambda ops: ops._standard_gamma_grad(ones, ones))
