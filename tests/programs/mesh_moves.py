"""Values that move from some placement over a mesh of two axes to another: what XLA says of it, and what it costs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jax.sharding import PartitionSpec
from torch import Tensor

from jaten_ops import distributed

from .mesh_placements import WAYS
from .mesh_tensors import assert_over, mesh_2_4

P = PartitionSpec
BOTH = ("data", "model")

MOVES: dict[str, tuple[PartitionSpec, PartitionSpec]] = {
    "the first goes elsewhere, the second away": (P(BOTH), P(None, "data")),
    "the second goes elsewhere, the first away": (P(BOTH), P(None, "model")),
    "the other order": (P(("model", "data")), P(None, "model")),
    "from the last dimension": (P(None, None, BOTH), P("data")),
    "into two dimensions": (P(None, BOTH), P("data", None, "model")),
    "out of two dimensions": (P("data", None, "model"), P(None, BOTH)),
    "out of two, in the other order": (P("model", "data"), P(None, None, BOTH)),
    "one axis for another": (P("data"), P(None, "model")),
}
SHAPE = (8, 16, 8)


def _by_constrain(source: PartitionSpec, target: PartitionSpec) -> Callable[[Tensor], Tensor]:
    mesh = mesh_2_4()
    return lambda x: distributed.constrain(distributed.constrain(x, mesh, source) * 2 + 1, mesh, target)


def _by_redistribute(source: PartitionSpec, target: PartitionSpec) -> Callable[[Tensor], Tensor]:
    mesh = mesh_2_4()
    return lambda x: (distributed.constrain(x, mesh, source) * 2 + 1).redistribute(mesh, target)  # type: ignore[attr-defined]  # a method of tensors of the device


BY: dict[str, Callable[[PartitionSpec, PartitionSpec], Callable[[Tensor], Tensor]]] = {
    "constrain": _by_constrain,
    "redistribute": _by_redistribute,
}


@contextmanager
def _said() -> Iterator[list[str]]:
    """The text that C++ writes to the standard error in a block, in a list when it is over."""
    found: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            found.append(file.read().decode(errors="replace"))


def moved(name: str, way: str, by: str) -> dict[str, Any]:
    """A move's warnings, the collectives of the program with it, and the bytes of the whole tensor."""
    torch._dynamo.reset()
    source, target = MOVES[name]
    move, plain = BY[by](source, target), torch.randn(*SHAPE)
    with _said() as said:
        value, gradient = WAYS[way](move)(plain.to("jax"))
    assert_over(value, target)
    torch.testing.assert_close(value.cpu(), plain * 2 + 1)
    assert torch.equal(gradient.cpu(), torch.full(SHAPE, 2.0))
    whole = distributed.distribute_tensor(plain, mesh_2_4(), source)
    costs = distributed.collectives(move, whole)
    return {"said": said[0], "costs": {kind: list(cost) for kind, cost in costs.items()}, "whole": plain.nbytes}
