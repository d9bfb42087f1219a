"""Compiled programs with operators of other libraries that have no kernel, and with collectives of two processes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from jaten_ops.backend.passes import third_party_calls

from ...harness.passes import watched
from ...harness.paths import compile_whole
from ...harness.processes import WORLD, found_by_processes

NAMESPACE = "jaten_test_unknown"
OPS = getattr(torch.ops, NAMESPACE)
SEEN: list[Any] = []


@torch.library.custom_op(f"{NAMESPACE}::cubed", mutates_args=())
def cubed(x: Tensor, factor: float = 1.0) -> Tensor:
    """A function that no tracer can look into."""
    SEEN.append(x.device.type)
    return torch.from_numpy(x.detach().cpu().numpy() ** 3 * factor).to(x.device)


@cubed.register_fake
def _(x: Tensor, factor: float = 1.0) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


def _pull(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return 3 * ctx.factor * OPS.squared(ctx.saved_tensors[0]) * grad, None


cubed.register_autograd(_pull, setup_context=_keep)


@torch.library.custom_op(f"{NAMESPACE}::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:
    """One that is met in a backward graph alone."""
    return x * x


@squared.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::add_to", mutates_args={"x"})
def add_to(x: Tensor, y: Tensor) -> Tensor:
    """Writes to its argument, and has a result as well."""
    x.add_(y)
    return y * 2


@add_to.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(y)


@torch.library.custom_op(f"{NAMESPACE}::note", mutates_args=())
def note(x: Tensor) -> None:
    """Has an effect and no result."""
    SEEN.append(round(x.sum().item(), 4))


@note.register_fake
def _(x: Tensor) -> None:
    return None


_register_effectful_op(OPS.note.default, _EffectType.ORDERED)


@torch.library.custom_op(f"{NAMESPACE}::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    """The positive elements: the size of the result depends on values."""
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def _written(x: Tensor) -> Any:
    y = x.clone()
    return OPS.add_to(y, x.cos()), y * 3


def _written_in_part(x: Tensor) -> Any:
    y = x.sin()
    OPS.add_to(y[1:], x[1:])
    return y


def _written_input(x: Tensor) -> Any:
    OPS.add_to(x, x.cos())
    return x + 1


def _noted(x: Tensor) -> Any:
    OPS.note(x)
    y = x.exp()
    OPS.note(y)
    return y + 1


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "between": lambda x: OPS.cubed(x.sin(), 0.5) + 1,
    "alone": lambda x: OPS.cubed(x),
    "two": lambda x: OPS.cubed(OPS.cubed(x)).cos(),
    "written": _written,
    "written in part": _written_in_part,
    "written input": _written_input,
    "noted": _noted,
    "sized by values": lambda x: OPS.positive(x.sin()) * 2,
    "in a branch": lambda x: torch.cond(x.sum() > -9, lambda x: OPS.cubed(x) + 1, lambda x: x.sin(), (x,)),
}
_DIFFERENTIABLE = ("between", "alone", "two", "in a branch")


def _run(fn: Callable[[Tensor], Any], x: Tensor, device: str, trains: bool) -> list[Any]:
    given = x.to(device, copy=True).requires_grad_(trains)
    SEEN.clear()
    results = fn(given)
    results = [results] if isinstance(results, Tensor) else list(results)
    if trains:
        sum(r.sum() for r in results).backward()
    given.requires_grad_(False)
    seen = [s for s in SEEN if s not in ("cpu", "jax")]
    return [*(r.detach().cpu() for r in results), given.cpu(), None if given.grad is None else given.grad.cpu(), seen]


_CASES = [(name, device, False) for name in PROGRAMS for device in ("cpu", "jax")]
_CASES += [(name, "cpu", True) for name in ("between", "written in part", "in a branch")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "device", "dynamic"), _CASES)
def test_run_as_they_are(name: str, device: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    fn = PROGRAMS[name]
    compiled = compile_whole(fn, dynamic=dynamic)
    for size in (4, 5) if dynamic else (4,):
        x = torch.linspace(-1, 1.5, size)
        torch.testing.assert_close(_run(compiled, x, device, False), _run(fn, x, "cpu", False))
        if name in _DIFFERENTIABLE:
            found = _run(compiled, x, device, True)
            assert set(SEEN) == {device}
            torch.testing.assert_close(found, _run(fn, x, "cpu", True))


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    third_party_calls._tell.cache_clear()
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING, "jaten_ops"):
        compile_whole(lambda x: OPS.cubed(OPS.cubed(x) + 1))(torch.ones(2))
        compile_whole(lambda x: OPS.cubed(x + 2))(torch.ones(3))
    assert [r.getMessage().partition(" ")[0] for r in caplog.records] == [f"{NAMESPACE}::cubed"]


def test_torch_has_what_runs_a_call_that_writes() -> None:
    """Private to torch: without it, operators that write serve plain tensors alone."""
    assert third_party_calls._PLAIN in auto_functionalized_v2.py_kernels


# Collectives


def _in_place(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    whole = y.new_empty(2 * y.shape[0])
    dist.all_gather_into_tensor(whole, y + dist.get_rank())
    return whole.sin()


COLLECTIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": lambda x: functional.all_reduce(x.sin(), "sum", [0, 1]) * 2,
    "all_gather_into_tensor": lambda x: functional.all_gather_tensor(x * 2, 0, [0, 1]).cos(),
    "reduce_scatter_tensor": lambda x: functional.reduce_scatter_tensor(x * 2, "sum", 0, [0, 1]).cos(),
    "all_to_all_single": lambda x: functional.all_to_all_single(x * 2, None, None, [0, 1]).cos(),
    "broadcast": lambda x: functional.broadcast(x * 2, 1, [0, 1]).cos(),
    "in place": _in_place,
}
WITH_GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "all_gather": lambda x: functional.all_gather_tensor_autograd(x.sin(), 0, [0, 1]).cos(),
    "reduce_scatter": lambda x: functional.reduce_scatter_tensor_autograd(x.sin(), "sum", 0, [0, 1]).cos(),
    "all_to_all": lambda x: functional.all_to_all_single_autograd(x.sin(), None, None, [0, 1]).cos(),
}


def _layers(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)


def _local(value: Any) -> Any:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.wait() if isinstance(value, functional.AsyncCollectiveTensor) else value


def _trained(module: nn.Module, compiled: Callable[..., Any], x: Any) -> list[Any]:
    out = compiled(x)
    out.square().sum().backward()
    return [_local(out).detach(), *(_local(p.grad) for p in module.parameters())]


@functools.cache  # torch's own partitioner fails with two equal ones
def _mesh() -> Any:
    return init_device_mesh("cpu", (WORLD,))


def _parallel(device: str, wrap: Callable[..., Any]) -> list[Any]:
    mesh = _mesh()
    module = parallelize_module(_layers(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return _trained(module, wrap(module), torch.linspace(-1, 1, 12).reshape(3, 4))


def _sharded(device: str, wrap: Callable[..., Any]) -> list[Any]:
    mesh = _mesh()
    x = distribute_tensor(torch.arange(24.0).reshape(4, 6) / 9, mesh, [Shard(0)])
    y = distribute_tensor(torch.arange(18.0).reshape(6, 3) / 9, mesh, [Shard(0)]).requires_grad_()
    out = wrap(lambda x, y: (x.sin() @ y).redistribute(placements=[Replicate()]).cos())(x, y)
    out.sum().backward()
    return [_local(out).detach(), _local(y.grad)]


def _replicated(device: str, wrap: Callable[..., Any]) -> list[Any]:
    module = DistributedDataParallel(_layers(device))
    return _trained(module, wrap(module), (torch.arange(12.0).reshape(3, 4) / 9 + dist.get_rank()).to(device))


MODULES = {"DTensor": _sharded, "parallelize_module": _parallel, "DistributedDataParallel": _replicated}
_DEVICES = {"DTensor": ("cpu",), "parallelize_module": ("cpu",)}


def _of(fn: Callable[[Tensor], Tensor], device: str, trains: bool, wrap: Callable[..., Any]) -> list[Any]:
    x = (torch.arange(4.0) + 10 * dist.get_rank()).to(device).requires_grad_(trains)
    out = wrap(fn)(x)
    if trains:
        out.sum().backward()
    return [_local(out.detach()), x.grad]


def _cases() -> dict[str, Callable[[Callable[..., Any]], list[Any]]]:
    found: dict[str, Any] = {}
    for device in ("cpu", "jax"):
        for trains, table in ((False, COLLECTIVES), (True, WITH_GRADIENTS)):
            for name, fn in table.items():
                key = f"{name}{' with gradients' if trains else ''} {device}"
                found[key] = lambda wrap, fn=fn, device=device, trains=trains: _of(fn, device, trains, wrap)
        for name, run in MODULES.items():
            if device in _DEVICES.get(name, ("cpu", "jax")):
                found[f"{name} {device}"] = lambda wrap, run=run, device=device: run(device, wrap)
    return found


def _on_cpu(values: list[Any]) -> list[Any]:
    return [None if v is None else v.cpu() for v in values]


def _beside_eager(run: Callable[[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    torch._dynamo.reset()
    return _on_cpu(run(lambda fn: fn)), _on_cpu(run(lambda fn: torch.compile(fn, backend="jaten")))


def _of_rank(rank: int) -> dict[str, Callable[[], Any]]:
    return {name: functools.partial(_beside_eager, run) for name, run in _cases().items()}


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """The findings of each of two processes."""
    return found_by_processes(_of_rank, "gloo")


@pytest.mark.parametrize("name", _cases())
def test_collectives(found: list[dict[str, Any]], name: str) -> None:
    for each in found:
        assert not isinstance(each[name], str), each[name]
        eager, compiled = each[name]
        torch.testing.assert_close(compiled, eager)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_an_operator_without_a_kernel(self) -> None:
        seen: list[list[str]] = []
        with watched("third_party_calls", lambda gm: seen.append([type(n.target).__name__ for n in gm.graph.nodes])):
            torch.compile(lambda x: OPS.cubed(x) + 1, backend="jaten")(torch.ones(2))
        self.assertExpectedInline(
            str(seen), """[['str', '_AsItIs', 'OpOverload', 'str'], ['str', 'OpOverload', 'str']]"""
        )
