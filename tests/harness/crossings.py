"""Samples of large tables of test parameters, which run by default; the other rows have the mark `exhaustive`.

Of a crossing, `make test` runs each pair of values of two axes at least once (of two axes: each value of each). Of a
test with the mark `sampled(n)` it runs every nth row. `make exhaustive` runs the others. The samples are the same in
every run. `fraction` takes a part of the default run: a fixed one, of every folder.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["covering", "crossed", "crossed_for", "fraction", "sample"]

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


def crossed_for(often: Iterable[Any], every: Iterable[Any], *axes: Iterable[Any]) -> list[Any]:
    """Parameters for a crossing of which by default each value of each axis runs once, with values of `often` alone.

    Args:
        often: the values of the first parameter for the default run.
        every: all of its values, among which those are.
        axes: the values of the others.
    """
    often = list(often)
    rest = crossed([value for value in every if value not in often], *axes)
    rows = crossed(often, *axes, strength=1)
    return [*rows, *(pytest.param(*row.values, marks=pytest.mark.exhaustive, id=row.id) for row in rest)]


def sample(items: Iterable[pytest.Item]) -> None:
    """Marks all but every nth row of a test with the mark `sampled(n)` as exhaustive.

    Rows that are so already are left out of the count. A row that is asked for by its name is the first, and runs.
    """
    rows: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None or item.get_closest_marker("exhaustive") is not None:
            continue
        (step,) = mark.args
        table = item.nodeid.partition("[")[0]
        if rows[table] % step:
            item.add_marker(pytest.mark.exhaustive)
        rows[table] += 1


def fraction(items: Iterable[pytest.Item], one_of: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of which about one in `one_of` is taken, and the others.

    A hash of a test's id decides, so that the part is the same in each run and with each version of Python, and new
    tests change nothing of it.
    """
    taken: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (others if zlib.crc32(item.nodeid.encode()) % one_of else taken).append(item)
    return taken, others
