"""Compiled programs that are called with tensors that torch has wrapped in C++, of which no class tells.

An executable takes the values of tensors. The tangents of dual tensors, of forward-mode automatic differentiation,
would be lost without a word, as Dynamo has no guard for the levels of `torch.autograd.forward_ad`: it takes a program
that was captured outside of any. Tensors inside `torch.func.functionalize` have no memory from which to take values.
For the other transforms of `torch.func` Dynamo runs eager code, or traces the transform.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from jaten_ops.errors import UnsupportedInputError


def refuse_functional(inputs: Sequence[Any]) -> None:
    """Raises UnsupportedInputError if a program is captured for a tensor inside `torch.func.functionalize`."""
    if any(isinstance(x, torch.Tensor) and torch._is_functional_tensor(x) for x in inputs):
        raise UnsupportedInputError(
            "a compiled function",
            "a tensor inside torch.func.functionalize",
            "one outside of it: leave out functionalize, as every compiled program is made functional",
        )


def without_tangents(captured: Callable[..., Any]) -> Callable[..., Any]:
    """The same program, which raises UnsupportedInputError for an input that has a tangent."""

    @functools.wraps(captured)
    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _require_no_tangents(args)
        return captured(*args)

    return call


def _require_no_tangents(inputs: Sequence[Any]) -> None:
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise UnsupportedInputError(
            "a compiled function",
            "a dual tensor, whose tangent no compiled program takes",
            "tensors without tangents: call `torch.func.jvp` on the function, or compile a function that calls it",
        )
