"""Backward passes on the device: in which thread they run, and how exceptions leave them.

torch's engine makes its threads, one for each device there is, at the first backward pass of the process, be it the
CPU's. For a device that comes later it has none, and ends the process. So a pass runs in the thread that called it,
where also the program's context is JAX's: what is differentiated while JAX traces.

Exceptions leave Python code in a pass: hooks, kernels, recomputed checkpoints. torch's engine lets go of the device's
stream while such an exception is still set, and asks the device's guard for its type, which for a device in Python is a
call of Python. That call would fail because of the exception, in C++ that must not fail, and the process end. So the
guard takes the exception, and the engine raises it.
"""

from __future__ import annotations

import collections
import ctypes
from typing import Any

import torch
from torch.autograd.variable import ImperativeEngine

from .patches import replace
from .tracing import opaque, unwatched

_raise_what_is_set = ctypes.pythonapi.PyErr_Occurred  # ctypes raises what is set after the call
_raise_what_is_set.argtypes, _raise_what_is_set.restype = (), None

_CUDA = vars(torch.cuda)  # to call its `is_initialized` would be to show Dynamo a frame

_taken: collections.deque[BaseException] = collections.deque(maxlen=8)


class Guard(torch._C._acc.DeviceGuard):  # private; what claims the device has a test that fails when it goes
    """The guard of the device: its type, the only thing that torch asks of it."""

    @opaque
    def type_(self) -> Any:
        try:
            _raise_what_is_set()
        except BaseException as error:  # every exception, an interrupt as well, is to reach who called backward
            _taken.append(error)
        return torch._C._autograd.DeviceType.PrivateUse1


class Engine(ImperativeEngine):
    """torch's engine, which works in the thread that calls it, and raises what the guard has taken."""

    @unwatched
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        threads = torch._C._is_multithreading_enabled()
        # CUDA's devices have threads from the first pass on, and use them at the same time
        torch._C._set_multithreading_enabled(threads and bool(_CUDA.get("_initialized")))
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # it failed with no exception set
            if not _taken:
                raise
            raise _taken.pop() from None
        finally:
            torch._C._set_multithreading_enabled(threads)


def install() -> Guard:
    """Has backward passes use the engine; returns the guard, for the device."""
    replace("torch.autograd.variable:Variable._execution_engine", lambda _: Engine())
    return Guard()
