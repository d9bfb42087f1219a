"""Compiled programs within hooks of saved tensors: those of checkpoints, and those of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Counting(nn.Module):
    """Counts its calls, and moves a mean before it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("last", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0).detach(), 0.1)
        y = self.linear(x - self.mean)
        self.last = y.detach() + self.last  # another tensor, stored when the program has ended
        return y.sin()


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


def _two_hooks(call: Any, x: torch.Tensor) -> torch.Tensor:
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return checkpoint(call, x, use_reentrant=False)


HOOKS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "as it is": (lambda t: t, lambda t: t),
    "on the CPU": (lambda t: (t.detach().cpu().clone(), t.device), lambda p: p[0].to(p[1])),
    "in NumPy": (lambda t: (t.detach().cpu().numpy().copy(), t.device), lambda p: torch.from_numpy(p[0]).to(p[1])),
    "in a list": (lambda t: (t.tolist(), t), lambda p: torch.tensor(p[0], dtype=p[1].dtype, device=p[1].device)),
    "negative": (lambda t: -t, lambda t: -t),
}


def _hooked(name: str) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def run(call: Any, x: torch.Tensor) -> torch.Tensor:
        with saved_tensors_hooks(*HOOKS[name]):
            return call(x)

    return run


CALLS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "none": lambda call, x: call(x),
    "stops early": lambda call, x: checkpoint(call, x, use_reentrant=False),
    "to the end": _fully,
    "reentrant": lambda call, x: checkpoint(call, x, use_reentrant=True),
    "within another": _twice,
    "two calls": _two_calls,
    "within hooks": _two_hooks,
    **{f"saved {name}": _hooked(name) for name in HOOKS},
}


def _run(module: nn.Module, how: str, device: str, compiled: bool, *, again: bool) -> list[torch.Tensor]:
    module.to(device, torch.float64)
    call = torch.compile(module, backend="jaten") if compiled else module
    x = torch.linspace(-1, 1, 12, dtype=torch.float64, device=device).view(4, 3).requires_grad_()
    for _ in range(2):
        loss = CALLS[how](call, x).tanh().cumsum(0).square().sum()
        loss.backward(retain_graph=again)
        if again:
            loss.backward()
    return [
        t.detach().cpu() for t in (loss, x.grad, *module.state_dict().values(), *(p.grad for p in module.parameters()))
    ]  # type: ignore[union-attr]  # there are gradients


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("name", MODULES)
def test_calls_do_what_eager_calls_do(name: str, how: str, device: str) -> None:
    for again in (False, True):
        torch.manual_seed(0)
        plain = MODULES[name]()
        same = MODULES[name]()
        same.load_state_dict(plain.state_dict())
        if again and how == "reentrant":  # torch's reentrant checkpoint has no second backward pass
            continue
        expected = _run(plain, how, "cpu", compiled=False, again=again)
        torch.testing.assert_close(_run(same, how, device, compiled=True, again=again), expected)
