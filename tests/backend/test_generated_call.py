"""Calls of executables within JAX's own settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import jaten_ops

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _network(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, 0).sort(1).values.softmax(-1) @ x.t()


def _compiled(x: torch.Tensor) -> Callable[..., Any]:
    return torch.compile(_network, backend="jaten")


def _rounded(x: torch.Tensor) -> Callable[..., Any]:
    return torch.compile(_network, backend="jaten", dynamic=True)


def _step(x: torch.Tensor) -> Callable[..., Any]:
    return jaten_ops.compile_step(_network)


WAYS: dict[str, Callable[[torch.Tensor], Callable[..., Any]]] = {
    "compiled": _compiled, "dynamic": _rounded, "step": _step,
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("way", WAYS)
def test_jit_that_is_disabled(way: str, is_compiled: bool, device: str) -> None:
    """`jax.disable_jit` is for functions in Python; an executable has none, and JAX refuses to call it."""
    x = torch.arange(12.0).reshape(3, 4).sin()
    expected, given = _network(x), x.to(device)
    call = WAYS[way](given)
    if is_compiled:
        call(given)
    with jax.disable_jit():
        found = call(given)
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_training_with_jit_that_is_disabled(device: str) -> None:
    gradients = []
    for call, place in ((_network, "cpu"), (torch.compile(_network, backend="jaten"), device)):
        x = torch.arange(12.0).reshape(3, 4).sin().to(place).requires_grad_()
        with jax.disable_jit():
            call(x).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)
