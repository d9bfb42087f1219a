"""Operands of what `torch.utils.checkpoint` computes again in a program that JAX traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor, array_of, from_array
from .ledger import Patch


def behind_a_barrier(inputs: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """`_CheckpointFrame.get_inputs`, with a barrier before the arrays that JAX traces.

    It keeps XLA from finding that all is computed twice, as the barrier of `jax.checkpoint` does; the compiler for CPUs
    drops both.
    """

    @functools.wraps(inputs)
    def get_inputs(frame: Any) -> list[Any]:
        found = inputs(frame)
        places = [i for i, value in enumerate(found) if _is_in_program(value)]
        arrays = jax.lax.optimization_barrier([array_of(found[i]) for i in places]) if places else []
        for i, array in zip(places, arrays, strict=True):
            found[i] = from_array(array).requires_grad_(found[i].requires_grad)
        return found

    return get_inputs


def _is_in_program(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_traced(value) and isinstance(array_of(value), jax.core.Tracer)


ROW = Patch(
    "torch.utils.checkpoint:_CheckpointFrame.get_inputs",
    behind_a_barrier,
    "XLA would keep what a checkpoint in a function of `as_jax`, or in a step, is to compute again",
    "torch_functions/test_torch_functions",
    takes="self",
    loss="a checkpoint in a function of as_jax saves no memory under jax.jit",
)
