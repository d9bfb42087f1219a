"""Random numbers of steps: states of generators that a step goes back to, and that it sets, and checkpoints."""

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
    "without tensors": lambda model, x: checkpoint(lambda: model(x), use_reentrant=False),
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


def _twice_from_one_state(x: Tensor) -> Any:
    state = torch.get_rng_state()
    first = functional.dropout(x)
    torch.set_rng_state(state)
    return first, functional.dropout(x), functional.dropout(x)


def _of_the_device_module(x: Tensor) -> Any:
    state = torch.jax.get_rng_state()
    first = functional.dropout(x)
    torch.jax.set_rng_state(state)
    return first, functional.dropout(x), functional.dropout(x)


def _in_a_fork(x: Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        first = functional.dropout(x)
    return first, functional.dropout(x), functional.dropout(x)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("step", [_twice_from_one_state, _of_the_device_module, _in_a_fork])
def test_a_state_that_a_step_goes_back_to(step: Callable[[Tensor], Any], device: str) -> None:
    compiled, x = jaten_ops.compile_step(step), torch.ones(64, device=device)
    found = []
    for _ in range(4):
        first, again, other = (t.cpu() for t in compiled(x))
        assert torch.equal(first, again) and not torch.equal(first, other)
        found += [first, other]
    assert len({tuple(t.tolist()) for t in found}) == len(found)


def _seeded(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return functional.dropout(x)


def _seeded_in_a_fork(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return functional.dropout(x)


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return functional.dropout(x)


@pytest.mark.parametrize("step", [_seeded, _seeded_in_a_fork, _forked])
def test_numbers_that_are_the_same_at_each_call(step: Callable[[Tensor], Tensor]) -> None:
    compiled, x = jaten_ops.compile_step(step), torch.ones(64, device="jax")
    compiled(x)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    _, *found = [compiled(x) for _ in range(4)]
    assert all(torch.equal(found[0], other) for other in found)
    if step is not _forked:
        assert torch.equal(found[0], step(x))
    assert step is _seeded or torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_users_moves_once_a_call() -> None:
    generator = torch.Generator().manual_seed(5)
    step = jaten_ops.compile_step(lambda x: x + torch.rand(64, generator=generator, device=x.device))
    found = [step(torch.zeros(64, device="jax")) for _ in range(4)]
    assert len({tuple(t.tolist()) for t in found}) == len(found)
    generator.manual_seed(5)
    again = [step(torch.zeros(64, device="jax")) for _ in range(2)]
    assert not torch.equal(*again)
    generator.manual_seed(5)
    assert torch.equal(step(torch.zeros(64, device="jax")), again[0])


def test_the_devices_module_seeds_as_torch_does() -> None:
    x, found = torch.ones(64, device="jax"), []
    for _ in range(2):
        torch.jax.manual_seed_all(4)
        found.append(functional.dropout(x))
    assert torch.equal(*found)
