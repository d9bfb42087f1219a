"""The choice of the override that takes a call: nesting, conditions, logs."""

from __future__ import annotations

import logging
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops
from jaten_ops.errors import (
    InvalidSchemaError,
    UnsupportedInputError,
)

from ..harness.overridden import Counted, attention, factor, scaled

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


def test_the_innermost_and_latest_takes_a_call() -> None:
    two, three, five = scaled(2), scaled(3), scaled(5)
    two.install()
    three.install()
    assert factor() == 3
    assert repr(two).startswith("override('relu', kernel=...) at ") and "overridden.py" in repr(two)
    two.install()  # again: it is the latest now
    assert factor() == 2
    with five, three, five:
        assert factor() == 5
        program = torch.compile(F.relu, backend="jaten", options={"overrides": [two]})
        assert factor(program(torch.ones(2, device="jax")) / 5 * 5) == 10  # relu of what the program gives
    two.remove()
    three.remove()
    three.remove()  # nothing
    assert factor() == 1


class Shifted:
    """Kernels that are methods, which Python makes anew each time they are asked for."""

    def __init__(self, by: float) -> None:
        self.by = by

    def kernel(self, self_: Any) -> Any:
        return jnp.maximum(self_, 0) + self.by


def test_overrides_of_the_same_functions_share_an_operator() -> None:
    """torch never forgets an operator: a block in a loop would add one each time."""

    def gradient(grads: Any, args: Any, results: Any) -> dict[str, Any]:
        return {"self": grads[0] * 7}

    one, two = Shifted(1.0), Shifted(2.0)
    x = torch.ones(2, device="jax", requires_grad=True)

    def values_and_gradients() -> list[list[float]]:
        found = []
        for functions in ({"kernel": one.kernel}, {"kernel": two.kernel}, {"kernel": one.kernel, "gradient": gradient}):
            with jaten_ops.override("relu", **functions):
                y = F.relu(x)
            found += [y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()]
        return found

    before = values_and_gradients()
    assert before == [[2, 2], [1, 1], [3, 3], [1, 1], [2, 2], [7, 7]]
    registered = len(dir(torch.ops.jaten_override))
    assert values_and_gradients() == before and len(dir(torch.ops.jaten_override)) == registered


def test_a_gradient_and_a_kernel_of_two_overrides() -> None:
    gradient = jaten_ops.override("relu", gradient=lambda grads, args, results: {"self": grads[0] * results[0]})
    x = torch.ones(2, device="jax", requires_grad=True)
    with scaled(3), gradient:
        F.relu(x).sum().backward()
    assert x.grad.tolist() == [3, 3]
    x.grad = None
    with gradient, scaled(3):  # the inner one has the gradient of its kernel
        F.relu(x).sum().backward()
    assert x.grad.tolist() == [3, 3] and gradient.gradient is not None
    with gradient:
        assert factor() == 1


def test_conditions() -> None:
    seen: list[Any] = []

    def when(self, other, *, alpha):
        seen.append((self.shape, other.dtype, str(self.device), isinstance(self, Tensor), alpha, self.requires_grad))
        return self.ndim == 2

    override = jaten_ops.override("add.Tensor", kernel=lambda self, other, *, alpha: self + other + 10, when=when)
    x, y = torch.zeros(2, 2, device="jax"), torch.zeros(2, device="jax")
    compiled = torch.compile(lambda x, y: (x + y, y + y, x + 1), backend="jaten")
    with override:
        results = [x + y, y + y, x + 1]
        assert [r.max().item() for r in results] == [10, 0, 11]
        assert [r.max().item() for r in compiled(x, y)] == [10, 0, 11]
        assert (y + 1).dtype is torch.float32
    assert seen[0] == ((2, 2), torch.float32, "jax:0", True, 1, False)
    refused = scaled(2, when=lambda self: bool(self.sum() > 0))
    with refused, pytest.raises(UnsupportedInputError, match="sum of a tensor"):
        F.relu(x)


def test_calls_that_draw_random_numbers_stay_those_of_aten() -> None:
    run = Counted(attention)
    x = torch.randn(1, 2, 4, 8, device="jax")
    with jaten_ops.override("scaled_dot_product_attention", kernel=run):
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        assert not run.count
        F.scaled_dot_product_attention(x, x, x)
        assert run.count


def test_logs_say_what_takes_what(caplog: pytest.LogCaptureFixture) -> None:
    override = scaled(2, when=lambda self: self.ndim == 1)
    with caplog.at_level(logging.DEBUG, "jaten_ops.overrides"), override:
        factor()
        F.relu(torch.ones(2, 2, device="jax"))
    lines = [r.getMessage() for r in caplog.records if r.name == "jaten_ops.overrides"]
    assert f"relu(float32[2] on jax:0): the kernel of the override at {override.where}" in lines
    assert any(line.startswith("relu: no override is for [float32[2, 2]") for line in lines)


def test_functions_that_are_refused() -> None:
    with pytest.raises(UnsupportedInputError, match="neither a kernel nor a gradient"):
        jaten_ops.override("relu")
    with pytest.raises(UnsupportedInputError, match="residuals=1"):
        jaten_ops.override("relu", kernel=jnp.abs, residuals=1)
    with pytest.raises(InvalidSchemaError, match=r"write def kernel\(self\)"):
        jaten_ops.override("relu", kernel=lambda x, y: x)
    with pytest.raises(InvalidSchemaError, match=r"write def gradient\(grads, args, results\)"):
        jaten_ops.override("relu", gradient=lambda grads: {})
    with pytest.raises(InvalidSchemaError, match=r"write def when\(self, other, \*, alpha\)"):
        jaten_ops.override("add.Tensor", kernel=lambda self, other, *, alpha: self, when=lambda self, other: True)
    with pytest.raises(InvalidSchemaError, match="static names 'beta'"):
        jaten_ops.override("relu", kernel=jnp.abs, static=["beta"])
    with pytest.raises(Exception, match=r"a list of what jaten_ops\.override makes"):
        torch.compile(F.relu, backend="jaten", options={"overrides": ["relu"]})(torch.ones(2))
