"""Answers of the device's guard: no exception may come up in one, and none may be lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from jaten_ops.device import guard
from jaten_ops.device.guard import Guard

from ..harness.in_threads import together

KIND = torch._C._autograd.DeviceType.PrivateUse1


class _Stop(BaseException):
    pass


@pytest.fixture
def interrupts() -> Iterator[list[_Stop]]:
    """A signal's handler raises; it has all that it has raised."""
    raised: list[_Stop] = []

    def stop(*_given: Any) -> None:
        raised.append(_Stop())
        raise raised[-1]

    before = signal.signal(signal.SIGALRM, stop)
    yield raised
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_interrupts_come_up_after_the_answer(interrupts: list[_Stop]) -> None:
    asked, caught = Guard(), []
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 3e-4)
            while True:
                assert asked.type_() is KIND
        except _Stop as error:
            caught.append(error)
    assert caught == interrupts
    assert not guard._RaisedLater._alive
    assert len(_idle(asked)) == guard._AT_ONCE - 1


def _idle(asked: Guard) -> list[Any]:
    """The generators that do not answer next."""
    frame = asked.ask.__self__.gi_frame  # type: ignore[attr-defined]  # a method of a generator
    found: list[Any] = frame.f_locals["idle"]
    return found


def test_threads_are_answered_at_the_same_time() -> None:
    asked, interval = Guard(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(lambda _number: [asked.type_() for _ in range(3000)])
    finally:
        sys.setswitchinterval(interval)
    assert len(_idle(asked)) == guard._AT_ONCE - 1
    assert asked.type_() is KIND


def test_an_exception_of_another_thread_is_raised_there() -> None:
    caught: list[type] = []

    def work() -> None:
        try:
            guard._raise_later(KeyError())
            for _ in range(1000):
                len(caught)
        except KeyError as error:
            caught.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught == [KeyError]
