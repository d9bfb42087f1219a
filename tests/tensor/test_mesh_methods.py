"""Methods of tensors over a mesh of eight devices: parts, and whole values."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..programs import mesh_parts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", mesh_parts.PROGRAMS)
def test_program(name: str) -> None:
    mesh_process.found("parts", name)
