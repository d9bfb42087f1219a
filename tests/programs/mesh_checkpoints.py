"""A model over eight devices, saved by torch.distributed.checkpoint and loaded elsewhere."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn

from jaten_ops import distributed

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 16))


def _partitioned() -> nn.Module:
    mesh = distributed.make_mesh(data=2, model=4)
    return distributed.fully_shard(distributed.parallelize_module(copy.deepcopy(MODEL), mesh, {"0": "colwise"}), mesh)


PLACES: dict[str, Callable[[], nn.Module]] = {
    "the same mesh": _partitioned,
    "another mesh": lambda: distributed.fully_shard(copy.deepcopy(MODEL), distributed.make_mesh(data=8)),
    "one device": lambda: copy.deepcopy(MODEL).to("jax"),
    "the CPU": lambda: copy.deepcopy(MODEL),
}


def outcome(place: str) -> None:
    """Saves a partitioned model, and loads it elsewhere."""
    torch.manual_seed(1)
    saved, mesh = _partitioned(), distributed.make_mesh(data=2, model=4)
    optimizer = torch.optim.AdamW(saved.parameters())
    saved(distributed.distribute_batch(torch.randn(8, 16), mesh)).sum().backward()
    optimizer.step()
    model = PLACES[place]()
    state = model.state_dict()
    had = [getattr(v, "sharding", None) for v in state.values()]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save({"model": saved.state_dict(), "state": optimizer.state_dict()["state"]}, checkpoint_id=folder)
        checkpoint.load({"model": state}, checkpoint_id=folder)
    model.load_state_dict(state)
    now = model.state_dict()
    assert all(torch.equal(v.cpu(), saved.state_dict()[k].cpu()) for k, v in now.items())
    assert [getattr(v, "sharding", None) for v in now.values()] == had
