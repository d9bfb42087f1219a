"""Operands of what `torch.utils.checkpoint` computes again in a program that JAX traces."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..arrays.carrier import view_of
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor, array_of, from_array
from .ledger import Patch


class _Latest(threading.local):
    """The gradient that the backward pass of a thread has last computed of an input of a checkpoint."""

    gradient: Callable[[], torch.Tensor | None] = staticmethod(lambda: None)


_LATEST = _Latest()


def _note(gradient: torch.Tensor) -> None:
    _LATEST.gradient = weakref.ref(gradient)


def with_noted_gradients(save: Callable[..., None]) -> Callable[..., None]:
    """`_CheckpointFrame.save_inputs`, with a hook of traced inputs that takes note of their gradients."""

    @functools.wraps(save)
    def save_inputs(frame: Any, *args: Any) -> None:
        for value in args:
            if _is_in_program(value) and value.requires_grad and not value.is_leaf:
                value.register_hook(_note)
        save(frame, *args)

    return save_inputs


def behind_a_barrier(inputs: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """`_CheckpointFrame.get_inputs`, with a barrier before the arrays that JAX traces.

    It keeps XLA from finding that all is computed twice, as the barrier of `jax.checkpoint` does; the compiler for CPUs
    drops both. The gradient that has come so far passes it, too, or XLA could compute all checkpoints again at once.
    """

    @functools.wraps(inputs)
    def get_inputs(frame: Any) -> list[Any]:
        found = inputs(frame)
        places = [i for i, value in enumerate(found) if _is_in_program(value)]
        if not places:
            return found
        latest = _LATEST.gradient()
        # one of a trace that is over may still be alive, as garbage
        after = [latest] if latest is not None and _trace_of(latest) is _trace_of(found[places[0]]) else []
        arrays = jax.lax.optimization_barrier([array_of(value) for value in (*(found[i] for i in places), *after)])
        for i, array in zip(places, arrays, strict=False):
            found[i] = from_array(array).requires_grad_(found[i].requires_grad)
        return found

    return get_inputs


def _is_in_program(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_traced(value) and isinstance(array_of(value), jax.core.Tracer)


def _trace_of(tensor: torch.Tensor) -> Any:
    """The trace of JAX's that a tensor's values are of; its view, if it is one, is not read for it."""
    return getattr(view_of(tensor).storage.root.array, "_trace", None)


_WHY = "XLA would keep what a checkpoint in a function of `as_jax`, or in a step, is to compute again"
_TEST = "torch_functions/test_torch_functions"
_LOSS = "a checkpoint in a function of as_jax saves no memory under jax.jit"
_FRAME = "torch.utils.checkpoint:_CheckpointFrame"

ROWS = (
    Patch(f"{_FRAME}.get_inputs", behind_a_barrier, _WHY, _TEST, takes="self", loss=_LOSS),
    Patch(f"{_FRAME}.save_inputs", with_noted_gradients, _WHY, _TEST, takes="self", loss=_LOSS),
)
