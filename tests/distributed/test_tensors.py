"""Tensors over a mesh of eight devices: placements, arithmetic, writes, copies, constraints, and what is refused."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..harness.crossings import crossed
from ..programs import mesh_host, mesh_moves, mesh_placements, mesh_tensors


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", mesh_tensors.PROGRAMS)
def test_program(name: str) -> None:
    mesh_process.found("tensors", name)


def _is_captured(name: str, way: str) -> bool:
    return way == "compiled"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "way"), crossed(mesh_placements.SPREAD, mesh_placements.WAYS, always=_is_captured))
def test_constrain(name: str, way: str) -> None:
    mesh_process.found("placements", name, way)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "way", "by"), crossed(mesh_moves.MOVES, mesh_placements.WAYS, mesh_moves.BY))
def test_a_move_gathers_no_whole_tensor(name: str, way: str, by: str) -> None:
    found = mesh_process.found("moves", name, way, by)
    assert "rematerialization" not in found["said"]
    assert 0 < sum(size for _, size in found["costs"].values()) < found["whole"], found["costs"]


@pytest.mark.parametrize(("kind", "name"), mesh_host.ROWS)
def test_tensors_of_the_cpu_beside_a_mesh(kind: str, name: str) -> None:
    mesh_process.found("host", kind, name)
