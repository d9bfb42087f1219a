"""Operators that another library has defined: jaten's kernels for them, in graphs and on the device."""

from __future__ import annotations

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
