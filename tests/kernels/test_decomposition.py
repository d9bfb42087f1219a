"""Decompositions whose vectors are free in sign or phase: judged by what is not free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
