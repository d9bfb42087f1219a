"""The device's guard in torch, which asks it for nothing but its type.

torch asks when it records an operation and when its engine runs one, in C++ where nothing may fail: an exception in the
answer ends the process. For a device in Python the answer is a call of Python, and two exceptions can come up in it. So
generators answer (`_answers`), which are within their `try` when they are resumed:

- An exception that is set already. It leaves Python code in a pass, a hook's or a kernel's, and torch's engine lets go
  of the device's stream before it raises it. The guard keeps the exception, and the engine raises it.
- An interrupt. Python calls the handlers of signals, as that of Ctrl-C, where a function begins or code jumps back, and
  most handlers raise. Then the exception is raised again where Python next looks for signals, outside of torch.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import operator
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, ClassVar

import torch

from ..tracing import opaque

_KIND = torch._C._autograd.DeviceType.PrivateUse1

_AT_ONCE = 64  # threads that may be asked at the same time
_DEEP = 8  # calls of what a generator calls
_SOON = 2e-4  # seconds

taken: collections.deque[BaseException] = collections.deque(maxlen=8)
"""Exceptions that the engine is to raise."""


class Guard(torch._C._acc.DeviceGuard):  # private; a test of claiming the device fails when it goes
    """The device guard of the device: torch only calls its type.

    Attributes:
        type_: what torch gets is a function in C, which has no point where Python looks for signals.
        ask: the `__next__` of the generator that answers next.
    """

    type_: Any = property(operator.methodcaller("ask"))
    ask: Callable[[], Any] = dict  # had the class no such attribute, Python's search for one would clear what is set

    _all: ClassVar[list[Guard]] = []  # torch keeps guards, too, and a closed one could not answer

    def __init__(self) -> None:
        super().__init__()
        idle: list[Any] = []
        for _ in range(_AT_ONCE):
            made = _answers(self, idle)
            next(made)
            made.send(made.__next__)
        self.ask = idle.pop()
        self._all.append(self)


@opaque
def _answers(guard: Guard, idle: list[Any]) -> Generator[Any, Any, None]:
    """Answers without end; it first takes its own `__next__`.

    Threads take turns where Python looks for signals, and none can resume a generator that runs. So another one takes
    this one's place before that, and it is idle again after that. Python does not look when a `yield from` is resumed,
    nor at `+=`, a subscript or an attribute; it looks when the loop jumps back.
    """
    own, python_ends = (yield), sys.is_finalizing
    answers: Any = (itertools.repeat(_KIND).__next__,)
    while True:
        try:
            while True:
                idle += (own,)
                try:
                    # at the end Python raises what is set
                    found = yield from answers
                except BaseException as error:  # every exception, including an interrupt, must reach the caller
                    if guard.ask is not own:  # nobody asks: the generator is closed
                        return
                    guard.ask = idle[-1]
                    del idle[-1]
                    taken.append(error)
                    if python_ends():
                        return
                else:
                    guard.ask = idle[-1]
                    del idle[-1]
                    if found is not None:  # what is set is a StopIteration, whose value this is
                        taken.append(StopIteration(found))
        except BaseException as error:  # an interrupt
            _raise_later(error)


def _raise_later(error: BaseException) -> None:
    if threading.get_ident() == threading.main_thread().ident:
        _RaisedLater(error).add()
    else:  # of another thread, which has no handlers of signals
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(type(error)))


class _RaisedLater:
    """An exception for the main thread: Python asks this whether it is true where it next looks for signals."""

    _alive: ClassVar[set[_RaisedLater]] = set()  # Python's list of calls does not keep them

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def add(self) -> None:
        """Tells Python of it in another thread: the generator, which is still running, would be where Python looks."""
        self._alive.add(self)
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        time.sleep(_SOON)
        api = ctypes.pythonapi
        api.Py_AddPendingCall(ctypes.cast(api.PyObject_IsTrue, ctypes.c_void_p), ctypes.py_object(self))

    @opaque
    def __bool__(self) -> bool:
        """Raises the exception, unless a generator answers; false, as Python has it for success."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEEP):
            if frame is not None and frame.f_code is _answers.__code__:
                self.add()
                return False
            frame = frame.f_back if frame is not None else None
        self._alive.discard(self)
        raise self._error
