"""Programs as torch captures them for a backend: writes to shared memory, two backward passes, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jaten_ops  # noqa: F401  # the backend and the device


def _slice_of_what_needs_a_gradient(x: Tensor) -> Tensor:
    y = x * 1
    y[..., 0] = 0.5
    return y * 2


def _of_what_is_computed(x: Tensor) -> Tensor:
    y = x + 0
    y.detach().add_(1)
    return y


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "data": lambda x: x.data.add_(1),
    "detach": lambda x: x.detach().mul_(3),
    "copy_": lambda x: x.data.copy_(x.data * 2 + 1),
    "lerp_": lambda x: x.data.lerp_(torch.ones_like(x), 0.25),
    "data of a slice": lambda x: x[:2].data.add_(1),
    "detached view": lambda x: x.view(-1).detach().mul_(2) + 1,
    "computed": _of_what_is_computed,
    "slice": _slice_of_what_needs_a_gradient,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str, needs_gradient: bool, device: str) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 12).view(4, 3)
    found = []
    for where, run in ((device, torch.compile(WRITES[name], backend="jaten")), ("cpu", WRITES[name])):
        leaf = x.clone().to(where).requires_grad_(needs_gradient)
        result = run(leaf)
        if result.requires_grad:
            (result * result).sum().backward()
        found.append([t.detach().cpu() for t in (leaf, result, leaf.grad) if t is not None])
    torch.testing.assert_close(found[0], found[1])


def test_slice_of_an_argument_that_needs_a_gradient() -> None:
    def fill(x: Tensor) -> Tensor:
        x[..., 0] = 0.5
        return x * 2

    leaf = torch.ones(4, 3, device="jax", requires_grad=True)
    torch.compile(fill, backend="jaten")(leaf * 1).sum().backward()
    assert leaf.grad is not None and leaf.grad.cpu().sum(0).tolist() == [0, 8, 8]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("found", [False, True], ids=["compiled", "found in the cache"])
def test_backward_twice(device: str, found: bool) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(device), torch.ones(3, 2, device=device)
    for _ in range(1 + found):
        torch._dynamo.reset()
        run = torch.compile(net, backend="jaten")
        run(x).sum().backward()
        loss = run(x).sum()
        first, second = (torch.autograd.grad(loss, [*net.parameters()], retain_graph=kept) for kept in (True, False))
        assert all(map(torch.equal, first, second))


OPTIMIZERS = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_step_of_an_optimizer(name: str) -> None:
    """Dynamo makes an operator of its own of some of what they write."""
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.01)
        step = torch.compile(optimizer.step, backend="jaten") if compiled else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.ones(2, 4)).square().sum().backward()
            step()
        ends.append([p.detach() for p in layer.parameters()])
    torch.testing.assert_close(ends[1], ends[0])
