"""The three ways in which jaten runs a function on tensors, and the comparison of their results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # of float32: sums are added in another order
randn = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))

PATHS = {
    "compiled": (True, "cpu"),
    "on the device": (False, "jax"),
    "compiled on the device": (True, "jax"),
}


def compile_whole(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="jaten", fullgraph=True, **options)


def run(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], trains: bool, device: str = "cpu") -> list[Any]:
    """The results, and the gradients of the arguments."""
    given = [a.detach().clone().to(device).requires_grad_(trains) for a in args]
    results = tree_leaves(fn(*given))
    if trains:
        sum(r.float().sin().sum() for r in results if r.requires_grad).backward()
    return [*(r.detach().cpu() for r in results), *(None if a.grad is None else a.grad.cpu() for a in given)]
