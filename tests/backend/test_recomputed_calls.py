"""Compiled programs that write to buffers, in functions that a checkpoint computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Counting(nn.Module):
    """Counts its calls, and moves a mean before it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0).detach(), 0.1)
        return self.linear(x - self.mean)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "counting": Counting,
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "batch norm, then more": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)),
    "no buffers": lambda: nn.Linear(3, 3),
}


def _twice(call: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: checkpoint(call, x, use_reentrant=False) * 2, x, use_reentrant=False)


def _fully(call: Any, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return checkpoint(call, x, use_reentrant=False)


def _two_calls(call: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: call(call(x).tanh()), x, use_reentrant=False)


CHECKPOINTS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "none": lambda call, x: call(x),
    "stops early": lambda call, x: checkpoint(call, x, use_reentrant=False),
    "to the end": _fully,
    "reentrant": lambda call, x: checkpoint(call, x, use_reentrant=True),
    "within another": _twice,
    "two calls": _two_calls,
}


def _run(module: nn.Module, how: str, device: str, compiled: bool, *, again: bool) -> list[torch.Tensor]:
    module.to(device, torch.float64)
    call = torch.compile(module, backend="jaten") if compiled else module
    x = torch.linspace(-1, 1, 12, dtype=torch.float64, device=device).view(4, 3).requires_grad_()
    for _ in range(2):
        loss = CHECKPOINTS[how](call, x).tanh().cumsum(0).square().sum()
        loss.backward(retain_graph=again)
        if again:
            loss.backward()
    return [
        t.detach().cpu() for t in (loss, x.grad, *module.state_dict().values(), *(p.grad for p in module.parameters()))
    ]  # type: ignore[union-attr]  # there are gradients


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("how", CHECKPOINTS)
@pytest.mark.parametrize("name", MODULES)
def test_buffers_are_written_to_as_in_eager_calls(name: str, how: str, device: str) -> None:
    for again in (False, True):
        torch.manual_seed(0)
        plain = MODULES[name]()
        same = MODULES[name]()
        same.load_state_dict(plain.state_dict())
        if again and how == "reentrant":  # torch's reentrant checkpoint has no second backward pass
            continue
        expected = _run(plain, how, "cpu", compiled=False, again=again)
        torch.testing.assert_close(_run(same, how, device, compiled=True, again=again), expected)
