"""One of two processes that train a model over the devices of both, and print what they find as JSON.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 python -m tests.programs.mesh_processes
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import jax
import torch
from torch import nn

import jaten_ops
from jaten_ops import distributed

WAYS = ("eager", "compiled", "step")


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
    for way in WAYS:
        placed = distributed.parallelize_module(copy.deepcopy(model), mesh, {"0": "colwise", "3": "rowwise"})
        placed = distributed.fully_shard(placed, mesh)
        found[way] = _losses(placed, way, [distributed.distribute_batch(x[own], mesh) for x in data])
    weight = placed[0].weight
    found["part"] = list(weight.to_local().shape)
    found["sums"] = [weight.cpu().sum().item(), weight.full_tensor().sum().item()]
    torch.manual_seed(5)
    found["dropout"] = nn.functional.dropout(distributed.distribute_batch(torch.ones(4, 8), mesh)).cpu().tolist()
    found["home"] = str(torch.ones(2, device="jax").device)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
