"""Operators whose gradients have no meta function in ATen train in one graph, with known sizes and with open ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

from jaten_ops.backend import gradients_without_meta

from ..harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LABELS = ([1, 2, -1, 0], [0, -1, 3, 1], [3, 1, 2, 0])


def _loss(name: str, reduction: str, labels: Any) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        target = torch.tensor(labels if x.dim() == 2 else labels[0], device=x.device)
        return getattr(F, name)(x, target, reduction=reduction) * 2  # type: ignore[no-any-return]  # by its name

    return run


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return F.fractional_max_pool3d(x, 2, output_size=2, _random_samples=torch.full((2, 3, 3), 0.5, device=x.device))


def _drawn(x: torch.Tensor) -> torch.Tensor:
    return torch._standard_gamma(x.exp()) * 0 + x  # draws differ: what is tested is that it is one graph


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "margins": (_loss("multi_margin_loss", "mean", [1, 0, 3]), (3, 4)),
    "margins, not reduced": (_loss("multi_margin_loss", "none", [1, 0, 3]), (3, 4)),
    "margins of one sample": (_loss("multi_margin_loss", "none", [1, 0, 3]), (4,)),
    "margins of labels": (_loss("multilabel_margin_loss", "mean", LABELS), (3, 4)),
    "margins of labels, not reduced": (_loss("multilabel_margin_loss", "none", LABELS), (3, 4)),
    "margins of labels of one sample": (_loss("multilabel_margin_loss", "none", LABELS), (4,)),
    "mean margins of labels of one sample": (_loss("multilabel_margin_loss", "mean", LABELS), (4,)),
    "fractional pooling of volumes": (_pooled, (2, 3, 5, 5, 5)),
    "gamma": (_drawn, (5,)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.3), (4, 5)),
    "softshrink": (lambda x: F.softshrink(x, 0.3), (4, 5)),
}


def _trained(fn: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.clone().requires_grad_()
    y = fn(leaf)
    y.sum().backward()
    assert leaf.grad is not None
    return [y.detach().cpu(), leaf.grad.cpu()]


@pytest.mark.parametrize(("name", "device", "dynamic"), crossed(PROGRAMS, ("cpu", "jax"), (False, True)))
def test_programs_train(name: str, device: str, dynamic: bool) -> None:
    fn, shape = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    counter = CompileCounterWithBackend("jaten")
    compiled = torch.compile(fn, backend=counter, dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(_trained(compiled, x.to(device)), _trained(fn, x))
    assert counter.frame_count == 1


def test_the_operators_are_gradients() -> None:
    assert len(gradients_without_meta.table()) == len(gradients_without_meta.OPERATORS)
