"""Gradients of activations at special values, beside ATen's code for vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: F.elu(x, 0.7),
    "elu_": lambda x: F.elu_(x.clone()),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "gelu": F.gelu,
    "clamp": lambda x: x.clamp(-1, 1),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "logit": torch.logit,
    "logit, bounded": lambda x: torch.logit(x, 0.25),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
}
PLACES = ("compiled", "jax")
# As many as fill vectors: for the rest of a tensor ATen has other code, with other results at NaN.
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.0, -3.0, 1e30] * 8


def _gradient(function: Callable[[Tensor], Tensor], place: str) -> Tensor:
    x = torch.tensor(SPECIAL, device="jax" if place == "jax" else "cpu", requires_grad=True)
    run = torch.compile(function, backend="jaten") if place == "compiled" else function
    (gradient,) = torch.autograd.grad(run(x).sum(), x)
    return gradient.cpu()


@pytest.mark.parametrize(("name", "place"), crossed(ACTIVATIONS, PLACES))
def test_gradients_at_special_values(name: str, place: str) -> None:
    found, expected = (_gradient(ACTIVATIONS[name], at) for at in (place, "cpu"))
    torch.testing.assert_close(found, expected, equal_nan=True)
