"""The sizes for which programs are made where those of the operands change again and again.

A size with two values, as the batches of an epoch and its last one, keeps a program of its own for each: those have the
forms of operations that are tuned for their sizes. A third value is rounded. So is a second one that is larger by one
than the value before: as the length of a cache, it is expected to grow at each call. Where the sizes of many calls are
well below the rounded ones, there is one more program, for these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .open_program import OpenProgram

Symbols = dict[Any, int]


KEPT = 2
"""The number of values of a size that keep programs of their own."""

LITTLE = 4e6
"""Operations on an element: some milliseconds, which is little beside the compile of a graph."""

_MANY_CALLS = 64
"""So many calls pay for one more compile, if each then does at most `_LESS` of the work."""

_LESS = 0.8

_OFTEN = 1024
_GROWTH = 4


class SizeHistory:
    """The sizes that a program has met, in any thread.

    Args:
        symbols: what stands for each size.

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
                if len(met) >= KEPT or size - 1 in met[-1:]:
                    self.changing += (symbol,)
                met.append(size)


class UsedSizes:
    """Larger sizes for which there is an executable, and what its calls are given.

    Args:
        sizes: the larger ones, by name.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self._most: dict[str, int] = {}
        self._calls = self._grown_at = 0

    def meet(self, given: Mapping[str, int]) -> None:
        """Notes the sizes of a call."""
        if any(size > self._most.get(name, 0) for name, size in given.items()):
            self._most = {name: max(size, self._most.get(name, 0)) for name, size in given.items()}
            self._grown_at = self._calls

    def is_due(self) -> bool:
        """Counts a call; True where it is time to ask for `tighter` sizes."""
        self._calls += 1
        return self._calls >= _MANY_CALLS and not self._calls & (self._calls - 1)  # at 64, 128, 256, ...

    def tighter(self, program: OpenProgram) -> dict[str, int] | None:
        """Smaller ones that all calls would have fitted; None if they save too little, or if those of calls grow."""
        if self._calls - self._grown_at < self._calls // 4:
            return None
        tight = {name: min(self.sizes[name], _a_little_more(size)) for name, size in self._most.items()}
        return tight if program.work(tight) <= _LESS * program.work(self.sizes) else None


def _a_little_more(size: int) -> int:
    """A size, rounded up by an eighth at most."""
    step = max(next_power_of_two(size) // 16, 1)
    return -(-size // step) * step


def larger_sizes(
    program: OpenProgram, sizes: Mapping[str, int], made: Sequence[dict[str, int]], little: float = LITTLE
) -> tuple[dict[str, int], bool]:
    """The sizes for which a program runs in place of the given ones, and whether these are new.

    Args:
        program: it.
        sizes: the given ones, by name.
        made: larger ones for which it has been compiled.
        little: operations on an element that do not count.
    """
    needed = program.work(sizes)
    for known in made:
        fits = all(size <= known[name] for name, size in sizes.items()) and program.fits(sizes, known)
        if fits and _is_worthwhile(needed, program.work(known), little):
            return known, False
    larger = dict(sizes)
    for name, size in sizes.items():

        def work(other: int, name: str = name, others: Mapping[str, int] = larger) -> float:
            return program.work({**others, name: other})

        larger = {**larger, name: _bucket_for(size, work, little)}
    return larger, larger not in made


def next_power_of_two(size: int) -> int:
    """The least power of two that is not below a size; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _is_worthwhile(work: float, more: float, little: float) -> bool:
    """True if a program may do so much more work than is needed, to save a compile."""
    return more - work <= max(work, little)


def _bucket_for(size: int, work: Callable[[int], float], little: float) -> int:
    """The size of jaten's choice: as large as is worthwhile, so that sizes that grow compile rarely."""
    least, needed = next_power_of_two(size), work(size)
    bucket = max(_OFTEN, _GROWTH * least)
    while bucket > least and not _is_worthwhile(needed, work(bucket), little):
        bucket //= 2
    return bucket
