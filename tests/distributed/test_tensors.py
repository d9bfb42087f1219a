"""Tensors over a mesh of eight devices: placements, arithmetic, writes, copies, constraints, and what is refused."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..programs import mesh_placements, mesh_tensors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", mesh_tensors.PROGRAMS)
def test_program(name: str) -> None:
    mesh_process.found("tensors", name)


@pytest.mark.parametrize(("name", "way"), [(n, w) for n in mesh_placements.SPREAD for w in mesh_placements.WAYS])
def test_constrain(name: str, way: str) -> None:
    mesh_process.found("placements", name, way)
