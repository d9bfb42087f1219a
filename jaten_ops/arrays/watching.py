"""Who watches what a thread does with tensors of the device: the capture of a training step, while it runs.

It must know each tensor that is computed with or made. Nothing watches mostly: then a call asks whether `WATCHERS` is
empty, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any, Protocol


class Watcher(Protocol):
    """What a watcher is told."""

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """An operator is about to be run; the arguments that it is to have."""

    def made(self, tensor: Any) -> None:
        """A new tensor has an array or a place in a storage."""

    def read(self, array: Any) -> Any:
        """The number of a traced array of one element, which the program asks for; an error, if there is none."""


WATCHERS: dict[int, Watcher] = {}
"""Those that watch now, by the thread that they watch."""


def watcher() -> Watcher | None:
    """What watches this thread."""
    return WATCHERS.get(get_ident())


def met(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with which an operator is to be run."""
    found = watcher()
    return (args, kwargs or {}) if found is None else found.met(func, args, kwargs or {})


def made(tensor: Any) -> None:
    found = watcher()
    if found is not None:
        found.made(tensor)
