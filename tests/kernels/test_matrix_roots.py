"""Square roots of matrices and polar decompositions, which ATen has since torch 2.14."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops.schema import FUNCTIONAL

OPS, ATEN = torch.ops.jaten, torch.ops.aten

pytestmark = pytest.mark.skipif("linalg_polar" not in FUNCTIONAL, reason="a newer torch has them")

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SIZES = [(2, 5, 3), (4, 4), (0, 3, 3), (3, 0), (2, 0, 0)]


def _matrix(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(0))


def _positive(a: Tensor) -> Tensor:
    return a.mH @ a + torch.eye(a.shape[-1], dtype=a.dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    a = _matrix(*size, dtype=dtype)
    torch.testing.assert_close(tuple(OPS.linalg_polar(a)), tuple(ATEN.linalg_polar(a)))
    torch.testing.assert_close(OPS.linalg_matrix_sqrth(_positive(a)), ATEN.linalg_matrix_sqrth(_positive(a)))


@pytest.mark.parametrize(
    "values",
    [(4.0, 0.0), (4.0, -9.0), (-1.0, -2.0), (4.0, float("nan"))],
    ids=["singular", "indefinite", "none", "nan"],
)
def test_roots_of_what_is_not_positive_definite(values: tuple[float, ...]) -> None:
    """Negative eigenvalues count as 0, and the upper triangle is not read."""
    a = torch.diag(torch.tensor(values)) + torch.tensor([[0.0, 100.0], [0.0, 0.0]])
    torch.testing.assert_close(OPS.linalg_matrix_sqrth(a), ATEN.linalg_matrix_sqrth(a), equal_nan=True)


def _root(ops: Callable, a: Tensor) -> Tensor:
    return ops.linalg_matrix_sqrth(_positive(a))


def _polar(ops: Callable, a: Tensor) -> Tensor:
    u, h = ops.linalg_polar(a)
    return u.sum() + (h * torch.arange(h.numel()).reshape(h.shape)).sum()


@pytest.mark.parametrize("fn", [_root, _polar])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(dtype: torch.dtype, fn: Callable) -> None:
    """First and second ones, also where eigenvalues are equal."""
    for a in (_matrix(2, 4, 3, dtype=dtype), torch.eye(3, 2, dtype=dtype)):
        leaf = a.requires_grad_()
        found = []
        for ops in (ATEN, OPS):
            value = fn(ops, leaf)
            (first,) = torch.autograd.grad(value.real.sum(), leaf, create_graph=ops is OPS)
            found.append(first.detach())
        torch.testing.assert_close(found[1], found[0])
        assert torch.autograd.gradgradcheck(lambda x: fn(OPS, x), (leaf,))


def test_a_root_of_what_is_not_symmetric_has_a_symmetric_gradient() -> None:
    grads = []
    for ops in (ATEN, OPS):
        a = _positive(_matrix(3, 3)).requires_grad_()
        ops.linalg_matrix_sqrth(a).backward(_matrix(3, 3))
        assert a.grad is not None
        grads.append(a.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_a_matrix_with_nan_has_no_polar_decomposition() -> None:
    for ops in (ATEN, OPS):
        with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):
            ops.linalg_polar(torch.full((2, 2), torch.nan))
