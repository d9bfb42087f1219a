"""Optimizers that step in captured functions, with tensors of the device, beside eager ones on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

CLASSES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda groups: torch.optim.Adam(groups, 0.1),
    "AdamW, amsgrad": lambda groups: torch.optim.AdamW(groups, 0.1, amsgrad=True),
    "AdamW, one by one": lambda groups: torch.optim.AdamW(groups, 0.1, foreach=False),
    "NAdam": lambda groups: torch.optim.NAdam(groups, 0.1),
    "RAdam": lambda groups: torch.optim.RAdam(groups, 0.1),
    "Adamax": lambda groups: torch.optim.Adamax(groups, 0.1),
    "Adadelta": lambda groups: torch.optim.Adadelta(groups, 0.1),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, 0.1, lr_decay=0.1),
    "ASGD": lambda groups: torch.optim.ASGD(groups, 0.1),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, 0.1, centered=True),
    "Rprop": lambda groups: torch.optim.Rprop(groups, 0.1),
    "SGD": lambda groups: torch.optim.SGD(groups, 0.1, momentum=0.9),
}

Events = dict[int, Callable[[torch.optim.Optimizer, list[nn.Parameter]], object]]


def _scheduled(optimizer: torch.optim.Optimizer, _: list[nn.Parameter]) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


# What happens before a step, by its number.
COURSES: dict[str, Events] = {
    "as they were": {},
    "other rates": {2: _scheduled, 3: _scheduled},
    "a group is added": {2: lambda o, params: o.add_param_group({"params": params[4:], "lr": 0.01})},
    "a parameter is thawed": {
        0: lambda _, params: params[0].requires_grad_(False),
        2: lambda _, params: params[0].requires_grad_(True),
    },
}


def _trained(make: Callable[[Any], torch.optim.Optimizer], device: str, course: str) -> list[Tensor]:
    """The parameters after four steps, which are captured on the device, and one that is not."""
    torch._dynamo.reset()
    params = [nn.Parameter(torch.linspace(-1, 1, n + 1, device=device)) for n in range(6)]
    optimizer = make([{"params": params[:2]}, {"params": params[2:3], "lr": 0.2}, {"params": params[3:4]}])
    plain = optimizer.step
    step = torch.compile(lambda: plain(), backend="jaten") if device == "jax" else plain
    for number in range(5):
        COURSES[course].get(number, lambda *_: None)(optimizer, params)
        for p in params:
            p.grad = torch.linspace(-1, 2, p.numel(), device=device) / (number + 1) if p.requires_grad else None
        (step if number < 4 else plain)()
    return [p.detach().cpu() for p in params]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "course"), crossed(CLASSES, COURSES))
def test_several_groups(name: str, course: str) -> None:
    """Within what a correction such as 1 - 0.999 loses in float32: Dynamo has it computed so, torch in float64."""
    found, expected = (_trained(CLASSES[name], device, course) for device in ("jax", "cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_groups_stay_as_they_are() -> None:
    """A captured step leaves nothing in a group but what an optimizer puts there."""
    optimizer = torch.optim.Adam([torch.ones(2, device="jax", requires_grad=True)])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2, device="jax")
    before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    torch.compile(lambda: optimizer.step(), backend="jaten")()
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == before
