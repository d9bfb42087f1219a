"""Crossings of test parameters: the whole table, of which a covering sample runs by default.

`make test` runs each pair of values of two axes at least once (of two axes: each value of each); the other rows have
the mark `exhaustive`, and run under `make exhaustive`. The sample is the same in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["covering", "crossed"]

Row = tuple[int, ...]


def _parts(row: Row, strength: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The values that a row has on each `strength` of its axes, with those axes."""
    return [(axes, tuple(row[a] for a in axes)) for axes in itertools.combinations(range(len(row)), strength)]


def covering(sizes: Iterable[int], strength: int) -> set[Row]:
    """Rows of a crossing, as indices, in which any values of any `strength` axes meet at least once.

    Greedy: each row covers what most is left of; of equal ones it takes the one whose values were taken least. The
    number of rows is near that of the crossing of the `strength` largest axes.
    """
    sizes = tuple(sizes)
    rows = list(itertools.product(*map(range, sizes)))
    left = {part for row in rows for part in _parts(row, strength)}
    parts = {row: _parts(row, strength) for row in rows}
    taken = [[0] * size for size in sizes]
    chosen: set[Row] = set()
    while left:
        best = max(
            (row for row in rows if row not in chosen),
            key=lambda row: (sum(p in left for p in parts[row]), -sum(t[v] for t, v in zip(taken, row, strict=True))),
        )
        chosen.add(best)
        left.difference_update(parts[best])
        for counts, value in zip(taken, best, strict=True):
            counts[value] += 1
    return chosen


def _name(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value)).removeprefix("torch.")


def crossed(
    *axes: Iterable[Any], strength: int | None = None, always: Callable[..., bool] = lambda *row: False
) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: every row of a crossing, those beyond a covering sample exhaustive.

    Args:
        axes: the values of each parameter.
        strength: of how many axes any values meet in the sample; 2, or 1 of two axes.
        always: true of rows that the default run has besides, such as one that once failed.

    Example:
        `@pytest.mark.parametrize(("name", "device", "dtype"), crossed(CASES, DEVICES, DTYPES))`
    """
    values = [list(axis) for axis in axes]
    chosen = covering(map(len, values), strength or min(2, len(values) - 1))
    found = []
    for indices in itertools.product(*(range(len(v)) for v in values)):
        row = [v[i] for v, i in zip(values, indices, strict=True)]
        marks = [] if indices in chosen or always(*row) else [pytest.mark.exhaustive]
        found.append(pytest.param(*row, marks=marks, id="-".join(map(_name, row))))
    return found
