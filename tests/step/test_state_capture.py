"""Random numbers of steps: activation checkpoints draw again what they have drawn, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import jaten_ops

CHECKPOINTS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "of a module": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "reentrant": lambda model, x: checkpoint(model, x.clone().requires_grad_(), use_reentrant=True),
    "after other draws": lambda model, x: checkpoint(model, functional.dropout(x, 0.1), use_reentrant=False),
    "around another": lambda model, x: checkpoint(
        lambda x: checkpoint(model, x, use_reentrant=False) * 1.0, x, use_reentrant=False
    ),
    "of one that draws twice": lambda model, x: checkpoint(
        lambda x: functional.dropout(model(x), 0.1), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_in_a_step_draws_the_same_again(name: str, device: str, parts: int) -> None:
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.Dropout(0.5)).to(device)
    nn.init.ones_(model[0].weight)

    def step(x: Tensor) -> Any:
        kept = CHECKPOINTS[name](model, x)
        kept.sum().backward()
        gradient = model[0].weight.grad.clone()
        model.zero_grad()
        return kept.detach() != 0, gradient != 0, functional.dropout(x.new_ones(len(x), 64)) != 0

    compiled = jaten_ops.compile_step(step, microbatches=parts)
    x, found = torch.ones(4, 8, device=device), []
    for _ in range(4):
        kept, gradient, other = (t.cpu() for t in compiled(x))
        assert torch.equal(kept.any(0), gradient.any(1))
        found += [*kept.unbind(), other[0]]
    assert len({tuple(mask.tolist()) for mask in found}) == len(found)


def test_a_checkpoint_without_draws_draws_nothing() -> None:
    weight = torch.ones(4, device="jax", requires_grad=True)
    step = jaten_ops.compile_step(lambda x: checkpoint(torch.mul, x, weight, use_reentrant=False).sum().backward())
    before = torch.get_rng_state()
    for _ in range(3):
        step(torch.ones(4, device="jax"))
    assert torch.equal(torch.get_rng_state(), before)
