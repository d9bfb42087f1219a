"""torch's own ways to train over several processes, one for each device: as plain torch in the same two processes."""

from __future__ import annotations

import pytest

from ..harness import rank_processes
from ..harness.crossings import crossed
from ..programs import rank_modules, rank_tensors
from ..programs.rank_ways import WAYS


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "way"), crossed([*rank_modules.PROGRAMS, *rank_tensors.PROGRAMS], WAYS))
def test_as_plain_torch(name: str, way: str) -> None:
    rank_processes.found(name, way)


@pytest.mark.exhaustive
def test_program_of_the_page() -> None:
    rank_processes.found("the page", "compiled on the device")
