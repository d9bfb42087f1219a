"""Programs with DTensors of torch in two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor

from .rank_ways import Way


def _given(way: Way, *shape: int, at: int = 0) -> Tensor:
    torch.manual_seed(at)
    return torch.randn(*shape).to(way.device)


def _placed(way: Way) -> Any:
    x = _given(way, 5, 6)
    found = []
    for placement in (Shard(0), Shard(1), Replicate()):
        placed = distribute_tensor(x, way.mesh(), [placement])
        found += [placed.to_local(), placed.full_tensor(), (placed * 2 + 1).full_tensor()]
    return found


def _moved(way: Way) -> Any:
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(0)])

    def move(x: DTensor) -> Any:
        y = (x + 1).redistribute(placements=[Shard(1)])
        z = y.redistribute(placements=[Replicate()]).sin()
        return y, z, z.redistribute(placements=[Shard(0)])

    return way(move)(x)


def _multiplied(way: Way) -> Any:
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(0)]).requires_grad_()
    y = distribute_tensor(_given(way, 6, 3, at=1), way.mesh(), [Replicate()]).requires_grad_()
    out = way(lambda x, y: (x.sin() @ y).relu())(x, y)
    out.sum().backward()
    return out, x.grad, y.grad


def _summed(way: Way) -> Any:
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(1)]).requires_grad_()
    y = distribute_tensor(_given(way, 6, 3, at=1), way.mesh(), [Shard(0)]).requires_grad_()

    def run(x: DTensor, y: DTensor) -> Any:
        return (x @ y).redistribute(placements=[Replicate()]).cos()

    out = way(run)(x, y)
    out.sum().backward()
    return out, x.grad, y.grad


def _reduced(way: Way) -> Any:
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(0)]).requires_grad_()

    def run(x: DTensor) -> Any:
        return x.softmax(-1).sum() + x.mean(0).sum() + x.amax(1).sum() + x.std()

    out = way(run)(x)
    out.backward()
    return out, x.grad


def _local(way: Way) -> Any:
    mine = (_given(way, 3, 4) + dist.get_rank()).requires_grad_()

    def run(mine: Tensor) -> Tensor:
        whole = DTensor.from_local(mine * 2, way.mesh(), [Partial()])
        return whole.redistribute(placements=[Shard(0)]).to_local().sin()

    out = way(run)(mine) if dist.get_world_size() else mine
    out.sum().backward()
    return out, mine.grad


def _norms(way: Way) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()).to(way.device)
    module = distribute_module(module, way.mesh())
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(0)])
    out = way(module)(x)
    out.square().sum().backward()
    return out, [p.grad for p in module.parameters()]


def _looked_up(way: Way) -> Any:
    table = distribute_tensor(_given(way, 6, 4), way.mesh(), [Shard(0)]).requires_grad_()
    rows = distribute_tensor(torch.tensor([0, 3, 5, 2]).to(way.device), way.mesh(), [Replicate()])

    def run(rows: DTensor, table: DTensor) -> Any:
        return nn.functional.embedding(rows, table).redistribute(placements=[Replicate()]).tanh()

    out = way(run)(rows, table)
    out.sum().backward()
    return out, table.grad


def _made(way: Way) -> Any:
    options = {"device_mesh": way.mesh(), "placements": [Shard(0)]}
    ones = dtensor.ones(4, 3, **options) + dtensor.full((4, 3), 2.0, **options)
    return ones, dtensor.zeros(4, 3, **options), dtensor.empty(4, 3, **options).shape


def _written(way: Way) -> Any:
    x = distribute_tensor(_given(way, 4, 6), way.mesh(), [Shard(0)])
    x.mul_(2).add_(1)
    x.copy_(x + 1)
    y = torch.zeros_like(x)
    y += x
    return x, y, y.clone().detach(), x.to(torch.float64), x.view(2, 2, 6), x.t(), torch.cat([x, y], 1)


PROGRAMS: dict[str, Callable[[Way], Any]] = {
    "DTensor placed": _placed,
    "DTensor redistributed": _moved,
    "DTensor multiplied": _multiplied,
    "DTensor partial sums": _summed,
    "DTensor reduced": _reduced,
    "DTensor from local": _local,
    "DTensor modules": _norms,
    "DTensor embedding": _looked_up,
    "DTensor factories": _made,
    "DTensor written": _written,
}
