"""Placements as programs say them, and ways to run these programs: each places a value in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

import jaten_ops
from jaten_ops import distributed

from .mesh_tensors import assert_over, mesh_2_4

P = PartitionSpec
_ROWS, _BOTH, _LIST, _DICT = P("data"), P("data", "model"), [Shard(0), Shard(1)], {"model": Shard(0)}
_AXES = ("data", "model")


def _placed_by(placements: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    mesh = mesh_2_4()
    return lambda x: distributed.constrain(x * 2, mesh, placements()).sin()


def _passed(placements: Any) -> Callable[[Tensor], Tensor]:
    """A function of one tensor, for the ways that have no other arguments; placements are another of what it calls."""
    mesh = mesh_2_4()

    def place(x: Tensor, placements: Any = None) -> Tensor:
        return distributed.constrain(x * 2, mesh, placements).sin()

    return lambda x: place(x, placements)


def _twice() -> Callable[[Tensor], Tensor]:
    once, mesh = _placed_by(lambda: P("model")), mesh_2_4()
    return lambda x: distributed.constrain(once(x), mesh, P(None, "model"))


def _moved(placements: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    mesh = mesh_2_4()
    return lambda x: (x * 2).redistribute(mesh, placements()).sin()  # type: ignore[attr-defined]  # on the device


def _moved_over_own(placements: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    mesh = mesh_2_4()

    def move(x: Tensor) -> Tensor:
        over: Any = distributed.constrain(x, mesh, _ROWS)
        found: Tensor = (over * 2).redistribute(placements=placements()).sin()
        return found

    return move


def _times_two(two: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function with a new tensor in it, as `two` places that over a mesh."""
    mesh = mesh_2_4()
    return lambda x: (x * two(torch.full((8, 8), 2.0), mesh)).sin()


SPREAD: dict[str, tuple[Callable[[], Callable[[Tensor], Tensor]], PartitionSpec]] = {
    "a spec, made inside": (lambda: _placed_by(lambda: P("data", "model")), _BOTH),
    "of names": (lambda: _placed_by(lambda: P(*_AXES)), _BOTH),
    "two axes in one": (lambda: _placed_by(lambda: P(("data", "model"), None)), P(_AXES)),
    "an open one": (lambda: _placed_by(lambda: P("data", P.UNCONSTRAINED)), _ROWS),
    "sum of specs": (lambda: _placed_by(lambda: P("data") + P("model")), _BOTH),
    "a choice": (lambda: _placed_by(lambda: _BOTH if P(*_AXES) == _BOTH and len(_BOTH) == 2 else None), _BOTH),
    "several": (_twice, P(None, "model")),
    "a spec, closed over": (lambda: _placed_by(lambda: _ROWS), _ROWS),
    "a spec, passed": (lambda: _passed(_BOTH), _BOTH),
    "a list, made inside": (lambda: _placed_by(lambda: [Shard(0), Replicate()]), _ROWS),
    "a tuple, made inside": (lambda: _placed_by(lambda: (Shard(0), Shard(1))), _BOTH),
    "a list, closed over": (lambda: _placed_by(lambda: _LIST), _BOTH),
    "a list, passed": (lambda: _passed(_LIST), _BOTH),
    "a dict, made inside": (lambda: _placed_by(lambda: {"data": Shard(0), "model": None}), _ROWS),
    "a dict, closed over": (lambda: _placed_by(lambda: _DICT), P("model")),
    "a dict, passed": (lambda: _passed(_DICT), P("model")),
    "redistributed, a spec": (lambda: _moved(lambda: P("data", "model")), _BOTH),
    "redistributed, a list": (lambda: _moved(lambda: [Shard(0), Shard(1)]), _BOTH),
    "redistributed over its own, a spec": (lambda: _moved_over_own(lambda: P(None, "model")), P(None, "model")),
    "redistributed over its own, a list": (lambda: _moved_over_own(lambda: [Shard(0), Shard(1)]), _BOTH),
    "redistributed over its own, a dict": (lambda: _moved_over_own(lambda: {"model": Shard(1)}), P(None, "model")),
    "redistributed over its own, to copies": (lambda: _moved_over_own(lambda: None), P()),
    "distribute_tensor": (lambda: _times_two(lambda two, m: distributed.distribute_tensor(two, m, _BOTH)), _BOTH),
    "distribute_batch": (lambda: _times_two(lambda two, m: distributed.distribute_batch({"x": two}, m)["x"]), _ROWS),
    "nothing": (lambda: _placed_by(lambda: None), P()),
}

Run = Callable[[Tensor], tuple[Tensor, Tensor]]


def _with_gradient(fn: Callable[[Tensor], Tensor]) -> Run:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = fn(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    return run


def _in_jax(fn: Callable[[Tensor], Tensor]) -> Run:
    function = jaten_ops.as_jax(fn)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        array = jax.device_put(x.cpu().numpy(), NamedSharding(mesh_2_4(), P()))
        gradient = jax.grad(lambda x: function(x).sum())(array)
        return jaten_ops.from_jax(jax.jit(function)(array)), jaten_ops.from_jax(gradient)

    return run


WAYS: dict[str, Callable[[Callable[[Tensor], Tensor]], Run]] = {
    "eager": _with_gradient,
    "compiled": lambda fn: _with_gradient(torch.compile(fn, backend="jaten", fullgraph=True)),
    "a step": lambda fn: jaten_ops.compile_step(_with_gradient(fn)),
    "as_jax": _in_jax,
}


def placed(name: str, way: str) -> None:
    torch._dynamo.reset()
    make, spec = SPREAD[name]
    plain = torch.randn(8, 8)
    run = WAYS[way](make())
    for _ in range(2):
        value, gradient = run(plain.to("jax"))
    assert_over(value, spec)
    torch.testing.assert_close(value.cpu(), (plain * 2).sin())
    torch.testing.assert_close(gradient.cpu(), 2 * (plain * 2).cos())
