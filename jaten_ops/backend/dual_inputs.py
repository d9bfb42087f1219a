"""Compiled programs that are called with dual tensors, of forward-mode automatic differentiation.

An executable takes the values of tensors. Their tangents would be lost without a word, as Dynamo has no guard for the
levels of `torch.autograd.forward_ad`: it takes a program that was captured outside of any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from jaten_ops.errors import UnsupportedInputError


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
