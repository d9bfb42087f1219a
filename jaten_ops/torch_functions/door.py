"""The door between JAX's traces and torch: what is set while a torch function runs, and put back when it ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch

from jaten_ops import random
from jaten_ops.execute import collecting
from jaten_ops.higher_order import AROUND_CAPTURE
from jaten_ops.tracing import set_compiling

_lock = threading.Lock()
_tracing = 0
_stances: list[Any] = []


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
def _uncompiled() -> Iterator[None]:
    """Has what torch compiles run as it is written: executables take no tensors without values.

    torch's stance is one for the process, so that threads are counted.
    """
    global _tracing
    with _lock:
        _tracing += 1
        if _tracing == 1 and "torch._dynamo" in sys.modules:
            with contextlib.suppress(RuntimeError):  # in a compiled function there is no other stance
                _stances.append(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            while not _tracing and _stances:
                _stances.pop().__exit__(None, None, None)


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    """`torch.cond` and its like have Dynamo capture the functions that they are given, also then."""
    with torch.compiler.set_stance("default") if _stances else contextlib.nullcontext():
        yield


AROUND_CAPTURE.append(_capturing)


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
        stack.enter_context(random.drawn_from(random.Rewindable(key)))
        if any(isinstance(a, jax.core.Tracer) for a in arrays):
            stack.enter_context(_told_compiling())
            stack.enter_context(_uncompiled())
            stack.enter_context(collecting())  # conditions without values are dropped
        yield
