"""Observers of the tensors of the device that a thread uses: the capture of a training step, while it runs.

A capture must see each tensor that is computed with or made. Mostly there is no observer, and a call only checks that
`WATCHERS` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any, Protocol


class Watcher(Protocol):
    """An observer of the operators and tensors of one thread."""

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """An operator is about to be run; the arguments that it is to have."""

    def made(self, tensor: Any) -> None:
        """A new tensor has an array or a place in a storage."""

    def read(self, array: Any) -> Any:
        """The number of a traced array of one element, which the program asks for; an error, if there is none."""


WATCHERS: dict[int, Watcher] = {}
"""The active observers, by the thread that they observe."""


def watcher() -> Watcher | None:
    """The observer of this thread, if there is one."""
    return WATCHERS.get(get_ident())


def met(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with which an operator is to be run."""
    found = watcher()
    return (args, kwargs or {}) if found is None else found.met(func, args, kwargs or {})


def made(tensor: Any) -> None:
    found = watcher()
    if found is not None:
        found.made(tensor)
