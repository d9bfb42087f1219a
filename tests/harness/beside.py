"""Comparisons of calls that PyTorch's samples do not reach: each is made with ATen and with jaten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

from .comparison import assert_same

Call = Callable[[Any], Any]


class Beside(TorchDispatchMode):
    """Counts the ATen calls that are also made with jaten, and keeps a line for each that differs."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0
        self.failures: list[str] = []


def _outcome(call: Call, ops: Any) -> Any:
    try:
        return call(ops)
    except Exception as error:
        return error


def assert_same_outcome(overload: str, call: Call) -> None:
    """Raises AssertionError unless a call, which takes a namespace of operators, has ATen's results or error class."""
    expected, got = _outcome(call, torch.ops.aten), _outcome(call, torch.ops.jaten)
    if isinstance(expected, Exception) or isinstance(got, Exception):
        assert type(got) is type(expected), f"got {got!r}, expected {expected!r}"
        return
    assert_same(overload, got, expected)


def assert_same_gradients(call: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """The same for gradients of the first result by the inputs; the call takes a namespace and the inputs."""
    found = []
    for ops in (torch.ops.aten, torch.ops.jaten):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        result = tree_flatten(call(ops, *leaves))[0][0]
        grad = torch.randn(result.shape, generator=torch.Generator().manual_seed(0), dtype=result.dtype)
        found.append(torch.autograd.grad(result, leaves, grad))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
