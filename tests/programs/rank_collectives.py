"""Programs with collectives for two processes: of `torch.distributed`, and its functional ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from ..harness.rank_processes import WORLD
from .rank_ways import Way

GROUP = [0, 1]


def _own(way: Way, size: int = 4) -> Tensor:
    return torch.arange(float(size), device=way.device) + 10 * dist.get_rank()


def _reduced(x: Tensor) -> Tensor:
    y, part = x * 2, x.clone()
    works = [dist.all_reduce(part[1:3], op=dist.ReduceOp.MAX, async_op=True), dist.all_reduce(y, async_op=True)]
    for work in works:
        work.wait()
    return y.cos() + part


def _broadcast(x: Tensor) -> Tensor:
    y = x.sin()
    dist.broadcast(y, 1)
    return y + 1


def _gathered(x: Tensor) -> Tensor:
    result = x.new_empty(WORLD * x.shape[0])
    dist.all_gather_into_tensor(result, x * 3)
    every = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(every, x + 1)
    return result.reshape(WORLD, -1) + torch.stack(every)


def _scattered(x: Tensor) -> Tensor:
    result = x.new_empty(x.shape[0] // WORLD)
    dist.reduce_scatter_tensor(result, x * 3)
    other = torch.empty_like(result)
    dist.reduce_scatter(other, list((x + 1).chunk(WORLD)))
    return result * 2 + other


def _exchanged(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    dist.all_to_all_single(result, x.cos())
    return result + 1


def _exchanged_lists(x: Tensor) -> Tensor:
    received = [x.new_empty(2) for _ in range(WORLD)]
    dist.all_to_all(received, list((x * 2).chunk(WORLD)))
    return torch.cat(received) + 1


def _to_one(x: Tensor) -> Any:
    y = x * 2
    dist.reduce(y, 0)
    every = [torch.empty_like(x) for _ in range(WORLD)] if dist.get_rank() == 0 else None
    dist.gather(x + 1, every)
    part = torch.empty_like(x)
    dist.scatter(part, [x + 2, x + 3] if dist.get_rank() == 0 else None)
    dist.barrier()
    return y if dist.get_rank() == 0 else None, every, part


def _sent(x: Tensor) -> Tensor:
    other = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 2, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(x * 3, 0)
    return other + 1


def _sent_both(x: Tensor) -> Tensor:
    other = torch.empty_like(x)
    to = 1 - dist.get_rank()
    receive = dist.irecv(other, src=to)  # both wait for the other before they send
    dist.send(x, dst=to)
    receive.wait()
    x = x + other
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x * 2, to), dist.P2POp(dist.irecv, other, to)]):
        work.wait()
    return other + 1


def _objects(x: Tensor) -> Any:
    found: list[Any] = [None] * WORLD
    dist.all_gather_object(found, {"rank": dist.get_rank(), "x": x})
    return [f["x"] for f in found]


def _coalesced(x: Tensor) -> Any:
    return [t * 2 for t in functional.all_reduce_coalesced([x + 1, x.cos()], "sum", GROUP)]


def _gathered_coalesced(x: Tensor) -> Any:
    gathered = functional.all_gather_into_tensor_coalesced([x + 1, x.cos()], GROUP)
    parts = functional.reduce_scatter_tensor_coalesced(list(gathered), "sum", [0, 0], GROUP)
    return [t * 2 for t in parts]


C10D: dict[str, Callable[[Tensor], Any]] = {
    "c10d all_reduce": _reduced,
    "c10d broadcast": _broadcast,
    "c10d all_gather": _gathered,
    "c10d reduce_scatter": _scattered,
    "c10d all_to_all_single": _exchanged,
    "c10d all_to_all": _exchanged_lists,
    "c10d reduce, gather, scatter": _to_one,
    "c10d send, recv": _sent,
    "c10d isend, irecv": _sent_both,
}
PICKLED: dict[str, Callable[[Tensor], Any]] = {"c10d objects": _objects}  # Dynamo does not capture it
FUNCTIONAL: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": lambda x: functional.all_reduce(x.sin(), "avg", GROUP) * 2,
    "all_gather_tensor": lambda x: functional.all_gather_tensor(x.reshape(2, 2) * 2, 1, GROUP).cos(),
    "reduce_scatter_tensor": lambda x: functional.reduce_scatter_tensor(x * 2, "sum", 0, GROUP).cos(),
    "all_to_all_single": lambda x: functional.all_to_all_single(x * 2, None, None, GROUP).cos(),
    "broadcast": lambda x: functional.broadcast(x * 2, 1, GROUP).cos(),
    "permute_tensor": lambda x: functional.permute_tensor(x * 2, [1, 0], GROUP).cos(),
    "coalesced": _coalesced,
    "gathered, scattered coalesced": _gathered_coalesced,
    "of integers": lambda x: functional.all_reduce(x.long(), "max", GROUP) + 1,
    "of bfloat16": lambda x: functional.all_reduce(x.bfloat16(), "sum", GROUP) + 1,
}
WITH_GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "all_gather": lambda x: functional.all_gather_tensor_autograd(x.sin(), 0, GROUP).cos(),
    "reduce_scatter": lambda x: functional.reduce_scatter_tensor_autograd(x.sin(), "sum", 0, GROUP).cos(),
    "all_to_all": lambda x: functional.all_to_all_single_autograd(x.sin(), None, None, GROUP).cos(),
}


def _plainly(fn: Callable[[Tensor], Any]) -> Callable[[Way], Any]:
    def run(way: Way) -> Any:
        call = way(fn)
        return [call(_own(way)) for _ in range(2)]

    return run


def _with_gradients(fn: Callable[[Tensor], Tensor]) -> Callable[[Way], Any]:
    def run(way: Way) -> Any:
        x = _own(way).requires_grad_()
        out = way(fn)(x)
        out.sum().backward()
        return out, x.grad

    return run


CAPTURED: dict[str, Callable[[Way], Any]] = {
    **{name: _plainly(fn) for name, fn in (C10D | FUNCTIONAL).items()},
    **{f"{name} with gradients": _with_gradients(fn) for name, fn in WITH_GRADIENTS.items()},
}
PROGRAMS = CAPTURED | {name: _plainly(fn) for name, fn in PICKLED.items()}
