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


def _attended(way: Way) -> Any:
    """Attention with heads partitioned; torch partitions none on the CPU, where it is done with whole tensors."""
    given = [_given(way, 2, 4, 6, 4, at=at) for at in range(3)]
    if way.device != "cpu":
        given = [distribute_tensor(x, way.mesh(), [Shard(1)]) for x in given]
    q, k, v = (x.requires_grad_() for x in given)
    out = way(lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))(q, k, v)
    out.sum().backward()
    return out, q.grad, k.grad, v.grad


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


def _drawn(way: Way) -> Any:
    """Parts have numbers of their own, and copies the same; on the CPU torch gives all parts the same."""
    found = []
    for placement in (Shard(0), Shard(0), Replicate()):
        torch.manual_seed(3)
        x = distribute_tensor(torch.ones(64, 8).to(way.device), way.mesh(), [placement])
        found.append(way(lambda x: nn.functional.dropout(x, 0.5))(x))
    first, again, copied = found
    one, other = first.full_tensor().chunk(2)
    copies = DTensor.from_local(copied.to_local(), way.mesh(), [Shard(0)]).full_tensor().chunk(2)
    values = sorted(set(first.full_tensor().flatten().tolist()))
    differ = way.device == "cpu" or not torch.equal(one, other)
    return values, torch.equal(first.full_tensor(), again.full_tensor()), torch.equal(*copies), differ


def _initialized(way: Way) -> Any:
    torch.manual_seed(3)
    x = distribute_tensor(torch.zeros(64, 8).to(way.device), way.mesh(), [Shard(0)])
    nn.init.uniform_(x)
    one, other = x.full_tensor().chunk(2)
    return bool((one > 0).all()), way.device == "cpu" or not torch.equal(one, other)


PROGRAMS: dict[str, Callable[[Way], Any]] = {
    "DTensor placed": _placed,
    "DTensor redistributed": _moved,
    "DTensor multiplied": _multiplied,
    "DTensor partial sums": _summed,
    "DTensor reduced": _reduced,
    "DTensor from local": _local,
    "DTensor modules": _norms,
    "DTensor embedding": _looked_up,
    "DTensor attention": _attended,
    "DTensor factories": _made,
    "DTensor written": _written,
    "DTensor dropout": _drawn,
    "DTensor initialized": _initialized,
}
