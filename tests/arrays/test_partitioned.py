"""Operators on arrays that are partitioned over two axes of a mesh, beside the same calls on the CPU."""

from __future__ import annotations

import pytest
import torch

from ..harness import exceptions, mesh_process
from ..harness.replay import supported
from ..programs.mesh_convolutions import CONVOLUTIONS, PLACEMENTS
from ..test_ops import NAMES

OF_ONE_SIZE = ("argwhere",)  # its samples have a mask for a size that the mesh does not divide
# Values that JAX's 64-bit types must be on for; convolutions with groups; results of sizes that values decide.
OFTEN = ("addcdiv", "nn.functional.conv2d", "masked_select")


AXES = ("data model", "model", "data")  # XLA's compiler has a way of its own where devices have the same part


def _rows() -> list[object]:
    names = [n for n in NAMES if supported(n, torch.float64) and n not in OF_ONE_SIZE]
    usual = {(n, axes) for n in OFTEN for axes in AXES} | {(n, AXES[i % 3]) for i, n in enumerate(names[::120])}
    marks = [pytest.mark.exhaustive]
    return [pytest.param(n, a, marks=[] if (n, a) in usual else marks) for n in names for a in AXES]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "axes"), _rows())
def test_operators(name: str, axes: str, request: pytest.FixtureRequest) -> None:
    exceptions.apply(request, "device", name, torch.float64)
    assert not mesh_process.found("operators", name, "2", axes)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, placement: str, way: str) -> None:
    got, expected = mesh_process.found("convolutions", name, placement, way)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.tensor(g), torch.tensor(e))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["padded", "strided", "dilated", "a kernel a channel"])
def test_shardings_of_jit_tell_of_a_mesh_that_is_set(name: str) -> None:
    assert mesh_process.found("convolutions, in_shardings", name) < 1e-5
