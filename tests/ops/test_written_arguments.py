"""Operators of users that write to arguments, in all ways to run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import jaten_ops
from jaten_ops.errors import DuplicateRegistrationError, InvalidSchemaError, KernelResultError

own = torch.ops.jaten_writes
x = torch.linspace(0, 1, 4)


@jaten_ops.op(
    "jaten_writes::accumulate(Tensor(a!) total, Tensor x, float scale=1.0) -> Tensor(a!)", differentiable=["total", "x"]
)
def _accumulate(total, x, scale):
    return total + scale * jnp.sin(x)


@jaten_ops.op(
    "jaten_writes::several(Tensor(a!)[] xs, Tensor y, *, Tensor(b!) n) -> (Tensor, Tensor(b!))",
    differentiable=["xs", "y", "n"],
)
def _several(xs, y, *, n):
    return y.sum(), [x + y for x in xs], n + 1


@jaten_ops.op("jaten_writes::noise_(Tensor(a!) x) -> ()", tags=["nondeterministic_seeded"])
def _noise(x, key):
    return jax.random.normal(key, x.shape)


def _program(x: Tensor) -> Tensor:
    """Writes to views, to lists, and to a tensor that was read before."""
    t = x * 2
    before = t.exp()
    own.accumulate(t[:2], x[:2], 3.0)
    total, _ = own.several([t], x, n=t[0])
    return own.accumulate(t, x) * before + total


def _plain_program(x: Tensor) -> Tensor:
    t = x * 2
    before = t.exp()
    t[:2] += 3.0 * x[:2].sin()
    first = t[0] + 1  # of the value that the operator was given: it writes to t, then to t[0]
    t = torch.cat([first[None], (t + x)[1:]])
    return (t + x.sin()) * before + x.sum()


def _with_gradient(f: Callable[[Tensor], Tensor], given: Tensor) -> list[Tensor]:
    leaf = given.detach().requires_grad_()
    result = f(leaf)
    return [result.detach().cpu(), torch.autograd.grad((result * result).sum(), leaf)[0].cpu()]


def _step(x: Tensor) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    result = _program(leaf)
    (result * result).sum().backward()
    assert leaf.grad is not None
    return [result.detach(), leaf.grad]


def _as_jax(given: Tensor) -> list[Tensor]:
    fn = jaten_ops.as_jax(_program)
    array = jnp.asarray(given.numpy())
    return [torch.tensor(a) for a in (fn(array), jax.jit(jax.grad(lambda a: (fn(a) ** 2).sum()))(array))]


class _Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _program(x)


def _exported(given: Tensor) -> list[Tensor]:
    sizes = ({0: torch.export.Dim("n", min=4)},)
    program = torch.export.export(_Module(), (given,), dynamic_shapes=sizes).run_decompositions()
    return [program.module()(given)]


def _inference(given: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        return [_program(given).cpu()]


WAYS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "direct": lambda x: _with_gradient(_program, x),
    "device": lambda x: _with_gradient(_program, x.to("jax")),
    "compiled": lambda x: _with_gradient(torch.compile(_program, backend="jaten", fullgraph=True), x),
    "compiled on the device": lambda x: _with_gradient(
        torch.compile(_program, backend="jaten", fullgraph=True), x.to("jax")
    ),
    "compiled with open sizes": lambda x: _with_gradient(torch.compile(_program, backend="jaten", dynamic=True), x),
    "another backend": lambda x: _with_gradient(torch.compile(_program, backend="aot_eager", fullgraph=True), x),
    "step": lambda x: [t.cpu() for t in jaten_ops.compile_step(_step)(x)],
    "as_jax": _as_jax,
    "vmap": lambda x: [t[1] for t in _with_gradient_of_batch(x)],
    "exported": _exported,
    "functionalize": lambda x: [torch.func.functionalize(_program)(x)],
    "inference": _inference,
    "inference on the device": lambda x: _inference(x.to("jax")),
}


def _with_gradient_of_batch(given: Tensor) -> list[Tensor]:
    return _with_gradient(torch.vmap(_program), torch.stack([given * 3, given]))


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("way", WAYS)
def test_arguments_are_written(way: str) -> None:
    got = WAYS[way](x)
    assert_close(got, _with_gradient(_plain_program, x)[: len(got)])


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("compiled", [False, True])
def test_callers_see_what_was_written(compiled: bool, device: str) -> None:
    def call(total: Tensor, n: Tensor, noisy: Tensor) -> Tensor:
        own.several([total, total], x.to(device), n=n)
        own.noise_(noisy)
        return own.accumulate(total, total)

    total, n, noisy = (
        torch.zeros(4, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        x.clone().to(device),
    )
    version = total._version
    result = (torch.compile(call, backend="jaten", fullgraph=True) if compiled else call)(total, n, noisy)
    assert compiled or result is total
    assert_close([total.cpu(), n.cpu()], [x + x.sin(), torch.tensor(1)])
    assert total._version > version and not torch.equal(noisy.cpu(), x)


def test_errors_are_those_of_writing() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        own.accumulate(x.clone().requires_grad_(), x)
    with pytest.raises(RuntimeError, match="single memory location"):
        own.accumulate(torch.zeros(1).expand(4), x)
    with pytest.raises(
        KernelResultError, match=r"accumulate_functional.*written argument says \(\(1,\), torch.float32"
    ):
        own.accumulate(torch.zeros(1), x)
    with pytest.raises(KernelResultError, match=r"returned \(\(4,\), torch.float32.*torch.bfloat16"):
        own.accumulate(x.bfloat16(), x)


SCHEMAS = {
    "alias(Tensor(a) x) -> Tensor(a)": "aliases an argument",
    "other(Tensor(a!) x) -> Tensor(b)": "aliases an argument",
    "absent(Tensor(a!)? x) -> ()": r"writes to 'x', a Tensor\?",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas_that_are_refused(schema: str) -> None:
    with pytest.raises(InvalidSchemaError, match=SCHEMAS[schema]):
        jaten_ops.op(f"jaten_writes::{schema}")(lambda x: x)


def test_kernel_fake_and_gradient_by_the_operators_name() -> None:
    for factor in (2, 3):
        jaten_ops.op("jaten_writes::scale_(Tensor(a!) x) -> Tensor(a!)", differentiable=["x"])(
            lambda x, factor=factor: x * factor
        )
        jaten_ops.fake("jaten_writes::scale_")(torch.empty_like)
        jaten_ops.gradient("jaten_writes::scale_")(lambda grads, args, results: {"x": grads[0] * 7})
        leaf = torch.ones(2, requires_grad=True)
        result = own.scale_(leaf * 1)
        assert result.tolist() == [factor] * 2 and torch.autograd.grad(result.sum(), leaf)[0].tolist() == [7, 7]
    with pytest.raises(DuplicateRegistrationError):
        jaten_ops.op("jaten_writes::scale_(Tensor x) -> Tensor")(lambda x: x)
    assert str(torch._C._get_schema("jaten_writes::scale_", "")) == "jaten_writes::scale_(Tensor(a!) x) -> Tensor(a!)"


@pytest.mark.parametrize("name", ["accumulate", "several"])
def test_opcheck(name: str) -> None:
    given = {"accumulate": ((x.clone(), x), {}), "several": (([x.clone()], x), {"n": torch.zeros(())})}[name]
    args, kwargs = given
    op: Any = getattr(own, name).default
    torch.library.opcheck(op, args, kwargs, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))
