"""Docstrings as the reference of the site shows them."""

from __future__ import annotations

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx, of the extra `docs`")

from tools import reference_docstrings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the `Tensor`s of `a`, `b`", "the `Tensor`\\ s of `a`, `b`"),
        ("`a`, `jax.Array`s", "`a`, `jax.Array`\\ s"),
        ("``code``s and `x`.", "``code``\\ s and `x`."),
        ("no names", "no names"),
    ],
)
def test_names_in_backticks_end_before_letters(text: str, expected: str) -> None:
    assert reference_docstrings.with_ends(text) == expected


def test_the_stage_stands_before_the_docstring_of_a_public_name() -> None:
    found = []
    for name in ("jaten_ops.as_jax", "jaten_ops.interop.function_of_arrays"):
        lines = ["Turns a function."]
        reference_docstrings.edit(None, "function", name, None, None, lines)
        found.append(lines)
    assert found == [["*Stage: stable.*", "", "Turns a function."], ["Turns a function."]]
