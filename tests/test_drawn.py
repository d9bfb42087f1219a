"""Drawn programs: a sample of `python -m tests.drawn`."""

from __future__ import annotations

import pytest
import torch

from .drawn.drawing import draw, overlaps_itself
from .drawn.outcomes import WAYS, differences, judge, outcome
from .drawn.over_mesh import WAYS_OVER_MESH
from .harness import mesh_process

SEEDS = [seed for seed in range(60) if draw(seed) is not None]


@pytest.mark.sampled(25)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("fresh_dynamo")
def test_program(way: str, seed: int) -> None:
    program = draw(seed)
    assert program is not None
    verdict = judge(program, WAYS[way])
    assert verdict.outcome != "differs", f"{verdict.details}\n{program.source}"


@pytest.mark.sampled(40)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS_OVER_MESH)
def test_program_over_a_mesh(way: str, seed: int) -> None:
    assert not mesh_process.found("drawn", str(seed), way)


def test_a_seed_is_a_program() -> None:
    for seed in SEEDS[:10]:
        one, two = draw(seed), draw(seed)
        assert one is not None and two is not None and one.source == two.source
        assert all(torch.equal(one.inputs[name], two.inputs[name]) for name in one.inputs)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_difference_is_seen(seed: int) -> None:
    program = draw(seed)
    assert program is not None
    expected = outcome(program, None)
    assert differences(expected, outcome(program, None), has_strides=True) == []
    for name, (values, needs_gradient, strides) in expected.items():
        if values.numel():
            changed = expected | {name: (values + 1, needs_gradient, strides)}
            assert [d.partition(":")[0] for d in differences(expected, changed, has_strides=True)] == [name]


def test_programs_join_views_writes_and_gradients() -> None:
    """All kinds are among them, or the draw would look at little."""
    drawn = [program for program in map(draw, SEEDS) if program is not None]
    for part in ("_(", "no_grad", ".detach()", "transpose", "[::2]", "out="):
        assert any(part in program.source for program in drawn), part
    assert len(drawn) / 3 < sum(bool(program.trains) for program in drawn) < len(drawn)


@pytest.mark.parametrize(
    ("tensor", "overlaps"),
    [
        (torch.ones(3, 4).t(), False),
        (torch.ones(3, 4)[:, ::2], False),
        (torch.ones(1).expand(3), True),
        (torch.ones(5).unfold(0, 2, 1), True),
        (torch.ones(1, 4).expand(1, 4), False),
    ],
)
def test_memory_that_overlaps(tensor: torch.Tensor, overlaps: bool) -> None:
    assert overlaps_itself(tensor) is overlaps
