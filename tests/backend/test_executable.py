"""Executables in traces of torch.profiler."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import jaten_ops

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _names(prof: profile) -> list[str]:
    return [event.key for event in prof.key_averages() if event.key.startswith("jaten ")]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_each_executable_is_a_range_with_its_name(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).to(device)
    compiled = torch.compile(model, backend="jaten")
    x = torch.ones(2, 4, device=device)
    compiled(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        compiled(x).sum().backward()
    forward, backward = sorted(_names(prof), reverse=True)
    assert forward.startswith("jaten graph 0/0") and backward.startswith("jaten backward graph 0/0")
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.ops.jaten.tanh(x)
    assert not _names(prof)


def test_a_step_is_a_range() -> None:
    model = torch.nn.Linear(4, 4).to("jax")

    def training_step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    step, x = jaten_ops.compile_step(training_step), torch.ones(2, 4, device="jax")
    step(x), step(x)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        step(x)
    (name,) = _names(prof)
    assert name.startswith("jaten step ") and name.endswith("training_step")
