"""The picture of which room imports which."""

from __future__ import annotations

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx, of the extra `docs`")

from tools import house_matrix

from .. import rooms


def test_imports_of_rooms_only_go_down() -> None:
    order = list(rooms.ROOMS)
    pairs = house_matrix.imports_of_rooms()
    assert ("backend", "xla") in pairs and len(pairs) > 100
    assert [(a, b) for a, b in pairs if order.index(a) <= order.index(b)] == []


def test_the_picture_has_a_dot_for_each_pair() -> None:
    assert house_matrix.drawn().count("<circle") == len(house_matrix.imports_of_rooms())
