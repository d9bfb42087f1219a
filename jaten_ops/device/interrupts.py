"""Signals during a backward pass, such as that of Ctrl-C: they wait while torch's engine itself runs.

Python calls their handlers, most of which raise, also where the engine asks the device's guard, and the engine would
lose the exception or end the process (see `guard`). While a kernel or a hook runs they are handled at once. torch's
passes on the CPU, which are one call, have signals wait, too.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ..tracing import opaque, unwatched

try:  # the module in C: `signal` converts numbers to enumerations and back, which takes twenty times as long
    from _signal import getsignal as _handler_of
    from _signal import signal as _handle
except ImportError:  # pragma: no cover  # another Python than CPython
    from signal import getsignal as _handler_of
    from signal import signal as _handle

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
_NUMBERS = tuple([int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)])


class _Waiting:
    """A signal's handler during a pass.

    Args:
        handler: the program's own.
        engine: the code of the function that calls torch's engine.

    Attributes:
        came_in: the frame in which the signal came, if it waits.
    """

    __slots__ = ("_engine", "came_in", "handler")

    def __init__(self, handler: Callable[[int, FrameType | None], Any], engine: CodeType) -> None:
        self.handler, self._engine = handler, engine
        self.came_in: FrameType | None = None

    @unwatched
    def __call__(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is self._engine:
            self.came_in = frame
        else:
            self.handler(number, frame)


HeldSignals = list[tuple[int, _Waiting]]


@opaque
def hold_signals(engine: CodeType) -> HeldSignals:
    """Has signals wait that have a handler in Python, in the main thread; returns what `release_signals` takes."""
    held: HeldSignals = []
    if threading.get_ident() != threading.main_thread().ident:
        return held
    try:
        for number in _NUMBERS:
            handler = _handler_of(number)
            if callable(handler) and type(handler) is not _Waiting:  # another pass may be around this one
                held.append((number, _Waiting(handler, engine)))
                _handle(*held[-1])
    except BaseException:  # of a signal that does not wait yet
        release_signals(held)
        raise
    return held


@unwatched
def release_signals(held: HeldSignals) -> None:
    """Sets the handlers as they were, and calls those whose signals have come."""
    while held:
        number, waiting = held.pop()
        try:
            if _handler_of(number) is waiting:  # a hook may have set another
                _handle(number, waiting.handler)
            if waiting.came_in is not None:
                waiting.handler(number, waiting.came_in)
        except BaseException:
            release_signals(held)
            raise
