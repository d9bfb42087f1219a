"""The door between JAX's traces and torch: what is set while a torch function runs, and put back when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch

from jaten_ops.arrays import seeds
from jaten_ops.ops.executor import collecting
from jaten_ops.tracing import set_compiling, uncompiled


@contextlib.contextmanager
def _told_compiling() -> Iterator[None]:
    """Has `torch.compiler.is_compiling()` be True: libraries read no values of tensors then."""
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
    """For the length of a block a torch function runs on arrays, which may be traced."""
    default = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, default)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # the backward pass runs in this thread: JAX traces in one
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(seeds.drawn_from(seeds.Rewindable(key)))
        if any(isinstance(a, jax.core.Tracer) for a in arrays):
            stack.enter_context(_told_compiling())
            stack.enter_context(uncompiled())
            stack.enter_context(collecting())  # conditions without values are dropped
        yield
