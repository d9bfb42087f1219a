"""`torch.distributed` on tensors of the device: two processes, each call beside the same one on the CPU."""

from __future__ import annotations

import pytest

from ..harness import rank_processes
from ..programs import rank_collectives


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", rank_collectives.PROGRAMS)
def test_as_on_the_cpu(name: str) -> None:
    rank_processes.found(name, "eager on the device")
