"""Compiled programs with operators of other libraries that have no kernel, and with collectives of two processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from jaten_ops.backend.passes import third_party_calls

from ...harness import rank_processes
from ...harness.crossings import crossed
from ...harness.passes import watched
from ...harness.paths import compile_whole
from ...programs import rank_collectives

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


@pytest.mark.sampled(32)
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


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("name", "way"), crossed(rank_collectives.CAPTURED, ("compiled on CPU tensors", "compiled on the device"))
)
def test_collectives(name: str, way: str) -> None:
    rank_processes.found(name, way)


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
