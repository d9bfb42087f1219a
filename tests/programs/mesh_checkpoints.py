"""A model over eight devices, saved by torch.distributed.checkpoint and loaded elsewhere."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.utils._pytree import tree_leaves

from jaten_ops import distributed

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 16))


def partitioned_over_both() -> nn.Module:
    mesh = distributed.make_mesh(data=2, model=4)
    return distributed.fully_shard(distributed.parallelize_module(copy.deepcopy(MODEL), mesh, {"0": "colwise"}), mesh)


def partitioned_over_one() -> nn.Module:
    return distributed.fully_shard(copy.deepcopy(MODEL), distributed.make_mesh(data=8))


PLACES: dict[str, Callable[[], nn.Module]] = {
    "the same mesh": partitioned_over_both,
    "another mesh": partitioned_over_one,
    "one device": lambda: copy.deepcopy(MODEL).to("jax"),
    "the CPU": lambda: copy.deepcopy(MODEL),
}


def trained(model: nn.Module, gradient: float) -> dict[str, Any]:
    """The state of a model and of its optimizer, after a step with a gradient of one value everywhere."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


def assert_same(state: Any, expected: Any) -> None:
    for one, other in zip(tree_leaves(state), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())


def outcome(place: str) -> None:
    """Saves a partitioned model and its optimizer, and loads them elsewhere."""
    saved, loaded = trained(partitioned_over_both(), 1.0), trained(PLACES[place](), 0.0)
    had = [getattr(v, "sharding", None) for v in tree_leaves(loaded)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(saved, checkpoint_id=folder)
        checkpoint.load(loaded, checkpoint_id=folder)
    assert_same(loaded, trained(copy.deepcopy(MODEL), 1.0))
    assert [getattr(v, "sharding", None) for v in tree_leaves(loaded)] == had
