"""Gradients of compiled programs on the device, by hooks, a `.grad` that is there, views and other passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jaten_ops import Tensor
from tests.harness.crossings import crossed

Run = Callable[[torch.Tensor, list[torch.Tensor]], Any]


def _program(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((x @ a + b).relu() @ a.t() * b[:3].sum()).square().mean()


def _twice(loss: torch.Tensor, leaves: list[torch.Tensor]) -> Any:
    loss.backward(retain_graph=True)
    loss.backward()
    return None


def _into_views(loss: torch.Tensor, leaves: list[torch.Tensor]) -> Any:
    """Gradients are parts of one tensor, as some trainers keep them."""
    flat = torch.ones(sum(t.numel() for t in leaves), device=loss.device)
    for t, part in zip(leaves, flat.split([t.numel() for t in leaves]), strict=True):
        t.grad = part.view(t.shape)
    loss.backward()
    return flat


def _asked_for(loss: torch.Tensor, leaves: list[torch.Tensor]) -> Any:
    grads = torch.autograd.grad(loss, leaves, retain_graph=True)
    loss.backward()
    for grad in grads:
        grad.mul_(2)  # is no `.grad`
    return grads


def _written(loss: torch.Tensor, leaves: list[torch.Tensor]) -> Any:
    """A gradient is written to, which no other may see."""
    loss.backward(retain_graph=True)
    kept = [t.grad for t in leaves]
    assert kept[0] is not None
    kept[0].zero_()
    for t in leaves:
        t.grad = None
    loss.backward()
    return kept


RUNS: list[Run] = [lambda loss, leaves: loss.backward(), _twice, _into_views, _asked_for, _written]
NAMES = ["once", "twice", "into views", "asked for", "written"]


def _double(grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


def _raise_gradient(leaf: torch.Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad.add_(1.0)


def _add_hooks(hooks: str, leaves: list[torch.Tensor]) -> None:
    for t in leaves:
        if hooks == "of tensors":
            t.register_hook(_double)
        elif hooks == "after accumulation":
            t.register_post_accumulate_grad_hook(_raise_gradient)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("run", "hooks", "scaled"), crossed(NAMES, ["none", "of tensors", "after accumulation"], [False, True])
)
def test_gradients(run: str, hooks: str, scaled: bool) -> None:
    found = []
    for device in ("jax", "cpu"):
        torch._dynamo.reset()
        x, a, b = (
            (torch.arange(float(rows * 4)).reshape(shape) * 0.1 - 0.5).to(device).requires_grad_()
            for rows, shape in ((3, (3, 4)), (4, (4, 4)), (1, (4,)))
        )
        program = torch.compile(_program, backend="jaten") if device == "jax" else _program
        leaves = [x, a, b]
        _add_hooks(hooks, leaves)
        loss = program(x, a, b) * 3 if scaled else program(x, a, b)
        others = RUNS[NAMES.index(run)](loss, leaves)
        grads = [t.grad for t in leaves]
        if device == "jax":
            assert all(type(grad) is Tensor for grad in grads)
        others = [others] if isinstance(others, torch.Tensor) else list(others or ())
        found.append([None if t is None else t.detach().cpu() for t in (*grads, *others)])
    torch.testing.assert_close(found[0], found[1])
