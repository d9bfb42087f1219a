"""One of two processes that train a model over the devices of both, and print what they find as JSON.

WAYS=eager RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 python -m tests.programs.mesh_processes
"""

from __future__ import annotations

import copy
import io
import json
import os
from typing import Any

import jax
import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn

import jaten_ops
from jaten_ops import distributed
from jaten_ops.errors import UnsupportedInputError

from . import mesh_checkpoints

WAYS = ("eager", "compiled", "step")
ASKED = "WAYS"
"""The environment variable that has the ways of a run, and whether it has checkpoints, with blanks between."""

CHECKPOINTS = "checkpoints"


def _losses(model: nn.Module, way: str, batches: list[Any]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    call = torch.compile(model, backend="jaten") if way == "compiled" else model

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (call(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaten_ops.compile_step(step) if way == "step" else step
    return [run(x).item() for x in batches]


def _save_and_load(weight: torch.Tensor) -> list[str]:
    """Saves a state, and loads it and one that was saved by a single process; the errors of what is refused."""
    state, folder = mesh_checkpoints.trained(mesh_checkpoints.partitioned_over_both(), 1.0), os.environ["CHECKPOINTS"]
    refused = []
    for save in (lambda: torch.save(weight, io.BytesIO()), lambda: checkpoint.save(state, checkpoint_id=folder)):
        try:
            save()
        except (UnsupportedInputError, checkpoint.CheckpointException) as error:
            refused.append(str(error))
    torch.distributed.init_process_group("gloo")
    checkpoint.save(state, checkpoint_id=f"{folder}/of two processes")
    expected = mesh_checkpoints.trained(copy.deepcopy(mesh_checkpoints.MODEL), 1.0)
    for name in ("of two processes", "of one process"):
        for place in (mesh_checkpoints.partitioned_over_one, mesh_checkpoints.partitioned_over_both):
            loaded = mesh_checkpoints.trained(place(), 0.0)
            checkpoint.load(loaded, checkpoint_id=f"{folder}/{name}")
            mesh_checkpoints.assert_same(loaded, expected)
    torch.distributed.destroy_process_group()
    return refused


def main() -> None:
    torch.manual_seed(1000 + int(os.environ["RANK"]))
    distributed.initialize()
    found: dict[str, Any] = {"seed": torch.initial_seed(), "devices": [jax.device_count(), jax.local_device_count()]}
    torch.manual_seed(0)
    parts = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16)]
    model, data = nn.Sequential(*parts), torch.randn(3, 8, 16)
    mesh = distributed.make_mesh(data=2, model=-1)
    own = slice(4 * jax.process_index(), 4 * jax.process_index() + 4)
    found["plain"] = _losses(copy.deepcopy(model), "eager", list(data))
    asked = os.environ[ASKED].split()
    for way in (way for way in WAYS if way in asked):
        placed = distributed.parallelize_module(copy.deepcopy(model), mesh, {"0": "colwise", "3": "rowwise"})
        placed = distributed.fully_shard(placed, mesh)
        found[way] = _losses(placed, way, [distributed.distribute_batch(x[own], mesh) for x in data])
    weight = placed[0].weight
    found["part"] = list(weight.to_local().shape)
    found["sums"] = [weight.cpu().sum().item(), weight.full_tensor().sum().item()]
    torch.manual_seed(5)
    found["dropout"] = nn.functional.dropout(distributed.distribute_batch(torch.ones(4, 8), mesh)).cpu().tolist()
    found["home"] = str(torch.ones(2, device="jax").device)
    if CHECKPOINTS in asked:
        found["refused"] = _save_and_load(weight)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
