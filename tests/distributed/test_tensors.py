"""Tensors over a mesh of eight devices: placements, arithmetic, writes, copies, constraints, and what is refused."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..programs import mesh_tensors


@pytest.mark.parametrize("name", mesh_tensors.PROGRAMS)
def test_program(name: str) -> None:
    mesh_process.found("tensors", name)
