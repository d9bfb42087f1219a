"""The boundary between JAX's traces and torch: state that is set while a torch function runs, and then restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch

from jaten_ops.arrays import seeds
from jaten_ops.arrays.observers import observed_by
from jaten_ops.ops.executor import collecting
from jaten_ops.tensor.module_scopes import ModuleScopes
from jaten_ops.tensor.operand_values import cpu_constants
from jaten_ops.tracing import set_compiling, uncompiled, unvalidated


@contextlib.contextmanager
def _told_compiling() -> Iterator[None]:
    """A context in which `torch.compiler.is_compiling()` is True, so that libraries do not read values of tensors."""
    if torch.compiler.is_compiling():
        yield
        return
    set_compiling(True)
    try:
        yield
    finally:
        set_compiling(False)


@contextlib.contextmanager
def inside(key: Any, arrays: Sequence[Any]) -> Iterator[None]:
    """A context in which a torch function runs on arrays, which may be traced."""
    default = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, default)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # the backward pass runs in this thread: JAX traces in one
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(cpu_constants())
        drawn = seeds.SeedsOfKey(key)
        stack.callback(drawn.restore)
        stack.enter_context(seeds.drawn_from(drawn))
        if any(isinstance(a, jax.core.Tracer) for a in arrays):
            stack.enter_context(_told_compiling())
            stack.enter_context(unvalidated())
            stack.enter_context(uncompiled())
            stack.enter_context(observed_by(ModuleScopes()))
            stack.enter_context(collecting())  # conditions without values are dropped
        yield
