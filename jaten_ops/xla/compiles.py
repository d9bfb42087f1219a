"""A record of compiles, for those who ask for one (see `jaten_ops.explain`)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Compile:
    """An executable that was compiled, or loaded from the disk.

    Attributes:
        name: of the graph or the step, as in the log.
        source: the first line of the user's program that it comes from; empty if unknown.
        operators: how often it calls each operator; empty for a step, which is traced without a graph.
        inputs: the dtype and shape of each.
        seconds: the time from the request to the executable.
        executable: it.
    """

    name: str
    source: str
    operators: Counter[str]
    inputs: tuple[str, ...]
    seconds: float
    executable: Any


@dataclass(frozen=True)
class Outside:
    """Operators between two executables of one graph, which run one by one.

    Attributes:
        name: of the graph, as in the log.
        operators: how often each is called.
    """

    name: str
    operators: Counter[str]


_watchers: list[list[Compile | Outside]] = []


@contextlib.contextmanager
def noted() -> Iterator[list[Compile | Outside]]:
    """A context that yields the list of what is compiled in it, by any thread: autograd has threads of its own."""
    found: list[Compile | Outside] = []
    _watchers.append(found)
    try:
        yield found
    finally:
        _watchers[:] = [w for w in _watchers if w is not found]


def are_watched() -> bool:
    """True if anyone watches."""
    return bool(_watchers)


def tell_of(what: Compile | Outside) -> None:
    """Adds it to the list of each who watches."""
    for found in list(_watchers):
        found.append(what)
