"""`torch.jax.Stream` and `torch.jax.Event`: JAX orders computations by their data, like a single stream."""

from __future__ import annotations

import time
from typing import Any

import jax
import torch
from jax._src import xla_bridge  # private: nothing public tells whether JAX has started


def has_started() -> bool:
    """True if JAX has looked for devices. A program without tensors on the device must not cause that."""
    return xla_bridge.backends_are_initialized()


def synchronize() -> None:
    """Waits for the computations that have been started."""
    if not has_started():
        return
    jax.effects_barrier()
    for array in jax.live_arrays():
        array.block_until_ready()


class Event:
    """A point in the device's work; recording one waits until it is reached.

    Args:
        enable_timing: whether `elapsed_time` may be called.
        blocking, interprocess: accepted for compatibility; they have no effect.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        synchronize()
        self._seconds = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Does nothing: later computations of the program run after the event."""

    def query(self) -> bool:
        """True: a recorded event has been reached."""
        return True

    def synchronize(self) -> None:
        """Does nothing: a recorded event has been reached."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        Raises:
            RuntimeError: one of them is not for timing, or has not been recorded.
        """
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3


class Stream:
    """The device's only stream, whatever the arguments; `with stream:` changes nothing."""

    stream_id = 0
    device_index = 0
    device_type = 20  # c10::DeviceType::PrivateUse1

    def __init__(self, device: Any = None, priority: int = 0, **_others: Any) -> None:
        self.priority = priority

    @property
    def device(self) -> torch.device:
        return torch.device("jax", 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: Any) -> None:
        pass

    def query(self) -> bool:
        """True if everything has been computed."""
        return not has_started() or all(array.is_ready() for array in jax.live_arrays())

    def synchronize(self) -> None:
        synchronize()

    def wait_event(self, event: Event) -> None:
        """Does nothing, like `Event.wait`."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to do: it is the same stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event: the given one, or a new one."""
        event = event or Event()
        event.record(self)
        return event
