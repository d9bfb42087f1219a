"""The ways to run a drawn program with tensors that are partitioned over a mesh of eight devices."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from jax.sharding import PartitionSpec

import jaten_ops

from .drawing import draw
from .outcomes import Way, compiled, judge

AXES = {"data": 2, "model": 4}


@functools.cache
def _mesh() -> Any:
    return jaten_ops.distributed.make_mesh(**AXES)


def _placed(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """A tensor with each axis along one of the dimensions that it divides, or, seldom, along none."""
    entries: list[str | None] = [None] * tensor.dim()
    for axis, parts in AXES.items():
        dims = [d for d, n in enumerate(tensor.shape) if entries[d] is None and n % parts == 0]
        if dims and chance.random() < 0.75:
            entries[chance.choice(dims)] = axis
    placed: torch.Tensor = jaten_ops.distributed.distribute_tensor(tensor, _mesh(), PartitionSpec(*entries))
    return placed


WAYS_OVER_MESH = {
    "over a mesh": Way("jax", placed=_placed),
    "compiled over a mesh": Way("jax", compiled, placed=_placed),
    "a step over a mesh": Way("jax", jaten_ops.compile_step, is_step=True, placed=_placed),
}


def differences(seed: str, way: str) -> str:
    """The differences of the program of a seed, with its source; empty if there are none."""
    program = draw(int(seed))
    assert program is not None
    verdict = judge(program, WAYS_OVER_MESH[way])
    return f"{verdict.details}\n{program.source}" if verdict.outcome == "differs" else ""
