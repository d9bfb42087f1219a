"""Layers whose weights a plan partitions over a mesh of eight devices: their programs move no whole weight."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..harness.crossings import crossed
from ..programs.mesh_layers import LAYERS, WAYS

OFTEN = ("two convolutions", "attention", "a language model")


def _rows() -> list[object]:
    others = [name for name in LAYERS if name not in OFTEN]
    rest = [pytest.param(*row.values, marks=pytest.mark.exhaustive, id=row.id) for row in crossed(others, WAYS)]
    return [*crossed(OFTEN, WAYS), *rest]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "way"), _rows())
def test_no_weight_and_no_gradient_is_gathered(name: str, way: str) -> None:
    found = mesh_process.found("layers", name, way)
    assert found["programs"] == (2 if way == "compile" else 1)
    assert found["collectives"]  # they are over a mesh
    assert not found["whole"]
