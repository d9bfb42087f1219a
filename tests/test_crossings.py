"""Covering samples of crossings, and the rest, which can be asked for."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from .harness.crossings import covering, crossed, sample


@pytest.mark.parametrize(
    ("sizes", "strength", "most"),
    [((18, 3, 3, 3), 2, 60), ((10, 3), 1, 10), ((2, 3), 1, 3), ((2, 3, 8, 2), 3, 60), ((4, 1, 4), 2, 16), ((5,), 1, 5)],
)
def test_values_of_any_axes_meet(sizes: tuple[int, ...], strength: int, most: int) -> None:
    chosen = covering(sizes, strength)
    assert chosen == covering(sizes, strength) and len(chosen) <= most
    for axes in itertools.combinations(range(len(sizes)), strength):
        expected = set(itertools.product(*(range(sizes[a]) for a in axes)))
        assert {tuple(row[a] for a in axes) for row in chosen} == expected


def test_the_rest_is_exhaustive() -> None:
    rows = crossed({"a": 1, "b": 2}, ["cpu", "jax"], [1, 2, 3], always=lambda *row: row == ("b", "jax", 2))
    assert [row.id for row in rows] == ["-".join(r) for r in itertools.product("ab", ("cpu", "jax"), "123")]
    usual = [row.id for row in rows if not row.marks]
    assert "b-jax-2" in usual and 6 <= len(usual) <= 7


def _item(name: str, **marks: pytest.MarkDecorator) -> Any:
    given = {mark.name: mark.mark for mark in marks.values()}
    return SimpleNamespace(
        nodeid=name, marks=given, get_closest_marker=given.get, add_marker=lambda m: given.update({m.name: m.mark})
    )


def test_every_nth_row_of_a_table_runs() -> None:
    third, rest = pytest.mark.sampled(3), pytest.mark.exhaustive
    rows = [_item(f"a.py::f[{i}]", sampled=third) for i in range(7)]
    rows[1] = _item("a.py::f[1]", sampled=third, exhaustive=rest)
    others = [_item("a.py::g[0]", sampled=third), _item("a.py::h[0]")]
    sample([*rows, *others])
    assert [item.nodeid for item in (*rows, *others) if "exhaustive" not in item.marks] == [
        "a.py::f[0]", "a.py::f[4]", "a.py::g[0]", "a.py::h[0]"
    ]  # fmt: skip
