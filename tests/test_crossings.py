"""Covering samples of crossings, and the rest, which can be asked for."""

from __future__ import annotations

import itertools

import pytest

from .harness.crossings import covering, crossed


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
