"""`torch.distributed` on tensors of the device: two processes, each call beside the same one on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import jaten_ops  # noqa: F401  # the device jax

from ..harness.processes import WORLD, found_by_processes


def _own(device: str, rank: int, size: int = 4) -> torch.Tensor:
    return torch.arange(float(size), device=device) + 10 * rank


def _all_reduce(device: str, rank: int) -> Any:
    x, view = _own(device, rank), _own(device, rank)[1:3]
    works = [dist.all_reduce(view, op=dist.ReduceOp.MAX, async_op=True), dist.all_reduce(x, async_op=True)]
    for work in works:
        work.wait()
    return x, view


def _reduce(device: str, rank: int) -> Any:
    x = _own(device, rank)
    dist.reduce(x, 1)
    return x if rank == 1 else None  # what the others have is undefined


def _broadcast(device: str, rank: int) -> Any:
    x = torch.full((3,), rank + 1, dtype=torch.int64, device=device)
    dist.broadcast(x, 1)
    return x


def _gather(device: str, rank: int) -> Any:
    every = [torch.empty(4, device=device) for _ in range(WORLD)]
    dist.all_gather(every, _own(device, rank))
    one = [torch.empty(4, device=device) for _ in range(WORLD)] if rank == 0 else None
    dist.gather(_own(device, rank), one, dst=0)
    whole = torch.empty(8, device=device)
    dist.all_gather_into_tensor(whole, _own(device, rank))
    return every, one, whole


def _scatter(device: str, rank: int) -> Any:
    x = torch.empty(4, device=device)
    dist.scatter(x, [_own(device, 5), _own(device, 6)] if rank == 0 else None, src=0)
    return x


def _all_to_all(device: str, rank: int) -> Any:
    x = torch.empty(4, device=device)
    dist.all_to_all_single(x, _own(device, rank))
    return x


def _to_each_other(device: str, rank: int) -> Any:
    """Both wait for the other before they send."""
    x, y = torch.empty(4, device=device), torch.empty(4, device=device)
    receive = dist.irecv(x, src=1 - rank)
    dist.send(_own(device, rank), dst=1 - rank)
    receive.wait()
    each = [dist.P2POp(dist.irecv, y, 1 - rank), dist.P2POp(dist.isend, x, 1 - rank)]
    for work in dist.batch_isend_irecv(each):
        work.wait()
    return x, y


def _objects(device: str, rank: int) -> Any:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, {"rank": rank, "x": _own(device, rank)})
    dist.barrier()
    return [f["x"] for f in found]


def _trained(device: str, rank: int, **options: Any) -> Any:
    torch.manual_seed(rank)  # the parameters of one are sent to the others
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)]
    module = DistributedDataParallel(nn.Sequential(*layers).to(device), **options)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(6, 3).to(device)
        if step == 1:  # gradients are added up, and exchanged with the next step's
            with module.no_sync():
                module(x).square().mean().backward()
            continue
        module(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


CASES: dict[str, Callable[[str, int], Any]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "to each other": _to_each_other,
    "objects": _objects,
    "trained": _trained,
    "trained in buckets": lambda device, rank: _trained(device, rank, gradient_as_bucket_view=True),
}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_on_cpu(v) for v in value]
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _of_rank(rank: int) -> dict[str, Callable[[], Any]]:
    assert dist.get_default_backend_for_device("jax") == "gloo"
    return {
        f"{name} {device}": lambda case=case, device=device: _on_cpu(case(device, rank))
        for name, case in CASES.items()
        for device in ("cpu", "jax")
    }


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """The findings of each process. The group names no backend, whatever tensors there will be."""
    return found_by_processes(_of_rank, None)


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(found: list[dict[str, Any]], name: str) -> None:
    for each in found:
        assert not isinstance(each[f"{name} jax"], str), each[f"{name} jax"]
        torch.testing.assert_close(each[f"{name} jax"], each[f"{name} cpu"])
