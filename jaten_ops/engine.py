"""Exceptions that leave Python code in a backward pass on the device: hooks, kernels, recomputed checkpoints.

torch's engine lets go of the device's stream while such an exception is still set, and asks the device's guard for its
type, which for a device in Python is a call of Python. That call would fail because of the exception, in C++ that must
not fail, and the process end. So the guard takes the exception, and the engine raises it.
"""

from __future__ import annotations

import collections
import ctypes
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.variable import ImperativeEngine

from .tracing import opaque, unwatched

_raise_what_is_set = ctypes.pythonapi.PyErr_Occurred  # ctypes raises what is set after the call
_raise_what_is_set.argtypes, _raise_what_is_set.restype = (), None

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
    """torch's engine, which raises what the guard has taken."""

    @unwatched
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # it failed with no exception set
            if not _taken:
                raise
            raise _taken.pop() from None


def install() -> Guard:
    """Has backward passes use the engine; returns the guard, for the device."""
    Variable._execution_engine = Engine()
    return Guard()
