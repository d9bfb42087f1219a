"""Results of kernels are checked against their operator's schema and fake, on every path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch._dynamo

import jaten_ops
from jaten_ops.errors import KernelResultError

NAMESPACE = "jaten_test_results"
OPS = getattr(torch.ops, NAMESPACE)


def _same(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# schema, kernel, and the fake; without one, what is wrong is found by the schema alone
WRONG: dict[str, tuple[str, Callable[..., Any], Callable[..., Any] | None]] = {
    "shape": ("(Tensor x) -> Tensor", lambda x: x[:1], _same),
    "rank": ("(Tensor x) -> Tensor", lambda x: x[None], _same),
    "dtype": ("(Tensor x) -> Tensor", lambda x: x.astype(jnp.float16), _same),
    "wide": ("(Tensor x) -> Tensor", lambda x: x.astype(jnp.float64), _same),
    "count": ("(Tensor x) -> Tensor[]", lambda x: [x, x, x], lambda x: [_same(x)] * 2),
    "the second": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x, x[:1]), lambda x: (_same(x), _same(x))),
    "a tuple": ("(Tensor x) -> Tensor", lambda x: (x, x), _same),
    "a tuple of one": ("(Tensor x) -> Tensor", lambda x: (x,), None),
    "one of two": ("(Tensor x) -> (Tensor, Tensor)", lambda x: x, None),
    "three of two": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x, x, x), None),
    "no list": ("(Tensor x) -> Tensor[]", lambda x: x, None),
    "nothing": ("(Tensor x) -> Tensor", lambda x: None, _same),
    "nothing, without a fake": ("(Tensor x) -> Tensor", lambda x: None, None),
    "nothing in a list": ("(Tensor x) -> Tensor[]", lambda x: [x, None], None),
    "a dict": ("(Tensor x) -> Tensor", lambda x: {"y": x}, None),
    "a string": ("(Tensor x) -> Tensor", lambda x: "x", None),
    "a nested list": ("(Tensor x) -> Tensor[]", lambda x: [x, (x, x)], None),
}


def _op(name: str) -> Callable[..., Any]:
    schema, kernel, fake = WRONG[name]
    packet = name.replace(" ", "_").replace(",", "")
    if not hasattr(OPS, packet):
        jaten_ops.op(f"{NAMESPACE}::{packet}{schema}", differentiable=["x"])(kernel)
        if fake is not None:
            jaten_ops.fake(f"{NAMESPACE}::{packet}")(fake)
    op = getattr(OPS, packet)

    def first(x: torch.Tensor) -> torch.Tensor:
        result = op(x)
        return result if isinstance(result, torch.Tensor) else result[0]

    return first


def _step(op: Callable[..., Any], x: torch.Tensor) -> None:
    kept = x.to("jax")
    step = jaten_ops.compile_step(lambda: op(kept), kept)
    step(), step()


def _compiled(then: Callable[..., Any], device: str = "cpu", **options: Any) -> Callable[..., Any]:
    def run(op: Callable[..., Any], x: torch.Tensor) -> None:
        torch._dynamo.reset()
        torch.compile(lambda x: then(op, x), backend="jaten", **options)(x.to(device))

    return run


WAYS: dict[str, Callable[..., Any]] = {
    "direct": lambda op, x: op(x),
    "device": lambda op, x: op(x.to("jax")),
    "vmap": lambda op, x: torch.vmap(op)(x[None]),
    "step": _step,
    "an output": _compiled(lambda op, x: op(x)),
    "on the device": _compiled(lambda op, x: op(x), "jax"),
    "any size": _compiled(lambda op, x: op(x), dynamic=True),
    "in the middle": _compiled(lambda op, x: op(x * 2).sum() + 1),
    "in training": _compiled(lambda op, x: op(x.requires_grad_() * 2).sum() + 1),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["shape", "dtype", "count", "the second", "nothing"])
def test_what_the_fake_does_not_say_is_refused(name: str, way: str) -> None:
    with pytest.raises(KernelResultError, match=f"{name.replace(' ', '_')}.* its kernel returned"):
        WAYS[way](_op(name), torch.ones(4, 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRONG)
def test_refused_at_the_first_call(name: str) -> None:
    x = torch.ones(4, 2)
    with pytest.raises(KernelResultError, match=r"its kernel returned .* its (fake|schema) says .*Tensor|float32"):
        _op(name)(x)
    if WRONG[name][2] is None:  # Dynamo asks the kernel for the shapes
        with pytest.raises(Exception, match=r"KernelResultError.* its kernel returned"):
            WAYS["an output"](_op(name), x)
    else:
        with pytest.raises(KernelResultError, match=rf"{__name__.rpartition('.')[2]}\.py:\d+: .*op\(x\)"):
            WAYS["an output"](_op(name), x)


@jaten_ops.op(f"{NAMESPACE}::of_any_size(Tensor x) -> Tensor")
def of_any_size(x):
    return x if x.shape[0] < 5 else x[:5]


@jaten_ops.fake(f"{NAMESPACE}::of_any_size")
def of_any_size_fake(x):
    return torch.empty_like(x)


def test_each_new_size_is_checked() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: OPS.of_any_size(x) + 1, backend="jaten", dynamic=True)
    for rows in (3, 4):
        assert compiled(torch.ones(rows)).shape == (rows,)
    with pytest.raises(KernelResultError, match=r"\(5,\).*\(7,\)"):
        compiled(torch.ones(7))
    assert compiled(torch.ones(4)).shape == (4,)


@jaten_ops.op(f"{NAMESPACE}::backward_of(Tensor grad) -> Tensor")
def backward_of(grad):
    return grad.astype(jnp.bfloat16)


jaten_ops.fake(f"{NAMESPACE}::backward_of")(_same)


@jaten_ops.op(f"{NAMESPACE}::with_backward(Tensor x) -> Tensor", differentiable=["x"])
def with_backward(x):
    return x


@jaten_ops.gradient(f"{NAMESPACE}::with_backward")
def with_backward_gradient(grads, args, results):
    return {"x": OPS.backward_of(grads[0])}


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_the_backward_graph(dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: OPS.with_backward(x * 2), backend="jaten", dynamic=dynamic)
    with pytest.raises(KernelResultError, match=r"backward_of.*bfloat16"):
        compiled(x).sum().backward()


@pytest.mark.parametrize("value", [1.5, 2, True, 1j])
def test_a_number_is_an_array(value: complex) -> None:
    packet = f"number_{type(value).__name__}"
    jaten_ops.op(f"{NAMESPACE}::{packet}(Tensor x) -> Tensor")(lambda x: value)
    got = getattr(OPS, packet)(torch.ones(2))
    assert got.shape == () and got.item() == value
    assert (
        got.dtype
        == {"float": torch.float32, "int": torch.int32, "bool": torch.bool, "complex": torch.complex64}[
            type(value).__name__
        ]
    )


@jaten_ops.op(f"{NAMESPACE}::above_zero(Tensor x, bool is_there) -> Tensor?", differentiable=["x"])
def _above_zero(x, is_there):
    return jnp.maximum(x, 0) if is_there else None


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_result_may_be_absent(compiled: bool, device: str) -> None:
    torch._dynamo.reset()
    call = torch.compile(OPS.above_zero, backend="jaten") if compiled else OPS.above_zero
    x = torch.tensor([-1.0, 2.0, 3.0], device=device, requires_grad=True)
    result = call(x, True)
    assert result.tolist() == [0, 2, 3]
    result.sum().backward()
    assert x.grad.tolist() == [0, 1, 1]
    assert call(x, False) is None


@pytest.mark.parametrize("schema", ["Tensor", "Tensor[]", "(Tensor, Tensor)"])
def test_a_fake_that_returns_nothing_is_refused(schema: str) -> None:
    torch._dynamo.reset()
    name = f"forgetful_{len(schema)}"
    jaten_ops.op(f"{NAMESPACE}::{name}(Tensor x) -> {schema}")(lambda x: x if schema == "Tensor" else (x, x))
    jaten_ops.fake(f"{NAMESPACE}::{name}")(lambda x: None)
    with pytest.raises(KernelResultError, match="its fake returned None, its schema says"):
        getattr(OPS, name)(torch.ones(2))
    with pytest.raises(Exception, match="its fake returned None, its schema says"):
        torch.compile(getattr(OPS, name), backend="jaten", fullgraph=True)(torch.ones(2))
