"""Orthogonal polynomials with a number as their degree or argument, compared with ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from tests.harness.recorded import op_of_aten

X = torch.linspace(-1.5, 1.5, 8)
DEGREES = torch.tensor([0, 1, 2, 3, 4, 5, 6, -1])

BY_NUMBER = (
    "special_chebyshev_polynomial_t.n_scalar",
    "special_chebyshev_polynomial_u.n_scalar",
    "special_chebyshev_polynomial_v.n_scalar",
    "special_chebyshev_polynomial_w.n_scalar",
    "special_hermite_polynomial_h.n_scalar",
    "special_hermite_polynomial_he.n_scalar",
    "special_laguerre_polynomial_l.n_scalar",
    "special_legendre_polynomial_p.n_scalar",
    "special_shifted_chebyshev_polynomial_t.n_scalar",
    "special_shifted_chebyshev_polynomial_u.n_scalar",
    "special_shifted_chebyshev_polynomial_v.n_scalar",
    "special_shifted_chebyshev_polynomial_w.n_scalar",
)
AT_NUMBER = (
    "special_chebyshev_polynomial_t.x_scalar",
    "special_chebyshev_polynomial_u.x_scalar",
    "special_chebyshev_polynomial_v.x_scalar",
    "special_chebyshev_polynomial_w.x_scalar",
    "special_hermite_polynomial_h.x_scalar",
    "special_hermite_polynomial_he.x_scalar",
    "special_laguerre_polynomial_l.x_scalar",
    "special_legendre_polynomial_p.x_scalar",
    "special_shifted_chebyshev_polynomial_t.x_scalar",
    "special_shifted_chebyshev_polynomial_u.x_scalar",
    "special_shifted_chebyshev_polynomial_v.x_scalar",
    "special_shifted_chebyshev_polynomial_w.x_scalar",
)
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *((name, (X, 3)) for name in BY_NUMBER),
    *((name, (0.75, DEGREES)) for name in AT_NUMBER),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "args"), CALLS, ids=[name for name, _ in CALLS])
def test_values(name: str, args: tuple[Any, ...]) -> None:
    packet, _, suffix = name.partition(".")
    got = getattr(getattr(torch.ops.jaten, packet), suffix)(*args)
    torch.testing.assert_close(got, op_of_aten(name)(*args), equal_nan=True)
