"""The sizes of the option `"auto"`: those that have changed are rounded, from the second value on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bucket_sizes import bucket_for, is_worthwhile
from .masked_program import MaskedProgram

Symbols = dict[Any, int]


class SizeHistory:
    """The sizes that a graph has met.

    Attributes:
        classes: for each symbol a number; those with the same one have had equal sizes so far.
        changed: the symbols that have had two sizes.
    """

    def __init__(self, symbols: Sequence[Any]) -> None:
        self.classes: dict[Any, int] = dict.fromkeys(symbols, 0)
        self.changed: list[Any] = []
        self._first: Symbols | None = None

    def meet(self, sizes: Symbols) -> bool:
        """Notes sizes; returns True if they are the first ones."""
        numbers: dict[tuple[int, int], int] = {}
        found = {s: (number, sizes[s]) for s, number in self.classes.items()}
        self.classes = {s: numbers.setdefault(pair, len(numbers)) for s, pair in found.items()}
        if self._first is None:
            self._first = sizes
            return True
        self.changed += [s for s in self.classes if s not in self.changed and sizes[s] != self._first[s]]
        return False


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
