"""Observers of the tensors of the device that a thread uses: the capture of a training step, a trace of JAX's.

Mostly there is no observer, and a call only checks that `WATCHERS` is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Any


class Watcher:
    """An observer of the operators, tensors and storages of one thread. Each method may be left as it is."""

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Called before an operator runs; returns the arguments to use."""
        return args, kwargs

    def made(self, tensor: Any) -> None:
        """Called for a new tensor, when it has an array or a storage."""

    def written(self, storage: Any) -> None:
        """Called before a storage gets another array."""

    def read(self, array: Any) -> Any:
        """The number that an array of one element stands for; None if it is the array's own."""


WATCHERS: dict[int, tuple[Watcher, ...]] = {}
"""The active observers, the outermost first, by the thread that they observe."""


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """For the length of a block, in this thread, an observer is active, beside those that are."""
    thread = get_ident()
    before = WATCHERS.get(thread)
    WATCHERS[thread] = (*(before or ()), watcher)
    try:
        yield
    finally:
        if before is None:
            del WATCHERS[thread]
        else:
            WATCHERS[thread] = before


def watchers() -> tuple[Watcher, ...]:
    """The observers of this thread."""
    return WATCHERS.get(get_ident(), ())


def met(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with which an operator is to be run."""
    kwargs = kwargs or {}
    for watcher in watchers():
        args, kwargs = watcher.met(func, args, kwargs)
    return args, kwargs


def made(tensor: Any) -> None:
    for watcher in watchers():
        watcher.made(tensor)


def written(storage: Any) -> None:
    for watcher in watchers():
        watcher.written(storage)


def read(array: Any) -> Any:
    """The number that an array of one element stands for."""
    for watcher in watchers():
        found = watcher.read(array)
        if found is not None:
            return found
    return array.item()
