"""Decompositions whose vectors are free in sign or phase: judged by what is not free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

OPS = torch.ops.jaten

MATRIX = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SQUARE = MATRIX.T @ MATRIX + torch.diag(torch.arange(3.0, dtype=torch.float64))

# a decomposition by the operators of either namespace, put together again in a way that no sign or phase changes
INVARIANTS: dict[str, tuple[torch.Tensor, Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "singular values": (MATRIX, lambda ops, a: ops._linalg_svd(a)[1]),
    "projectors of svd": (MATRIX, lambda ops, a: (lambda u, s, vh: (u[:, :1] * s[:1]) @ vh[:1])(*ops._linalg_svd(a))),
    "eigenvalues": (SQUARE, lambda ops, a: ops._linalg_eigh((a + a.T) / 2)[0]),
    "projectors of eigh": (
        SQUARE,
        lambda ops, a: (lambda w, v: v[:, :1] @ v[:, :1].T)(*ops._linalg_eigh((a + a.T) / 2)),
    ),
}


@pytest.mark.parametrize("name", INVARIANTS)
def test_values_and_gradients(name: str) -> None:
    matrix, fn = INVARIANTS[name]
    outcomes = []
    for ops in (torch.ops.aten, OPS):
        leaf = matrix.clone().requires_grad_()
        value = fn(ops, leaf)
        (grad,) = torch.autograd.grad((value * torch.arange(1.0, value.numel() + 1).view(value.shape)).sum(), leaf)
        outcomes.append((value.detach(), grad))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_svd_reconstructs() -> None:
    u, s, vh = OPS._linalg_svd(MATRIX)
    torch.testing.assert_close((u * s) @ vh, MATRIX)
    torch.testing.assert_close(u.T @ u, torch.eye(3, dtype=torch.float64))


# ATen asks for a dtype that LAPACK has only where there are elements
WITHOUT_ELEMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "lu": torch.linalg.lu,
    "lu without pivots": lambda a: torch.linalg.lu(a, pivot=False),
    "lu_factor_ex": torch.linalg.lu_factor_ex,
    "det": torch.linalg.det,
    "eigvalsh": torch.linalg.eigvalsh,
    "eigh": torch.linalg.eigh,
    "svd": torch.linalg.svd,
    "solve": lambda a: torch.linalg.solve(a, a[..., :1]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_matrices_without_elements_are_of_any_dtype(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def described(device: str) -> Any:
        try:
            results = WITHOUT_ELEMENTS[name](torch.zeros(shape, dtype=dtype, device=device))
        except (RuntimeError, NotImplementedError) as error:  # not every function: some ask for floating points
            return type(error)
        return [(r.shape, r.dtype) for r in (results if isinstance(results, tuple) else [results])]

    assert described("jax") == described("cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("left", [True, False])
def test_a_triangular_system_takes_the_right_side_in_the_dtype_of_the_matrix(left: bool, dtype: torch.dtype) -> None:
    matrix, side = SQUARE.float().tril(), torch.arange(9.0).reshape(3, 3).to(dtype)
    solve = torch.linalg.solve_triangular
    expected = solve(matrix, side.real if side.is_complex() else side, upper=False, left=left)
    torch.testing.assert_close(OPS.linalg_solve_triangular(matrix, side, upper=False, left=left), expected)
    torch.testing.assert_close(solve(matrix.to("jax"), side.to("jax"), upper=False, left=left).cpu(), expected)
