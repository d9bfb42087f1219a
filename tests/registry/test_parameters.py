"""The parameters of kernels: any name that a schema may have, and what is refused when an operator is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.testing import assert_close

import jaten_ops
from jaten_ops import registry
from jaten_ops.errors import InvalidSchemaError
from jaten_ops.registry import parameters

from ..harness.crossings import crossed

NAMESPACE = "jaten_test_parameters"
OPS = getattr(torch.ops, NAMESPACE)

# names that Python, torch or text of jaten's gives a meaning
NAMES = (
    "type", "_wrap", "_x64", "_call", "_results", "_default_0", "_0", "list", "tuple", "lambda", "from", "self",
    "input", "grads", "output_mask", "args", "kwargs", "op", "key", "layout", "device", "generator",
)  # fmt: skip


def _kernel(name: str, kind: str) -> Callable[..., Any]:
    if kind == "positional":
        return lambda x, y: x * y
    return lambda x, **given: x * given[name]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "kind"), crossed(NAMES, ["positional", "keyword"]))
def test_arguments_of_any_name(name: str, kind: str) -> None:
    """On plain tensors and on the device, with gradients of both orders."""
    schema = f"{NAMESPACE}::{kind}_{name}(Tensor x, {'*, ' if kind == 'keyword' else ''}Tensor {name}) -> Tensor"
    jaten_ops.op(schema, differentiable=["x", name])(_kernel(name, kind))
    op = getattr(OPS, f"{kind}_{name}").default
    for device in ("cpu", "jax"):
        x, y = (torch.tensor([n, 2.0], device=device, requires_grad=True) for n in (3.0, 5.0))
        result = op(x, **{name: y}) if kind == "keyword" else op(x, y)
        (by_x,) = torch.autograd.grad((result * result).sum(), x, create_graph=True)
        assert_close(by_x.detach().cpu(), 2 * (x * y * y).detach().cpu())
        assert_close(torch.autograd.grad(by_x.sum(), y)[0].cpu(), 4 * (x * y).detach().cpu())


@pytest.mark.parametrize("name", ["type", "_wrap", "_x64", "lambda"])
def test_compiled(name: str) -> None:
    jaten_ops.op(f"{NAMESPACE}::compiled_{name}(Tensor x, Tensor {name}) -> Tensor", differentiable=["x"])(
        lambda x, y: x * y
    )
    op = getattr(OPS, f"compiled_{name}")
    torch._dynamo.reset()
    x = torch.ones(2, requires_grad=True)
    torch.compile(lambda x: op(x, x.detach() + 1), backend="jaten", fullgraph=True)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


def test_the_argument_key_of_a_random_operator() -> None:
    @jaten_ops.op(f"{NAMESPACE}::noisy(Tensor x, *, Tensor key) -> Tensor", tags=["nondeterministic_seeded"])
    def noisy(x, *, key_, key):
        return x + key_ + 0 * jax.random.normal(key, x.shape)

    assert OPS.noisy(torch.ones(2), key=torch.ones(2)).tolist() == [2, 2]


# schema, kernel, and what the error says
REFUSED: dict[str, tuple[str, Callable[..., Any], str]] = {
    "missing": ("(Tensor x, float beta) -> Tensor", lambda x: x, "too many positional"),
    "extra": ("(Tensor x) -> Tensor", lambda x, beta: x, "missing a required argument: 'beta'"),
    "swapped": ("(Tensor x, float beta) -> Tensor", lambda beta, x: x, "its 'beta' is the schema's 'x'"),
    "a keyword by place": ("(Tensor x, *, float beta) -> Tensor", lambda x, /: x, "unexpected keyword argument 'beta'"),
    "a keyword of another name": ("(Tensor x, *, float beta) -> Tensor", lambda x, *, b: x, "missing a required"),
    "no key": ("(Tensor x) -> Tensor", lambda x: x, "unexpected keyword argument 'key'"),
    "where it is stored": ("(Tensor x, Device? device) -> Tensor", lambda x, device: x, "device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_when_registered(name: str) -> None:
    schema, kernel, says = REFUSED[name]
    tags = ["nondeterministic_seeded"] if name == "no key" else []
    named = f"{NAMESPACE}::refused_{name.replace(' ', '_')}{schema}"
    with pytest.raises(InvalidSchemaError, match=f"(?s)refused_.*{says}.*write def kernel"):
        jaten_ops.op(named, tags=tags)(kernel)
    assert not hasattr(OPS, named.partition("::")[2].partition("(")[0])
    if not tags:
        with pytest.raises(InvalidSchemaError, match=says):
            jaten_ops.kernel(named.replace("refused", "foreign"))(kernel)


ACCEPTED: dict[str, Callable[..., Any]] = {
    "other names": lambda a, b: a,
    "any": lambda *args: args[0],
    "a default": lambda x, beta, more=1: x,
    "jitted": jax.jit(lambda x, beta: x),
    "in C": max,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    spec = registry.SPECS["mul.Tensor"]
    parameters.check(spec, ACCEPTED[name])


def test_the_kernels_of_jaten_fit_their_schemas() -> None:
    for overload, entry in registry.KERNELS.items():
        if inspect.isfunction(entry.fn) and "::" not in overload and "_vjp" not in overload:
            parameters.check(registry.SPECS[overload], entry.fn)
