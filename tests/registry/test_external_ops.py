"""Operators that another library has defined: jaten's kernels for them, in graphs and on the device."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import jaten_ops
from jaten_ops import registry
from jaten_ops.errors import DuplicateRegistrationError, InvalidSchemaError, UnknownOpError

NAMESPACE = "jaten_test_foreign"
OPS = getattr(torch.ops, NAMESPACE)


@torch.library.custom_op(f"{NAMESPACE}::cubed", mutates_args=())
def cubed(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """An operator as a library would write it: in NumPy, so that nothing traces it."""
    return torch.from_numpy(x.detach().cpu().numpy() ** 3 * factor)


@cubed.register_fake
def _(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


def _pull(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return 3 * ctx.factor * ctx.saved_tensors[0] ** 2 * grad, None


cubed.register_autograd(_pull, setup_context=_keep)


@torch.library.custom_op(f"{NAMESPACE}::doubled_", mutates_args=("x",))
def doubled_(x: torch.Tensor) -> None:
    x.mul_(2)


CALLS: list[str] = []


@jaten_ops.kernel(f"{NAMESPACE}::cubed")
def _cubed(x, factor=1.0):
    CALLS.append("cubed")
    return x**3 * factor


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_its_kernel_runs_and_its_own_gradient(device: str, compiled: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return OPS.cubed(x.sin(), 0.5) + 1

    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    expected = (x.sin() ** 3 / 2 + 1).sum()
    expected.backward()
    given = x.detach().to(device).requires_grad_()
    torch._dynamo.reset()
    CALLS.clear()
    result = (torch.compile(program, backend="jaten", fullgraph=True) if compiled else program)(given).sum()
    result.backward()
    assert result.device.type == device
    assert bool(CALLS) == (compiled or device == "jax")  # plain tensors, not compiled: the library's own
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(given.grad.cpu(), x.grad)


def test_one_that_is_not_defined_yet_is_named_with_its_schema() -> None:
    name = f"{NAMESPACE}::later"
    with pytest.raises(UnknownOpError, match=r"later.*with its schema"):
        jaten_ops.kernel(name)(lambda x: x)
    jaten_ops.kernel(f"{name}(Tensor x, int n=2) -> Tensor")(lambda x, n=2: jnp.tile(x, n))
    torch.library.custom_op(name, lambda x, n: x.repeat(n), mutates_args=(), schema="(Tensor x, int n=2) -> Tensor")
    assert OPS.later(torch.arange(2.0, device="jax"), 3).tolist() == [0, 1, 0, 1, 0, 1]


def test_one_with_another_schema_is_refused() -> None:
    name = f"{NAMESPACE}::changed"
    jaten_ops.kernel(f"{name}(Tensor x) -> Tensor")(lambda x: x + 1)
    torch.library.custom_op(name, lambda x, y: x + y, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor")
    x = torch.ones(2, device="jax")
    with pytest.raises(InvalidSchemaError, match=r"\(Tensor x, Tensor y\).*its kernel is for changed\(Tensor x\)"):
        OPS.changed(x, x)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("cubed", DuplicateRegistrationError, "cubed"),
        ("doubled_", InvalidSchemaError, "mutates"),
        ("viewed(Tensor(a) x) -> Tensor(a)", InvalidSchemaError, "aliases"),
        ("broken(Tensor x -> Tensor", InvalidSchemaError, "broken"),
    ],
)
def test_mistakes(name: str, error: type[Exception], says: str) -> None:
    before = set(registry.SPECS)
    with pytest.raises(error, match=says):
        jaten_ops.kernel(f"{NAMESPACE}::{name}")(lambda x: x)
    assert set(registry.SPECS) == before


@pytest.mark.parametrize("place", ["the operator", "what it computes by"])
def test_a_name_that_a_library_has_is_refused(place: str) -> None:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    name = "taken" if place == "the operator" else "taken_by"
    library.define(f"{name}(Tensor x) -> Tensor" if name == "taken" else f"{name}_functional(Tensor x) -> Tensor")
    schema = f"{NAMESPACE}::{name}" + ("(Tensor x) -> Tensor" if name == "taken" else "(Tensor(a!) x) -> ()")
    for _ in range(2):
        with pytest.raises(DuplicateRegistrationError, match="first at the library that defines it"):
            jaten_ops.op(schema)(lambda x: x * 2)
    assert f"{NAMESPACE}::{name}" not in registry.SPECS


@pytest.mark.parametrize("kind", ["vjp", "vmap", "keyed"])
@pytest.mark.parametrize("owner", ["jaten", "library"])
def test_names_of_companions_may_be_taken(owner: str, kind: str) -> None:
    name, taken = f"own_{owner}_{kind}", f"own_{owner}_{kind}_{kind}"
    if owner == "jaten":
        jaten_ops.op(f"{NAMESPACE}::{taken}(Tensor x) -> Tensor")(lambda x: x * 7)
    else:
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        library.define(f"{taken}(Tensor x) -> Tensor")
        library.impl(taken, lambda x: x * 7, "CPU")
    tags = ["nondeterministic_seeded"] if kind == "keyed" else []

    @jaten_ops.op(f"{NAMESPACE}::{name}(Tensor x) -> Tensor", differentiable=["x"], tags=tags)
    def kernel(x, key=None):
        return x * 2

    x = torch.ones(2, requires_grad=True)
    getattr(OPS, name)(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert torch.vmap(getattr(OPS, name), randomness="same")(x).tolist() == [2, 2]
    assert getattr(OPS, taken)(torch.ones(2)).tolist() == [7, 7]


SPELLINGS = {
    "no space at the arrow": "(Tensor x, float by=2.)->Tensor",
    "spaces in the brackets": " ( Tensor  x , float by = 2. )  ->  Tensor ",
    "lines": "(\n  Tensor x,\n  float by=2.\n)\n-> Tensor",
    "one in brackets": "(Tensor x, float by=2.) -> (Tensor)",
    "an arrow in a default": "(Tensor x, float by=2., str to='a  (b)->c')->Tensor",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_schemas_may_be_spelled_in_all_ways_of_torch(spelling: str) -> None:
    name = f"spelled_{spelling.replace(' ', '_')}"

    def kernel(x, by, to=None):
        assert to in (None, "a  (b)->c")
        return x * by

    for _ in range(2):  # the same once more replaces the kernel
        jaten_ops.op(f"{NAMESPACE}::{name}{SPELLINGS[spelling]}", differentiable=["x"])(kernel)
    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(getattr(OPS, name), backend="jaten", fullgraph=True)
    (getattr(OPS, name)(x, 5.0) + torch.vmap(getattr(OPS, name))(x) + compiled(x)).sum().backward()
    assert x.grad.tolist() == [9, 9]


def test_a_written_argument_may_be_spelled_without_a_space() -> None:
    jaten_ops.op(f"{NAMESPACE}::doubling_(Tensor(a!)x, Tensor(b!)[]ys)->()")(lambda x, ys: (x * 2, [y * 2 for y in ys]))
    x, y = torch.ones(2), torch.ones(2)
    OPS.doubling_(x, [y])
    assert x.tolist() == y.tolist() == [2, 2]


@pytest.mark.parametrize("kind", ["str", "ScalarType", "int[]", "Tensor?[]"])
def test_results_of_other_types_are_refused(kind: str) -> None:
    with pytest.raises(InvalidSchemaError, match=re.escape(f"it returns a {kind}")):
        jaten_ops.op(f"{NAMESPACE}::returning(Tensor x) -> {kind}")
