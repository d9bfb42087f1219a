"""Operators on arrays that are partitioned over two axes of a mesh, beside the same calls on the CPU."""

from __future__ import annotations

import pytest
import torch

from ..harness import exceptions, mesh_process
from ..harness.replay import supported
from ..test_ops import NAMES

# Values that JAX's 64-bit types must be on for; convolutions with groups; results of sizes that values decide.
OFTEN = ("addcdiv", "nn.functional.conv2d", "masked_select")


def _rows() -> list[object]:
    names = [n for n in NAMES if supported(n, torch.float64)]
    marks = [pytest.mark.exhaustive]
    return [pytest.param(n, id=n, marks=[] if n in OFTEN or i % 120 == 0 else marks) for i, n in enumerate(names)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", _rows())
def test_operators(name: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "device", name, torch.float64)
    assert not mesh_process.found("operators", name, "2")
