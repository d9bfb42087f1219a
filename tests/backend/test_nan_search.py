"""Errors of `jax_debug_nans` and `torch.autograd.detect_anomaly` name the module and the line of the program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import jaten_ops

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        safe = torch.where(x > 0, x.log(), 0 * x)  # has a nan that no result takes
        return torch.sqrt(safe * 0 - self.level)  # nan for a level above 0, and for 0 in the backward pass

    level = 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(3, 3), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.first(x)).sum()


LINE = "return torch.sqrt(safe * 0 - self.level)"
x = torch.linspace(-2, 2, 6).reshape(2, 3)


def _compiled(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    return lambda: torch.compile(model, backend="jaten")(x)


def _step(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    step = jaten_ops.compile_step(lambda x: model(x).backward())
    level, model.block.level = model.block.level, -1.0
    step(x), step(x)  # it is an executable then
    model.zero_grad()
    model.block.level = level
    return lambda: step(x)


def _backward(make: Callable[[nn.Module, torch.Tensor], Callable[[], Any]]) -> Any:
    return lambda model, x: lambda: make(model, x)().backward()


DEBUG_NANS: dict[str, tuple[Callable[[nn.Module, torch.Tensor], Callable[[], Any]], str, str]] = {
    "device": (lambda model, x: lambda: model(x), "jax", r"jaten::log in the module model\.block"),
    "compiled": (_compiled, "cpu", r"graph 0/0.*a nan comes from sqrt of the module block"),
    "compiled on the device": (_compiled, "jax", r"graph 0/0.*a nan comes from sqrt of the module block"),
    "step": (_step, "jax", r"jaten::log in the module model\.block"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", DEBUG_NANS)
def test_debug_nans(way: str) -> None:
    make, device, says = DEBUG_NANS[way]
    run = make(Model().to(device), x.to(device))
    line = "safe = torch.where" if "log" in says else LINE  # one by one, the first nan is an error
    expected = rf"(?s){says}.*test_nan_search\.py:\d+: {re.escape(line)}"
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=expected):
        run()


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_nan_that_no_result_takes_is_none_of_an_executables(device: str) -> None:
    model = Model().to(device)
    model.block.level = -1.0
    with jax.debug_nans(True):
        result = torch.compile(model, backend="jaten")(x.to(device))
    assert result.isfinite()


ANOMALIES: dict[str, tuple[Callable[[nn.Module, torch.Tensor], Callable[[], Any]], str, str]] = {
    "device": (lambda model, x: lambda: model(x).backward(), "jax", "MulBackward0"),
    "compiled": (_backward(_compiled), "cpu", "backward graph 0/0.*a nan comes from mul.Tensor of the module block"),
    "compiled on the device": (_backward(_compiled), "jax", "a nan comes from mul.Tensor of the module block"),
    "step": (_step, "jax", "MulBackward0"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ANOMALIES)
def test_detect_anomaly(way: str) -> None:
    make, device, says = ANOMALIES[way]
    model = Model().to(device)
    model.block.level = 0.0
    run = make(model, x.to(device))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=f"(?s){says}") as raised:
            run()
    assert LINE in "\n".join([str(raised.value), *(str(w.message) for w in caught)])
