"""Compiled programs within hooks of saved tensors: those of checkpoints, and those of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from ..programs.module_uses import assert_same, batch, kept_by, loss
from ..programs.stateful_modules import MODULES

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _twice(call: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: checkpoint(call, x, use_reentrant=False) * 2, x, use_reentrant=False)


def _fully(call: Any, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return checkpoint(call, x, use_reentrant=False)


def _two_calls(call: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: call(x) + call(x.flip(0)), x, use_reentrant=False)


def _two_hooks(call: Any, x: torch.Tensor) -> torch.Tensor:
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return checkpoint(call, x, use_reentrant=False)


def _on_cpu(call: Any, x: torch.Tensor) -> torch.Tensor:
    with save_on_cpu():
        result: torch.Tensor = call(x)
    return result


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
    "its result is dropped": lambda call, x: checkpoint(lambda x: (call(x), x * 2)[1], x, use_reentrant=False),
    "within hooks": _two_hooks,
    "save_on_cpu": _on_cpu,
    **{f"saved {name}": _hooked(name) for name in HOOKS},
}


def _run(name: str, how: str, device: str, compiled: bool, *, again: bool) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    module = MODULES[name]().to(device, torch.float64)
    call = torch.compile(module, backend="jaten") if compiled else module
    x = batch(device).requires_grad_()
    for _ in range(2):
        y = loss(CALLS[how](call, x))
        y.backward(retain_graph=again)
        if again:
            y.backward()
    return [t if t is None else t.detach().cpu() for t in (y, x.grad, *kept_by(module))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("name", MODULES)
def test_calls_do_what_eager_calls_do(name: str, how: str, device: str) -> None:
    for again in (False, True):
        if again and how == "reentrant":  # torch's reentrant checkpoint has no second backward pass
            continue
        expected = _run(name, how, "cpu", compiled=False, again=again)
        assert_same(_run(name, how, device, compiled=True, again=again), expected)
