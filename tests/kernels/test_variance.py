"""Variances of complex elements: ATen measures the real and the imaginary parts by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers the device and the backend

ELEMENTS = {
    "NaN as a real part": [complex(math.nan, 1), 1 + 2j, 3 - 1j],
    "NaN as an imaginary part": [complex(1, math.nan), 1 + 2j, 3 - 1j],
    "variance beyond float32": [1e30 + 1e30j, 1 + 0j, 2 + 0j],
    "plain": [0.5 + 1j, -2j, 3 + 0j],
}


@pytest.mark.parametrize("function", [torch.var_mean, torch.std_mean, torch.var, torch.std])
@pytest.mark.parametrize("elements", ELEMENTS)
def test_of_complex_elements(elements: str, function: Callable[..., Any]) -> None:
    x = torch.tensor(ELEMENTS[elements], dtype=torch.complex64).expand(2, 3).clone()
    for options in ({}, {"dim": 1, "keepdim": True}, {"dim": 1, "correction": 0}):
        expected, got = function(x, **options), function(x.to("jax"), **options)
        for one, other in zip(_several(got), _several(expected), strict=True):
            torch.testing.assert_close(one.cpu(), other, equal_nan=True)


def _several(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("function", [torch.var, torch.std])
def test_gradients_of_complex_elements(function: Callable[..., Any]) -> None:
    x = torch.tensor(ELEMENTS["plain"], dtype=torch.complex64)
    leaves = [x.clone().requires_grad_(), x.to("jax").requires_grad_(), x.clone().requires_grad_()]
    for leaf, call in zip(leaves, (function, function, torch.compile(function, backend="jaten")), strict=True):
        call(leaf, 0).backward()
    assert leaves[0].grad is not None
    for leaf in leaves[1:]:
        torch.testing.assert_close(leaf.grad.cpu(), leaves[0].grad)
