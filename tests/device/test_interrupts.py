"""Signals during a backward pass: raised once, in the end or at once, and no handler is another than before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from jaten_ops.device import interrupts


class _Stop(Exception):
    pass


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """The handler of SIGUSR1, which raises."""

    def stop(*_given: Any) -> None:
        raise _Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield stop
    assert signal.getsignal(signal.SIGUSR1) is stop
    signal.signal(signal.SIGUSR1, before)


def _send(*_given: Any) -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_while_a_hook_runs_a_signal_is_handled_at_once(device: str) -> None:
    w = torch.ones(2, device=device, requires_grad=True)
    later: list[str] = []
    (w * 1).register_hook(_send)
    y = w * 2
    y.register_hook(_send)
    w.register_hook(lambda _grad: later.append("reached"))
    with pytest.raises(_Stop):
        y.sum().backward()
    assert not later
    assert w.grad is None


def test_while_the_engine_runs_a_signal_waits_for_the_end_of_the_pass() -> None:
    held = interrupts.hold_signals(_send.__code__)  # as if this called the engine
    _send()
    with pytest.raises(_Stop):
        interrupts.release_signals(held)
    with pytest.raises(_Stop):
        _send()


def test_each_of_two_signals_has_its_handler_called(handler: Any) -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: called.append(number))
    held = interrupts.hold_signals(_send_both.__code__)
    _send_both()
    assert not called
    with pytest.raises(_Stop):
        interrupts.release_signals(held)
    signal.signal(signal.SIGUSR2, before)
    assert called == [signal.SIGUSR2]


def _send_both() -> None:
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_handlers_are_as_before_after_an_error(device: str, handler: Any) -> None:
    w = torch.ones(2, device=device, requires_grad=True)
    y = w * 2

    def fail(_grad: torch.Tensor) -> None:
        raise KeyError("of a hook")

    y.register_hook(fail)
    with pytest.raises(KeyError, match="of a hook"):
        y.sum().backward()
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_a_pass_within_a_pass(handler: Any) -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    y = w * 2

    def differentiate(grad: torch.Tensor) -> torch.Tensor:
        v = torch.ones(2, device="jax", requires_grad=True)
        with torch.enable_grad():
            (v * 3).sum().backward()
        return grad * v.grad

    y.register_hook(differentiate)
    y.sum().backward()
    assert w.grad.tolist() == [6.0, 6.0]
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_a_hook_may_set_a_handler() -> None:
    w = torch.ones(2, requires_grad=True)
    before = signal.getsignal(signal.SIGUSR2)

    def ignore(_grad: torch.Tensor) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    w.register_hook(ignore)
    w.sum().backward()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    signal.signal(signal.SIGUSR2, before)


def test_other_threads_have_no_signals(handler: Any) -> None:
    seen: list[Any] = []
    w = torch.ones(2, device="jax", requires_grad=True)
    w.register_hook(lambda _grad: seen.append(signal.getsignal(signal.SIGUSR1)))
    thread = threading.Thread(target=lambda: w.sum().backward())
    thread.start()
    thread.join()
    assert seen == [handler]
