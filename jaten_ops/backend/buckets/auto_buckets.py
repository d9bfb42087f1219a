"""The sizes of the option `"auto"`: those that change again and again are rounded.

A size with two values, as the batches of an epoch and its last one, keeps a program of its own for each: those have the
forms of operations that are tuned for their sizes. A third value is rounded. So is a second one that is larger by one
than the value before: as the length of a cache, it is expected to grow at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from .bucket_sizes import bucket_for, is_worthwhile
from .masked_program import MaskedProgram

Symbols = dict[Any, int]


_KEPT = 2
"""The number of values of a size that keep programs of their own."""


class SizeHistory:
    """The sizes that a graph has met, in any thread.

    Attributes:
        classes: for each symbol a number; those with the same one have had equal sizes so far.
        changing: the symbols whose sizes change again and again.
    """

    def __init__(self, symbols: Sequence[Any]) -> None:
        self.classes: dict[Any, int] = dict.fromkeys(symbols, 0)
        self.changing: tuple[Any, ...] = ()
        self._met: dict[Any, list[int]] = {s: [] for s in symbols}
        self._lock = threading.Lock()

    def meet(self, sizes: Symbols) -> None:
        """Notes sizes."""
        with self._lock:
            numbers: dict[tuple[int, int], int] = {}
            found = {s: (number, sizes[s]) for s, number in self.classes.items()}
            self.classes = {s: numbers.setdefault(pair, len(numbers)) for s, pair in found.items()}
            for symbol, met in self._met.items():
                size = sizes[symbol]
                if symbol in self.changing or size in met:
                    continue
                if len(met) >= _KEPT or size - 1 in met[-1:]:
                    self.changing += (symbol,)
                met.append(size)


def larger_sizes(program: MaskedProgram, sizes: Symbols) -> tuple[Symbols, bool]:
    """The sizes for which a program runs in place of the given ones, and whether these are new."""
    graph = program.graph
    needed = graph.work(sizes)
    for made in program.made:
        fits = all(size <= made[s] for s, size in sizes.items()) and graph.fits(sizes, made)
        if fits and is_worthwhile(needed, graph.work(made)):
            return made, False
    larger = dict(sizes)
    for group in graph.groups:

        def work(size: int, group: frozenset[Any] = group, known: Symbols = larger) -> float:
            return graph.work(known | dict.fromkeys(group, size))

        larger = larger | dict.fromkeys(group, bucket_for(next(sizes[s] for s in group), work))
    return larger, True
