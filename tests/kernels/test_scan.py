"""Cumulative operations: axes long and short, cut into blocks or not, against ATen; complex numbers at infinity."""

from __future__ import annotations

import math

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

jaten, aten = torch.ops.jaten, torch.ops.aten
SHAPES = (((5000,), 0), ((3, 1031), 1), ((3, 1031), 0), ((2, 37, 41), 1), ((1,), 0), ((), 0))
DTYPES = (torch.float32, torch.int64, torch.bool)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("op", ["cumsum", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scans_are_those_of_aten(op: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape, dim in SHAPES:
        x = (torch.randn(shape) * 3).to(dtype)
        got, expected = (getattr(ops, op)(x, dim) for ops in (jaten, aten))
        for g, e in zip(got, expected, strict=True) if isinstance(expected, tuple) else ((got, expected),):
            assert g.dtype == e.dtype
            assert torch.equal(g, e), (shape, dim)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_nan_stays(op: str) -> None:
    x = torch.linspace(-1, 1, 3000)
    x[1000] = x[2000] = math.nan
    got, expected = (getattr(ops, op)(x, 0) for ops in (jaten, aten))
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "logcumsumexp"])
def test_gradients_through_blocks(op: str) -> None:
    x = torch.randn(2, 150, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = [getattr(ops, op)(x, 1) for ops in (jaten, aten)]
    values = [o[0] if isinstance(o, tuple) else o for o in out]
    weights = torch.linspace(0, 1, 150, dtype=torch.float64)
    got, expected = (torch.autograd.grad((v * weights).sum(), x)[0] for v in values)
    torch.testing.assert_close(got, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_logarithms_turn_as_in_aten(dtype: torch.dtype) -> None:
    values = [0.0, 1.0, -2.0, 3.0, math.inf, -math.inf, math.nan]
    numbers = torch.tensor([complex(a, b) for a in values for b in values], dtype=dtype)
    pairs = torch.cartesian_prod(numbers, numbers)
    long = torch.randn(3, 200, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 3
    for x in (pairs, long):
        got, expected = (torch.view_as_real(ops.logcumsumexp(x, 1)) for ops in (jaten, aten))
        torch.testing.assert_close(got, expected, equal_nan=True)
