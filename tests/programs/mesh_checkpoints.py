"""A model over eight devices, saved by torch.distributed.checkpoint and loaded elsewhere; its findings as JSON."""

from __future__ import annotations

import copy
import json
import tempfile
import warnings
from collections.abc import Callable

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn

from jaten_ops import distributed

warnings.simplefilter("ignore")  # that there is one process

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


def main() -> None:
    saved = _partitioned()
    optimizer = torch.optim.AdamW(saved.parameters())
    mesh = distributed.make_mesh(data=2, model=4)
    saved(distributed.distribute_batch(torch.randn(8, 16), mesh)).sum().backward()
    optimizer.step()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save({"model": saved.state_dict(), "state": optimizer.state_dict()["state"]}, checkpoint_id=folder)
        for name, make in PLACES.items():
            model = make()
            state = model.state_dict()
            had = [getattr(v, "sharding", None) for v in state.values()]
            checkpoint.load({"model": state}, checkpoint_id=folder)
            model.load_state_dict(state)
            now = model.state_dict()
            found[name] = {
                "values": all(torch.equal(v.cpu(), saved.state_dict()[k].cpu()) for k, v in now.items()),
                "places": [getattr(v, "sharding", None) for v in now.values()] == had,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
