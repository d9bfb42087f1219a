"""Attention over a sequence that is partitioned over a mesh of eight devices."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..harness.crossings import crossed
from ..programs import mesh_sequence


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("mesh", "causal", "way"), crossed(mesh_sequence.MESHES, ("causal", "all"), mesh_sequence.WAYS, strength=1)
)
def test_as_over_the_whole_sequence(mesh: str, causal: str, way: str) -> None:
    mesh_process.found("attention", mesh, causal, way)


@pytest.mark.parametrize("name", mesh_sequence.PROGRAMS)
def test_program(name: str) -> None:
    mesh_process.found("sequence", name)
