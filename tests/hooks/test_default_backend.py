"""`torch.compile` without a backend: programs of the device `jax` are jaten's, all others stay Inductor's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.backend import executable

CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "by name": {"backend": "inductor"},
    "a mode": {"mode": "reduce-overhead"},
    "options": {"options": {"max_autotune": False}},
    "whole": {"fullgraph": True, "dynamic": True},
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.fixture
def executables(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    call = executable.Executable.__call__
    monkeypatch.setattr(executable.Executable, "__call__", lambda *a: (made.append(a[0]), call(*a))[1])
    return made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("choice", CHOICES)
def test_training_on_the_device(choice: str, executables: list[Any]) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    model(x).square().sum().backward()
    assert model.weight.grad is not None
    expected, model = model.weight.grad.clone(), model.to("jax")
    model.zero_grad()
    torch.compile(model, **CHOICES[choice])(x.to("jax")).square().sum().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), expected)
    assert len(executables) == 2


def test_a_program_without_inputs(executables: list[Any]) -> None:
    made = torch.compile(lambda n: torch.ones(n, device="jax") * 2)(3)
    assert made.tolist() == [2, 2, 2]
    assert executables


def test_other_programs_stay_inductors(executables: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda gm, *a, **k: (asked.append(a), gm.forward)[1])
    assert torch.compile(lambda x: x + 1)(torch.zeros(2)).tolist() == [1, 1]
    assert len(asked) == 1
    assert executables == []
